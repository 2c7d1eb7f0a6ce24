"""What the fast engine does on one GPU, with real data: `make bench-gpu PYTHON=python3`."""
