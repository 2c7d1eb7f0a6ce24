"""Items that are one table of accuracies: large batches, longer training, and SGD."""

import dataclasses
from collections.abc import Callable

from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.drawing.captions import large_batches
from studies.benzing2020.drawing.tables.accuracy_table import accuracy_table
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import rows_of_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset


def _accuracy_item(
    name: str,
    title: str,
    caption: Callable[[Preset], str],
    algorithms: tuple[str, ...],
    benchmarks: tuple[Benchmark, ...] = BENCHMARKS,
) -> PaperItem:
    """Return an item that compares some algorithms on some benchmarks."""
    rows = tuple(dataclasses.replace(ALGORITHMS[algorithm], benchmarks=benchmarks) for algorithm in algorithms)
    return PaperItem(
        name,
        title,
        runs=lambda preset: rows_of_runs(preset, rows),
        draw=lambda results: [accuracy_table(name, caption(results.preset), results, rows)],
        algorithms=rows,
    )


_NOT_ON_DIGITS = (
    " The digits are too few to show it: their gradients have little noise even at the usual size, and both measures "
    "lose about as much."
)


def _of_large_batches(preset: Preset) -> str:
    return (
        f"{large_batches(preset)} They have less noise. According to the paper SI lives on noise and loses accuracy; "
        "SOS does not, if α corrects it. With halves, the two gradients that α needs are those of one batch's halves, "
        "and not of two batches." + _NOT_ON_DIGITS * (preset.thresholds == "digits")
    )


def _of_long_training(preset: Preset) -> str:
    usual, long = (preset.spec("P-MNIST", "SI", variant).settings.epochs for variant in ("usual", "long training"))
    as_there = "" if preset.follows_the_paper else "; in the paper, 200 in place of 20"
    return (
        f"SI with {long} epochs a task in place of {usual}{as_there}. Both have the same strength, since the paper "
        "gives none for longer training; a weaker hold may suit it better."
    )


def _of_training_factors(preset: Preset) -> str:
    usual = preset.spec("P-MNIST", "SI").settings.learning_rate
    slow = preset.stages["P-MNIST"].variants["a tenth of the rate"]["learning_rate"]
    return (
        f"What the paper says that it tested, without numbers: SI with a learning rate of {slow:g} in place of "
        f"{usual:g}, and with weights and biases that begin as torch draws them for linear layers, in place of "
        "Glorot-uniform ones. "
        f"Both have strengths of their own. {preset.strengths}"
    )


def _of_open_searches(preset: Preset) -> str:
    long = preset.spec("P-MNIST", "SI", "long training").settings.epochs
    return (
        "Strengths that the first searches left open: L2 that grows with the tasks, with weights drawn anew before "
        f"each, and SI with {long} epochs at a strength of its own. {preset.strengths}"
    )


def _of_sgd(preset: Preset) -> str:
    rate = preset.stages["P-MNIST"].variants["SGD"]["learning_rate"]
    return (
        f"SI and SIU with SGD and momentum, at a learning rate of {rate:g}, beside Adam. The paper gives no rate, "
        f"reports similar accuracies without numbers, and saw runs diverge now and then. {preset.strengths}"
    )


BATCH_SIZE = _accuracy_item(
    "batch-size",
    "Large batches: SI and SOS",
    _of_large_batches,
    ("SI", "SI(2048)", "SOS", "SOS(2048)", "SOS(2048, halves)", "SOS(2048, α=0)"),
)
TRAINING_FACTORS = _accuracy_item(
    "training-factors",
    "Appendix: the learning rate and the initial weights",
    _of_training_factors,
    ("SI", "SI, a tenth of the rate", "SI, torch's initial weights"),
    benchmarks=("P-MNIST",),
)
LONG_TRAINING = _accuracy_item(
    "long-training",
    "Appendix: SI trained for longer",
    _of_long_training,
    ("SI", "SI, long training"),
    benchmarks=("P-MNIST",),
)
SGD = _accuracy_item(
    "sgd",
    "Appendix: SI and SIU with SGD and momentum",
    _of_sgd,
    ("SI", "SI, SGD", "SIU", "SIU, SGD"),
    benchmarks=("P-MNIST",),
)
OPEN_SEARCHES = _accuracy_item(
    "open-searches",
    "Strengths that were left open: L2 with re-initialisation, and SI trained for longer",
    _of_open_searches,
    ("L2-growing", "L2-growing, re-init", "SI", "SI, long training", "SI, long training, searched"),
    benchmarks=("P-MNIST",),
)
