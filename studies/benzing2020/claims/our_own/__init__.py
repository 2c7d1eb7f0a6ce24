"""What we say, of what the paper leaves out."""
