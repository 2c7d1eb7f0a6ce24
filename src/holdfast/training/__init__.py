"""Learning tasks one after another."""
