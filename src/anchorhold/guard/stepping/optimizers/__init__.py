"""What is known of optimizers: which are watched, what they do with closures and gradients, how far they go."""
