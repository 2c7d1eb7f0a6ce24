"""Invented formats of records, one learned after the other, scored by exact match."""
