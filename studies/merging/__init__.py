"""What is left of both tasks when two models are merged?"""
