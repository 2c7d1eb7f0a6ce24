"""What other libraries compute when they say EWC, SI, MAS or RWalk, beside the definitions.

Each library measures one small network through the calls that its users make (``adapters/``), at several batch sizes,
and its importances are held against the definition in float64: how they correlate over all weights, and how large they
are. Where they differ, the formula that explains the difference is computed too, and has to give the library's numbers.
"""
