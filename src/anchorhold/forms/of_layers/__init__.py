"""Forms that take a layer's weight and bias as one matrix, of outputs × inputs, by a factor for each side."""
