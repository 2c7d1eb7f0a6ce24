"""What state in fewer bits costs in precision, in minutes: ten permutations of small digits."""

from collections.abc import Iterator
from dataclasses import replace

from anchorhold_lab.data import digits_dataset
from benchmarks.harness import Report
from benchmarks.state import PERMUTED_MNIST, compared

PERMUTED_DIGITS = replace(
    PERMUTED_MNIST,
    name="small-state",
    what="scikit-learn's digits, permuted",
    strengths={"SOS": 3.0, "SI": 4.0, "EWC": 10.0},
    tasks=5,
    steps=200,
    batch=64,
    width=100,
    seeds=12,
)


def run(quick: bool) -> Iterator[Report]:
    yield compared(replace(PERMUTED_DIGITS, tasks=2, seeds=1, steps=20) if quick else PERMUTED_DIGITS, digits_dataset())
