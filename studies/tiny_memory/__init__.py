"""What is one old sample a class worth?"""
