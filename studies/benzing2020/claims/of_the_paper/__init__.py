"""What the paper says."""
