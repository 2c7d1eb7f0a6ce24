"""Tolerances against searched strengths, with networks of the paper's size."""
