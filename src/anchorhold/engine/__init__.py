"""What a weight is worth: the measures and the per-sample engine. Knows torch only."""
