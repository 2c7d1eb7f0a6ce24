"""The algorithms that are compared by their accuracy: the rows of Table 1, what the text adds to them, and our own."""

from dataclasses import dataclass

from studies.benzing2020.presets import BENCHMARKS, Benchmark, Variant
from studies.benzing2020.presets.window_variants import CELLS


@dataclass(frozen=True)
class Algorithm:
    """A row of the table: a measure, and what is unusual about its runs."""

    name: str
    measure: str
    variant: Variant = "usual"
    benchmarks: tuple[Benchmark, ...] = BENCHMARKS
    experiment: str | None = None
    """What its Table 1 numbers it with: (1) explains SI, (2) shows what large batches do, (3) explains MAS."""


TABLE1 = (
    Algorithm("SI", "SI", experiment="(1)"),
    Algorithm("SIB", "SIB", experiment="(1)"),
    Algorithm("SIU", "SIU", experiment="(1)"),
    Algorithm("SOS", "SOS", experiment="(1)"),
    Algorithm("SI(2048)", "SI", "large batch", experiment="(2)"),
    Algorithm("SOS(2048)", "SOS", "large batch", experiment="(2)"),
    Algorithm("MAS", "MAS", experiment="(3)"),
    Algorithm("AF", "AF", experiment="(3)"),
    Algorithm("sqrtFisher", "sqrtFisher", experiment="(3)"),
    Algorithm("EWC", "EWC", experiment="(3)"),
)

BESIDE_TABLE1 = (
    Algorithm("SOS(2048, α=0)", "SOS", "large batch, α = 0"),
    Algorithm("MAS-logits", "MAS-logits"),
    Algorithm("MAS, c = 1000", "MAS", "MASX's strength", benchmarks=("CIFAR",)),
    Algorithm("MASX", "MASX"),
    Algorithm("fine-tune", "fine-tune"),
    Algorithm("L2", "L2", benchmarks=("P-MNIST",)),
    Algorithm("L2-growing", "L2-growing", benchmarks=("P-MNIST",)),
    Algorithm("magnitude", "magnitude", benchmarks=("P-MNIST",)),
    Algorithm("SI, all tasks", "SI", "all tasks", benchmarks=("CIFAR",)),
    Algorithm("SOS, all tasks", "SOS", "all tasks", benchmarks=("CIFAR",)),
    Algorithm("EWC, all tasks", "EWC", "all tasks", benchmarks=("CIFAR",)),
)

ELSEWHERE = (
    Algorithm("SOS(2048, halves)", "SOS", "large batch, halves"),
    Algorithm("SI, a tenth of the rate", "SI", "a tenth of the rate", benchmarks=("P-MNIST",)),
    Algorithm("SI, torch's initial weights", "SI", "torch's initial weights", benchmarks=("P-MNIST",)),
    Algorithm("SI, long training", "SI", "long training", benchmarks=("P-MNIST",)),
    Algorithm("L2-growing, re-init", "L2-growing", "re-init", benchmarks=("P-MNIST",)),
    Algorithm("SI, long training, searched", "SI", "long training, searched", benchmarks=("P-MNIST",)),
    Algorithm("SI, SGD", "SI", "SGD", benchmarks=("P-MNIST",)),
    Algorithm("SIU, SGD", "SIU", "SGD", benchmarks=("P-MNIST",)),
)

# Beyond the diagonal: the same Fisher information in other coordinates. Beside each stands a diagonal with the same
# samples and the same search.
IN_TWO_FORMS = (Algorithm("rotated EWC", "EWC", "rotated"), Algorithm("diagonal EWC", "EWC", "diagonal"))

BY_SAMPLES = (
    Algorithm("rotated EWC, few samples, damped", "EWC", "rotated, few samples, damped", benchmarks=("P-MNIST",)),
    Algorithm("rotated EWC, few samples", "EWC", "rotated, few samples", benchmarks=("P-MNIST",)),
    Algorithm("diagonal EWC, few samples", "EWC", "diagonal, few samples", benchmarks=("P-MNIST",)),
    Algorithm("rotated EWC, more samples", "EWC", "rotated, more samples", benchmarks=("P-MNIST",)),
    Algorithm("diagonal EWC, more samples", "EWC", "diagonal, more samples", benchmarks=("P-MNIST",)),
    Algorithm("rotated EWC, all samples", "EWC", "rotated, all samples", benchmarks=("P-MNIST",)),
    Algorithm("diagonal EWC, all samples", "EWC", "diagonal, all samples", benchmarks=("P-MNIST",)),
)

OVER_MANY_TASKS = (
    Algorithm("rotated EWC, many tasks", "EWC", "rotated, many tasks", benchmarks=("P-MNIST",)),
    Algorithm("Kronecker EWC, many tasks", "EWC", "Kronecker, many tasks", benchmarks=("P-MNIST",)),
    Algorithm("diagonal EWC, many tasks", "EWC", "diagonal, many tasks", benchmarks=("P-MNIST",)),
)

# Other ways of keeping, each with as many tries for its settings, and what none is likely to beat.
KEEPING = (
    Algorithm("EWC, tried alike", "EWC", "tried alike"),
    Algorithm("replay, one a class", "fine-tune", "replay, one a class"),
    Algorithm("replay, several a class", "fine-tune", "replay, several a class"),
    Algorithm("LwF", "fine-tune", "LwF"),
    Algorithm("DER++", "fine-tune", "DER++"),
)
BOUNDS = (
    Algorithm("joint training", "fine-tune", "jointly"),
    Algorithm("training anew", "fine-tune", "anew"),
)

# What α is for: on Split CIFAR, where a run takes long, without the cells that say least.
_ON_MNIST_ALONE = (
    "large batch, middle window, α = 0",
    "large batch, short window",
    "large batch, tied window, another rate, α = 0",
    "large batch, long window",
    "large batch, short window, another rate, α = 0",
)
WINDOWS = tuple(
    Algorithm(
        f"SOS{cell.replace('large batch', '(2048)')}",
        "SOS",
        cell,
        benchmarks=("P-MNIST",) if cell in _ON_MNIST_ALONE else BENCHMARKS,
    )
    for cell in CELLS
)

# What Appendix B expects of SI and not of SOS.
PREDICTIONS = (
    Algorithm("SI, easy first", "SI", "easy first", benchmarks=("CIFAR",)),
    Algorithm("SI, hard first", "SI", "hard first", benchmarks=("CIFAR",)),
    Algorithm("SOS, easy first", "SOS", "easy first", benchmarks=("CIFAR",)),
    Algorithm("SOS, hard first", "SOS", "hard first", benchmarks=("CIFAR",)),
    Algorithm("SI, decaying rate", "SI", "decaying rate", benchmarks=("P-MNIST",)),
    Algorithm("SOS, decaying rate", "SOS", "decaying rate", benchmarks=("P-MNIST",)),
    Algorithm("SOS, SGD", "SOS", "SGD", benchmarks=("P-MNIST",)),
    Algorithm("SI, unequal sizes", "SI", "unequal sizes", benchmarks=("P-MNIST",)),
    Algorithm("SOS, unequal sizes", "SOS", "unequal sizes", benchmarks=("P-MNIST",)),
)

_GROUPS = (
    TABLE1,
    BESIDE_TABLE1,
    ELSEWHERE,
    IN_TWO_FORMS,
    BY_SAMPLES,
    OVER_MANY_TASKS,
    KEEPING,
    BOUNDS,
    WINDOWS,
    PREDICTIONS,
)
ALGORITHMS = {algorithm.name: algorithm for group in _GROUPS for algorithm in group}
