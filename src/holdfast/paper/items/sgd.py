"""Appendix: SI and SIU with SGD and momentum in place of Adam."""

from holdfast.paper.items.accuracies import accuracy_item

ITEM = accuracy_item(
    "sgd",
    "Appendix: SI and SIU with SGD and momentum",
    "SI and SIU with SGD and momentum, beside Adam. The paper reports similar accuracies without numbers, and runs "
    "that diverged now and then. Strengths that nobody has published were searched for on validation data.",
    ("SI", "SI, SGD", "SIU", "SIU, SGD"),
    benchmarks=("P-MNIST",),
)
