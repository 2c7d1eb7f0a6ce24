"""Commands that make runs, and how each of them ends."""
