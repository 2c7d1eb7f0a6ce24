"""What was left open, by the paper or by the first reproduction of it."""
