"""What is known of optimisers: which are watched, what they do with closures and gradients, how far they go."""
