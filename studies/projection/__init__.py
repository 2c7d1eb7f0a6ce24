"""What does projecting the step keep on Permuted MNIST?"""
