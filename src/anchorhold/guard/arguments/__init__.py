"""What a guard is asked for: which parameters, how strongly, by which measures, forms and holds, all of it checked."""
