"""How strong does a rotated guard have to be for ten tasks?"""
