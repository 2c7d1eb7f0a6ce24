"""Batch norm in a guard: running statistics that stay as they are, or that are folded into the weights they scale."""
