"""Importance from the gradients of micro-batches, for which no step is taken."""
