"""Why an exchange rate of 1 is too weak for classifiers, and what gives them a unit."""
