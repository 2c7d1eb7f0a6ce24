"""What happens around an optimizer's step."""
