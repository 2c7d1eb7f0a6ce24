"""Several runs side by side, each step of all of them recorded once and replayed.

All weights lie in one buffer, a row a run, and so does everything that is kept about them, so that the penalty, the
optimizer and all measures are one element-wise kernel. On a CUDA device, forward and backward passes are compiled,
matrix products of all runs batched, and the whole step replayed as a graph; on a CPU the same code runs as it is.
"""

from anchorhold_lab.training.fast.fast_runs import FastRuns

__all__ = ["FastRuns"]
