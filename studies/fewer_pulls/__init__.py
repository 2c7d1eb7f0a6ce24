"""What of a hold's pull can be left out without changing what is learned?"""
