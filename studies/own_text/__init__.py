"""How near does a model's own text come to real text, as the data for its Fisher information?"""
