"""Are measures along the training path worth it in rotated coordinates?"""
