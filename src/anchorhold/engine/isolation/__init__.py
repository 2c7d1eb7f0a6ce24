"""Measuring without leaving a trace."""
