"""One kind of text after another: what is left of each when all have been learned."""
