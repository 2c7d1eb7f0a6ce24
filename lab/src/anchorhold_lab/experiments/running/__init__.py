"""Making runs on this machine."""
