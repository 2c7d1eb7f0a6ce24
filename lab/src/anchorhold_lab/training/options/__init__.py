"""What one setting changes about a run, in a file each."""
