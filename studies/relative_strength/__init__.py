"""What of a strength carries over to another measure, form or problem?"""
