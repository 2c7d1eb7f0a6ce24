"""Large batches: what they do to SI and SOS, and what α is for."""

from holdfast.paper.items.accuracies import accuracy_item

ITEM = accuracy_item(
    "batch-size",
    "Large batches: SI and SOS",
    "Batches eight times as large have less noise. According to the paper SI lives on noise and loses accuracy; SOS "
    "does not, if α corrects it.",
    ("SI", "SI(2048)", "SOS", "SOS(2048)", "SOS(2048, α=0)"),
)
