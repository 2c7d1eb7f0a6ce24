"""Being at home where people train: Lightning, Hugging Face, Accelerate. Each module needs an extra of its own name."""
