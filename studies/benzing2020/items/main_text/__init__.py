"""The table and the figures of the paper's main text."""
