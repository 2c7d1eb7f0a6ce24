"""Appendix: SI on Permuted MNIST, trained for longer."""

from holdfast.paper.items.accuracies import accuracy_item

ITEM = accuracy_item(
    "long-training",
    "Appendix: SI trained for longer",
    "SI with 200 epochs a task in place of 20, or with as many more in smaller presets.",
    ("SI", "SI, 200 epochs"),
    benchmarks=("P-MNIST",),
)
