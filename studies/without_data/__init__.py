"""What can stand in for a classifier's old inputs?"""
