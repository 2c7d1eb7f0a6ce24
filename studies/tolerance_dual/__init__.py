"""A strength that follows a tolerance: integral control that slows down, or dual ascent at a steady pace."""
