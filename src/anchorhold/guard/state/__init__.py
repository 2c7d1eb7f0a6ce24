"""A guard as a dictionary and as a file, checked before anything of it is taken."""
