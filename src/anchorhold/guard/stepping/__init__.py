"""What happens around an optimiser's step."""
