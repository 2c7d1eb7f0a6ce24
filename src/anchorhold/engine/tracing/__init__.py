"""Seeing where a model uses its parameters, and where samples lie there."""
