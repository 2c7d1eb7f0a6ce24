"""Whether an exchange rate of 1 is as good as a strength that was searched for."""
