"""Searching for a strength."""
