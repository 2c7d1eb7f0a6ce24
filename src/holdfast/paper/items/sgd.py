"""Appendix: SI and SIU with SGD and momentum in place of Adam."""

from holdfast.paper.items.accuracies import accuracy_item
from holdfast.paper.presets import Preset


def _caption(preset: Preset) -> str:
    rate = preset.stages["P-MNIST"].variants["SGD"]["learning_rate"]
    return (
        f"SI and SIU with SGD and momentum, at a learning rate of {rate:g}, beside Adam. The paper gives no rate, "
        f"reports similar accuracies without numbers, and saw runs diverge now and then. {preset.strengths}"
    )


ITEM = accuracy_item(
    "sgd",
    "Appendix: SI and SIU with SGD and momentum",
    _caption,
    ("SI", "SI, SGD", "SIU", "SIU, SGD"),
    benchmarks=("P-MNIST",),
)
