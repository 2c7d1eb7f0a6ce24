"""Appendix: SI on Permuted MNIST, trained for longer."""

from holdfast.paper.items.accuracies import accuracy_item
from holdfast.paper.presets import Preset


def _caption(preset: Preset) -> str:
    usual, long = (preset.spec("P-MNIST", "SI", variant).settings.epochs for variant in ("usual", "long training"))
    as_there = "" if preset.follows_the_paper else "; in the paper, 200 in place of 20"
    return (
        f"SI with {long} epochs a task in place of {usual}{as_there}. Both have the same strength, since the paper "
        "gives none for longer training; a weaker hold may suit it better."
    )


ITEM = accuracy_item(
    "long-training",
    "Appendix: SI trained for longer",
    _caption,
    ("SI", "SI, long training"),
    benchmarks=("P-MNIST",),
)
