"""Where a guard's state lies in a checkpoint's folder."""

STATE_NAME = "holdfast.safetensors"
"""The file that holds it, beside those of the model and the optimiser."""
