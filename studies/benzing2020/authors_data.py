"""Numbers of the authors' own public outputs, each with its place: a second reference beside the paper's text.

They are in the repository freedbee/continual_regularisation on GitHub: outputs of its notebooks, and raw numbers that
its history holds. Some belong to an earlier version of the paper, most are of one run, and what stands in a plot alone
was read off it, to about 0.005. So none has an error, and where something else differs, the remark says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anchorhold_lab.report import Measured
from studies.benzing2020.presets import Benchmark

NAMED = "the authors' data"
"""What tables and figures call them."""


@dataclass(frozen=True)
class Theirs:
    """A number of the authors' data."""

    value: float
    source: str
    remark: str = ""
    """What is different about it."""
    digits: int = 3

    def __str__(self) -> str:
        return f"{self.value:.{self.digits}g}"

    def cell(self, decimals: int) -> Measured:
        """Return what stands in a table."""
        return Measured(self.value, None, decimals=decimals)


_PLOT = "CIFAR/scatter_repetitions/cifar_correlation_plot.ipynb, cell 12, commit f250508; read off the plot, five runs"
_PRINTED = "CIFAR/scatter_repetitions/cifar_scatter_plot.ipynb, cell 3, commit f250508; printed, one run"
_MNIST_PLOT = (
    "MNIST/scatter_repetitions/mnist_correlation_plot.ipynb, cell 6, commit f250508; read off the plot, one run"
)
_TESTS = "CIFAR/read_results.ipynb, cell 0, commit f250508; printed, one run each"
_SUMMARY = "MNIST/summary_2.txt, commit 0928701; two runs"
_SUMS = "CIFAR/summed_importances_run_old.pickle, commit e85c643; one run"
_MNIST_SUMS = "MNIST/summed_importances_full-grad=True_run_old.pickle, commit 782708c; one run"
_WEIGHTS = "CIFAR/all_measures_run_old_subsampled.pickle, commit 0928701; 10,000 weights of one run"
_MNIST_PRINTED = "MNIST/vis_scatter_plots.ipynb, cell 3, commit 0928701; printed, one run"

_NOT_CLAMPED = "their script does not clamp here"
SUM_OF_SIZES = "with Σ|g|, which they had at the time, in place of SOS"
_NOT_RESCALED = "before rescaling"
_TASK_1 = "the first task alone"

ACCURACIES: Mapping[tuple[Benchmark, str], Theirs] = {
    ("P-MNIST", "SI"): Theirs(97.24, _SUMMARY, digits=4),
    ("CIFAR", "SI"): Theirs(73.88, _TESTS, digits=4),
    ("CIFAR", "SIB"): Theirs(75.22, _TESTS, digits=4),
    ("CIFAR", "SIU"): Theirs(73.53, _TESTS, digits=4),
    ("CIFAR", "SOS"): Theirs(74.36, _TESTS, digits=4),
    ("CIFAR", "SI(2048)"): Theirs(70.23, _TESTS, digits=4),
    ("CIFAR", "SOS(2048)"): Theirs(74.85, _TESTS, digits=4),
}
"""Test accuracies in per cent, by benchmark and algorithm."""

Series = Mapping[str, Sequence[float]]
"""Numbers of one task after another, from the first, by what they are of."""

WITH_SOS: Mapping[Benchmark, Series] = {
    "CIFAR": {
        "SI": (0.819, 0.44, 0.44, 0.43, 0.44, 0.41),
        "SIB": (0.822, 0.46, 0.45, 0.44, 0.45, 0.42),
        "SIU": (0.807, 0.37, 0.37, 0.35, 0.36, 0.34),
        "SI (no re-init)": (0.82, 0.97, 0.98, 0.98, 0.98, 0.99),
        "SI (c = 0)": (0.82, 0.97, 0.97, 0.97, 0.96, 0.97),
    },
}
"""Correlations with SOS after each task of Figure 1: divided by the path length, and not clamped."""

WITH_SOS_BEFORE: Mapping[Benchmark, Series] = {
    "P-MNIST": {
        "SI": (0.99,) * 10,
        "SIB": (0.98, 0.98, 0.98, 0.98, 0.98, 0.98, 0.99, 0.99, 0.99, 0.98),
        "SIU": (0.69, 0.71, 0.69, 0.70, 0.71, 0.72, 0.72, 0.72, 0.71, 0.70),
    },
    "CIFAR": {"SI": (0.96,)},
}
"""The same before rescaling; what is printed for CIFAR is cut off after two decimals."""

WITH_MAS: Mapping[Benchmark, Series] = {
    "CIFAR": {
        "MASX": (0.9999, 1.0000, 1.0000, 0.9999, 0.9999, 0.9999),
        "AF": (0.9995, 0.9998, 0.9999, 0.9998, 0.9997, 0.9997),
        "sqrtFisher": (0.9932, 0.9948, 0.9855, 0.9913, 0.9875, 0.9911),
    },
    "P-MNIST": {"AF": (0.963,)},
}
"""Correlations with MAS after each task."""

SUMS: Mapping[Benchmark, Series] = {
    "P-MNIST": {"SI": (93.89,), "SIU": (12.59,), "full gradient": (13.02,), "decrease in loss": (2.296,)},
    "CIFAR": {
        "SI": (135.1, 8.766, 10.60, 10.94, 13.08, 11.27),
        "SIU": (44.64, 3.456, 3.644, 3.289, 3.364, 2.424),
        # From the loss of the first batch to the mean of the last twenty.
        "decrease in loss": (2.304, 2.276, 2.248, 2.217, 2.117, 2.076),
    },
}
"""Sums over all protected weights before rescaling, and what they are meant to track."""

NEGATIVE: Mapping[Benchmark, Series] = {"CIFAR": {"SI": (0.0790, 0.2312, 0.1784, 0.1509, 0.1574, 0.1417)}}
"""Shares of weights whose importance is negative before rescaling.

Their SI is clamped already, so it was taken as the sum of SIU and SIB, which it is. After the first task the negative
ones hold 0.012 % of what the positive ones sum to, after the last 22 %.
"""

WITHOUT_TOP: Mapping[str, Mapping[str, Theirs]] = {
    share: {name: Theirs(value, _WEIGHTS, SUM_OF_SIZES) for name, value in values.items()}
    for share, values in {
        "0.01": {"SI": 0.987, "SIB": 0.969, "SIU": 0.911},
        "0.05": {"SI": 0.980, "SIB": 0.971, "SIU": 0.577},
    }.items()
}
"""Correlations on CIFAR's first task before rescaling, without a share of weights: those with the highest SIU."""


def _lead(series: Series, name: str) -> float:
    """Return by how much a measure leads SIU, on the task where that is least."""
    return min(own - siu for own, siu in zip(series[name], series["SIU"], strict=True))


def _ratio(series: Series, a: str, b: str, task: int) -> float:
    """Return by how much one sum exceeds another, relative to the latter."""
    return series[a][task] / series[b][task] - 1


def _difference(better: str, worse: str) -> Theirs:
    return Theirs(ACCURACIES["CIFAR", better].value - ACCURACIES["CIFAR", worse].value, _TESTS)


_CIFAR, _MNIST = WITH_SOS["CIFAR"], WITH_SOS_BEFORE["P-MNIST"]
_CIFAR_SUMS, _MNIST_TASK_1 = SUMS["CIFAR"], SUMS["P-MNIST"]
_TASKS = range(6)

BY_CLAIM: Mapping[str, Theirs] = {
    "bias-dominates": Theirs(_ratio(_MNIST_TASK_1, "SI", "SIU", 0), _MNIST_SUMS),
    "a1-p-mnist": Theirs(_ratio(_MNIST_TASK_1, "SI", "SIU", 0), _MNIST_SUMS, _TASK_1),
    "a1-cifar": Theirs(min(_ratio(_CIFAR_SUMS, "SI", "SIU", task) for task in _TASKS), _SUMS),
    "siu-tracks-full-gradient-p-mnist": Theirs(
        abs(_ratio(_MNIST_TASK_1, "SIU", "full gradient", 0)), _MNIST_SUMS, _TASK_1, digits=2
    ),
    "sums-above-decrease-siu-p-mnist": Theirs(
        _ratio(_MNIST_TASK_1, "SIU", "decrease in loss", 0), _MNIST_SUMS, _TASK_1
    ),
    "sums-above-decrease-full-p-mnist": Theirs(
        _ratio(_MNIST_TASK_1, "full gradient", "decrease in loss", 0), _MNIST_SUMS, _TASK_1
    ),
    "sums-above-decrease-siu-cifar": Theirs(
        min(_ratio(_CIFAR_SUMS, "SIU", "decrease in loss", task) for task in _TASKS[:-1]), _SUMS, digits=2
    ),
    "sum-below-decrease-on-last-cifar-task": Theirs(
        _ratio(_CIFAR_SUMS, "SIU", "decrease in loss", -1), _SUMS, digits=2
    ),
    "negative-on-later-cifar-tasks": Theirs(min(NEGATIVE["CIFAR"]["SI"][1:]), _WEIGHTS),
    "none-negative-on-first-cifar-task": Theirs(NEGATIVE["CIFAR"]["SI"][0], _WEIGHTS),
    "a2-p-mnist": Theirs(min(_MNIST["SI"]), _MNIST_PLOT, _NOT_RESCALED),
    "a2-cifar": Theirs(WITH_SOS_BEFORE["CIFAR"]["SI"][0], _PRINTED, "cut off after two decimals"),
    "a2-cifar-rescaled": Theirs(_CIFAR["SI"][0], _PLOT),
    **{
        f"bias-explains-second-order-{name.lower()}": Theirs(_lead(_MNIST, name), _MNIST_PLOT, _NOT_RESCALED, digits=2)
        for name in ("SI", "SIB")
    },
    **{
        f"bias-explains-second-order-{name.lower()}-cifar": Theirs(_lead(_CIFAR, name), _PLOT, _NOT_CLAMPED, digits=2)
        for name in ("SI", "SIB")
    },
    "regularisation-weakens-tie": Theirs(
        _CIFAR["SI"][0] - sum(_CIFAR["SI"][1:]) / len(_CIFAR["SI"][1:]), _PLOT, _NOT_CLAMPED, digits=2
    ),
    **{
        f"control-restores-{which}tie-{name}": Theirs(min(_CIFAR[f"SI ({control})"][first:]), _PLOT, _NOT_CLAMPED)
        for name, control in (("no-re-init", "no re-init"), ("c-0", "c = 0"))
        for which, first in (("", 0), ("later-", 1))
    },
    **{f"without-top-{name.lower()}": theirs for name, theirs in WITHOUT_TOP["0.05"].items()},
    **{f"without-top-1-{name.lower()}": theirs for name, theirs in WITHOUT_TOP["0.01"].items()},
    "b1-cifar": Theirs(min(WITH_MAS["CIFAR"]["MASX"]), _WEIGHTS, digits=4),
    "b2-cifar": Theirs(min(WITH_MAS["CIFAR"]["AF"]), _WEIGHTS, digits=4),
    "b3-cifar": Theirs(min(WITH_MAS["CIFAR"]["sqrtFisher"]), _WEIGHTS),
    "b2-p-mnist": Theirs(WITH_MAS["P-MNIST"]["AF"][0], _MNIST_PRINTED, _TASK_1),
    "siu-worse-cifar": _difference("SI", "SIU"),
    "sib-not-worse-cifar": _difference("SI", "SIB"),
    "large-batches-hurt-si-cifar": _difference("SI", "SI(2048)"),
    "large-batches-spare-sos-cifar": _difference("SOS", "SOS(2048)"),
}
"""The statistic of each claim that they bear on, by its name."""
