"""The definitions, in float64, of the measures that are taken from a trained network.

They are anchorhold's own, which its tests hold against one sample and one label at a time.
"""

from anchorhold import MAS, Fisher
from benchmarks.audit.comparison import Importance
from benchmarks.audit.problem import Problem

AFTER_TRAINING = {
    "Fisher": Fisher(),
    "empirical Fisher": Fisher(labels="true"),
    "MAS on logits": MAS(output="logits"),
}


def after_training(name: str, problem: Problem) -> Importance:
    """Return the importance of the trained network's weights, the mean over all samples."""
    inputs = problem.inputs.double()
    return AFTER_TRAINING[name].measure(problem.network().double(), [(inputs, problem.labels)])
