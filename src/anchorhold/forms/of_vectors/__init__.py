"""Forms that take the weights of a block, of the whole network above all, as one vector."""
