"""Questions that were decided, a folder each, with its answer and the command that gives it again."""
