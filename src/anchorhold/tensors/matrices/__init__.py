"""Matrices: in blocks along the diagonal, decomposed on any device, and multiplied in the precision asked for."""
