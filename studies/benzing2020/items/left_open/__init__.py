"""What the paper leaves open, and what its first reproduction could not decide."""
