"""Figures and tables of the paper's appendix."""
