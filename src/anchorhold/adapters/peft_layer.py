"""What all of PEFT's layers with adapters have in common: a base layer, and adapters by name of which some are active.

They are known by what they have, so that PEFT itself is not asked for.
"""

from collections.abc import Collection
from typing import Any

from torch import nn

from anchorhold.adapters.base import Adapter


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
