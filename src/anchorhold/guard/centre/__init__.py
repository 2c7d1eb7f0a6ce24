"""Where the quadratic hold is centred, and the gradients of tasks that are part of it."""
