"""What a guard keeps inputs for: to see how much is lost, and to let a strength follow a tolerance."""
