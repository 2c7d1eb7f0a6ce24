"""Parameters as tensors: by name, in pieces, spread over processes, and kept elsewhere."""
