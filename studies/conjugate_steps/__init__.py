"""Does a hold after Adam's step in rotated coordinates pay?"""
