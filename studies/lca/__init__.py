"""Which weights lower the loss, and do SI, SIU and SIB know them?"""
