"""Keeps neural networks from forgetting: importance-based regularisation for PyTorch."""
