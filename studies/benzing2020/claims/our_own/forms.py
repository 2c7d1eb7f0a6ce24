"""Claims of our own: what is kept beyond the diagonal. Their thresholds are aims that were set before these runs."""

from collections.abc import Sequence

from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import accuracy, difference
from studies.benzing2020.claims.rule import AtLeast, Measurement
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import BENCHMARKS
from studies.benzing2020.published import ACCURACIES, KRONECKER_LAPLACE

_MATRICES = ("rotated EWC, many tasks", "Kronecker EWC, many tasks")


def _better(results: Results) -> str:
    """Return which of the two matrix forms is the better one over many tasks."""
    return max(_MATRICES, key=lambda name: results.accuracy("P-MNIST", name).mean)


def _of_the_better(results: Results) -> Sequence[Measurement]:
    """Return the accuracy of the better matrix form over many tasks."""
    return accuracy("P-MNIST", _better(results))(results)


def _ahead_of_diagonal(results: Results) -> Sequence[Measurement]:
    """Return by how many points the better matrix form leads over many tasks."""
    return difference("P-MNIST", _better(results), "diagonal EWC, many tasks")(results)


CLAIMS = (
    Claim(
        "own-rotated-p-mnist",
        ("forms",),
        "In the layers' own coordinates EWC reaches 98.0 % on Permuted MNIST "
        f"(the paper's best: {ACCURACIES['P-MNIST', 'AF']}).",
        "accuracy of rotated EWC, P-MNIST",
        accuracy("P-MNIST", "rotated EWC"),
        AtLeast(98.0),
        own=True,
    ),
    Claim(
        "own-rotated-cifar",
        ("forms",),
        f"It reaches 75.0 % on Split CIFAR (EWC in the paper: {ACCURACIES['CIFAR', 'EWC']}).",
        "accuracy of rotated EWC, CIFAR",
        accuracy("CIFAR", "rotated EWC"),
        AtLeast(75.0),
        own=True,
    ),
    *(
        Claim(
            f"own-rotated-beats-diagonal-{benchmark.lower()}",
            ("forms",),
            f"It keeps more than the diagonal with the same samples and the same search ({benchmark}).",
            "accuracy of rotated EWC less that of diagonal EWC",
            difference(benchmark, "rotated EWC", "diagonal EWC"),
            AtLeast(0.0),
            own=True,
        )
        for benchmark in BENCHMARKS
    ),
    Claim(
        "own-rotated-few-samples",
        ("forms",),
        "With the paper's 1,000 samples it reaches the paper's best on Permuted MNIST "
        f"({ACCURACIES['P-MNIST', 'AF']}), given more damping.",
        "accuracy of rotated EWC from few samples, damped",
        accuracy("P-MNIST", "rotated EWC, few samples, damped"),
        AtLeast(ACCURACIES["P-MNIST", "AF"].mean),
        own=True,
    ),
    Claim(
        "own-many-tasks",
        ("forms",),
        "Over 50 permutations of MNIST, the rotated or the Kronecker form stays above 90 %, as Ritter et al. 2018 "
        "found with the latter.",
        "accuracy of the better of both",
        _of_the_better,
        AtLeast(KRONECKER_LAPLACE.mean),
        own=True,
    ),
    Claim(
        "own-many-tasks-beat-diagonal",
        ("forms",),
        "Over 50 permutations of MNIST, the diagonal stays below it.",
        "accuracy of the better of both less that of the diagonal",
        _ahead_of_diagonal,
        AtLeast(0.0),
        own=True,
    ),
)
