r"""What an adapter is: parameters through which the weight of a layer changes, while the weight itself stays as it is.

A layer with an adapter computes with the *merged* weight :math:`W + \Delta`. What :math:`\Delta` is made of has no
meaning of its own: in LoRA (Hu et al. 2021, arXiv 2106.09685) it is :math:`sBA`, and :math:`BM, M^{-1}A` are the same
adapter. An :class:`Adapter` says of one module which layer it changes and by what.

What all of PEFT's layers with adapters have in common is a base layer, and adapters by name of which some are active.
They are known by what they have, so that PEFT itself is not asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from torch import nn

from anchorhold.adapters.changes import Change
from anchorhold.adapters.mean_change import Between, Term, Values, terms_between


class Adapter(ABC):
    """A module whose layer has an adapter.

    Args:
        module: the module, which is called in the layer's place.
    """

    name: ClassVar[str] = ""
    """What the kind is registered as."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @classmethod
    @abstractmethod
    def describes(cls, module: nn.Module) -> bool:
        """Whether a module is of this kind."""

    @property
    @abstractmethod
    def layer(self) -> nn.Module:
        """The layer that is adapted, somewhere within the module; its weight is never read."""

    @abstractmethod
    def change(self) -> Change | None:
        """Return Δ as the module computes with it now, differentiable in :meth:`parameters`; ``None`` for nothing."""

    def parameters(self) -> list[nn.Parameter]:
        """Return what Δ may be made of: by default, all parameters of the module that are not the layer's."""
        layers = {id(parameter) for parameter in self.layer.parameters()}
        return [parameter for parameter in self.module.parameters() if id(parameter) not in layers]

    def refusal(self) -> str | None:
        """Return why this one's weight is not W + Δ, where it is not."""
        return None

    def terms(self) -> Sequence[Term]:
        """Return what Δ is a sum of, each linear in each of its parameters; nothing where that is not known."""
        return ()

    def between(self, now: Values, then: Values, share: float) -> Between | None:
        """Return values of the parameters by which Δ is share·Δ + (1 − share)·Δ*; ``None`` where nobody knows any.

        Args:
            now: the parameters' values of Δ.
            then: those of Δ*.
            share: of now's.
        """
        return terms_between(self.terms(), now, then, share)


class PeftLayer(Adapter):
    """One of PEFT's layers."""

    module: Any

    @property
    def layer(self) -> nn.Module:
        found: nn.Module = self.module.get_base_layer()
        return found

    def acting(self, own: Collection[str]) -> list[str]:
        """Return which of this layer's own adapters it computes with: those that are active, or merged; or none."""
        module = self.module
        if module.disable_adapters:
            return []
        return [name for name in (module.merged_adapters if module.merged else module.active_adapters) if name in own]

    def refusal(self) -> str | None:
        """Refuse layers that are no single matrix."""
        if getattr(self.layer, "groups", 1) != 1:
            return "its convolution has groups, each with inputs of its own"
        return None
