"""What does fine-tuning lose by one Adam for all tasks?"""
