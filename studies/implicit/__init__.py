"""Does a hold after the step keep more than one in the gradient, and over a wider range of strengths?"""
