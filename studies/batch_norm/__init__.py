"""What becomes of EWC beside batch norm?"""
