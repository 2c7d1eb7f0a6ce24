"""What a run leaves behind, kept for good."""
