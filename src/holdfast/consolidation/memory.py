"""All that a Consolidator remembers, shared by the parts that read it, write it and save it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from holdfast.consolidation.ledger import Ledger
from holdfast.consolidation.selection import Selection
from holdfast.errors import ProtectError


@dataclass
class Memory:
    """The protected parameters of a model, what they are held to, and what is known about the current task."""

    model: nn.Module
    selection: Selection
    ledgers: dict[str, Ledger]
    """The account of every measure, by name."""
    driver: str
    """The name of the measure that drives the penalty."""
    strength: float
    decay: float
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    anchor: dict[str, Tensor] = field(default_factory=dict)
    """θ*, the weights after the last consolidated task."""
    tasks: int = 0
    start: dict[str, Tensor] = field(default_factory=dict)
    """θ(0), the weights just before the current task's first step: after any re-initialisation, so not the anchor."""
    steps: dict[str, int] = field(default_factory=dict)
    """How many steps each parameter has taken in the current task."""

    def __post_init__(self) -> None:
        self.parameters = self.selection.find(self.model)

    @property
    def importance(self) -> dict[str, Tensor]:
        """The total importance Ω that the penalty uses."""
        return self.ledgers[self.driver].held

    def refresh(self) -> None:
        """Look at the model again: take in parameters that were added, unfrozen, replaced or moved."""
        present = dict(self.model.named_parameters())
        found = self.selection.find(self.model)
        # A parameter that is held stays so when it is frozen, which the default selection would not see.
        self.parameters = {name: p for name, p in present.items() if name in found or name in self.anchor}
        for name, parameter in self.parameters.items():
            anchor = self.anchor.get(name)
            if anchor is not None and anchor.shape != parameter.shape:
                raise ProtectError(
                    f"{name!r} was consolidated with shape {tuple(anchor.shape)} and now has {tuple(parameter.shape)}. "
                    f"Restore it, or call forget({name!r}) to let go of what was learned there."
                )
            self._follow(name, parameter.device)

    def restart_task(self) -> None:
        """Start the current task's account anew."""
        for ledger in self.ledgers.values():
            ledger.restart()
        self.start = {}
        self.steps = {}

    def forget(self, name: str) -> None:
        """Drop everything known about a parameter."""
        if name not in self.parameters and name not in self.anchor:
            raise ProtectError(f"{name!r} is not a protected parameter; see Consolidator.parameters for those.")
        for kept in self._tensors():
            kept.pop(name, None)
        self.steps.pop(name, None)

    def _follow(self, name: str, device: torch.device) -> None:
        """Move what is kept about a parameter to where the parameter is."""
        for kept in self._tensors():
            if name in kept and kept[name].device != device:
                kept[name] = kept[name].to(device)

    def _tensors(self) -> list[dict[str, Tensor]]:
        ledgers = self.ledgers.values()
        return [
            self.anchor,
            self.start,
            *(d for ledger in ledgers for d in (ledger.total, ledger.held, ledger.running)),
        ]
