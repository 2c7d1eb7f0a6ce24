"""What a guard notices that its user should know: training that goes past it, and protection that is not there."""
