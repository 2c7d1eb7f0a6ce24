"""Making runs on a Ray cluster."""
