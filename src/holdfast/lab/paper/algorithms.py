"""The algorithms that are compared by their accuracy: the rows of Table 1, and those that the text adds to them."""

from dataclasses import dataclass

from holdfast.lab.paper.presets import BENCHMARKS, Benchmark, Variant


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
    Algorithm("SI, long training", "SI", "long training", benchmarks=("P-MNIST",)),
    Algorithm("SI, SGD", "SI", "SGD", benchmarks=("P-MNIST",)),
    Algorithm("SIU, SGD", "SIU", "SGD", benchmarks=("P-MNIST",)),
)

ALGORITHMS = {algorithm.name: algorithm for algorithm in (*TABLE1, *BESIDE_TABLE1, *ELSEWHERE)}
