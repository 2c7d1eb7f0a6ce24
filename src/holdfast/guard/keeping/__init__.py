"""What a guard keeps inputs for: how much is lost, a strength that follows a tolerance, and the way back."""
