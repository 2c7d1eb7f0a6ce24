"""Holds with batches of their own: old samples and old outputs, given, written by the model or kept in buffers."""
