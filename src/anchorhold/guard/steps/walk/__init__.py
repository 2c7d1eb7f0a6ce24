"""Element by element through parameters: how they are laid out in memory, and what is done to each around a step."""
