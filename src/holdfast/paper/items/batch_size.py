"""Large batches: what they do to SI and SOS, and what α is for."""

from holdfast.paper.items.accuracies import accuracy_item
from holdfast.paper.presets import Preset
from holdfast.paper.wording import large_batches

_NOT_ON_DIGITS = (
    " The digits are too few to show it: their gradients have little noise even at the usual size, and both measures "
    "lose about as much."
)


def _caption(preset: Preset) -> str:
    return (
        f"{large_batches(preset)} They have less noise. According to the paper SI lives on noise and loses accuracy; "
        "SOS does not, if α corrects it." + _NOT_ON_DIGITS * (preset.thresholds == "digits")
    )


ITEM = accuracy_item(
    "batch-size",
    "Large batches: SI and SOS",
    _caption,
    ("SI", "SI(2048)", "SOS", "SOS(2048)", "SOS(2048, α=0)"),
)
