"""Is this library right for my kind of model, my optimiser, my trainer? A table that a command makes.

Every family is a miniature of what people train, written out in a few lines. Models are measured and held against the
formula, one sample at a time; optimisers take steps beside which the formulas along the path are computed by hand, and
have to be held. What comes out is a verdict (:mod:`benchmarks.families.verdicts`), never an opinion.
"""
