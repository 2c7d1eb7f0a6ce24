"""Tables and figures that the paper does not have."""
