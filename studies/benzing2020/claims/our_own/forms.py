"""Claims of our own: what is kept beyond the diagonal. Their thresholds are aims that were set before these runs."""

from anchorhold_lab.analysis import Estimate
from studies.benzing2020.claims.claim import AtLeast, Claim
from studies.benzing2020.claims.differences import Statistic, difference
from studies.benzing2020.claims.of_the_paper.performance import accuracy
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import BENCHMARKS, Benchmark
from studies.benzing2020.published import ACCURACIES, KRONECKER_LAPLACE

_MATRICES = ("rotated EWC, many tasks", "Kronecker EWC, many tasks")


def best(benchmark: Benchmark, *algorithms: str) -> Statistic:
    """Return the accuracy of the best of some algorithms."""
    return lambda results: max((results.accuracy(benchmark, name) for name in algorithms), key=lambda e: e.mean)


def _ahead_of_diagonal(results: Results) -> Estimate:
    """Return by how many points the better matrix form leads over many tasks."""
    better = max(_MATRICES, key=lambda name: results.accuracy("P-MNIST", name).mean)
    return difference("P-MNIST", better, "diagonal EWC, many tasks")(results)


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
            AtLeast(0.0, errors=2),
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
        best("P-MNIST", *_MATRICES),
        AtLeast(KRONECKER_LAPLACE.mean),
        own=True,
    ),
    Claim(
        "own-many-tasks-beat-diagonal",
        ("forms",),
        "Over 50 permutations of MNIST, the diagonal stays below it.",
        "accuracy of the better of both less that of the diagonal",
        _ahead_of_diagonal,
        AtLeast(0.0, errors=2),
        own=True,
    ),
)
