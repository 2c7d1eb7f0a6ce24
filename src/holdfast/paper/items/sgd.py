"""Appendix: SI and SIU with SGD and momentum in place of Adam."""

from holdfast.paper.items.accuracies import accuracy_item

ITEM = accuracy_item(
    "sgd",
    "Appendix: SI and SIU with SGD and momentum",
    lambda preset: (
        "SI and SIU with SGD and momentum, beside Adam. The paper reports similar accuracies without numbers, and runs "
        f"that diverged now and then. {preset.strengths}"
    ),
    ("SI", "SI, SGD", "SIU", "SIU, SGD"),
    benchmarks=("P-MNIST",),
)
