"""Commands about runs that are there: listed, compared and drawn."""
