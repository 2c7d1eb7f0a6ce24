"""One command a file, and how each of them ends."""
