"""What pulls a model back to what it has learned."""
