"""Weights that move without a step: back towards the anchor, by a share or to a tolerance, or to an average of them."""
