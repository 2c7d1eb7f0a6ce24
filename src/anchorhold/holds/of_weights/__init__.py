"""Holds that know the weights alone: a form of them, around an anchor."""
