"""Adapters on the way back: what they add to weights goes along a straight line, not the factors that it is made of."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.adapters import Adapter, every_adapter, refuse_merged_adapters
from anchorhold.errors import ConfigurationError, warn
from anchorhold.guard.core import Core
from anchorhold.tensors.matrices import products_in
from anchorhold.tensors.sharding import like_parameter, whole
from anchorhold.tensors.storage import running_dtype, to_compute

SAID_FROM = 0.05
"""The error of a mean, as a share of what was learned, from which it is told of."""


class Means(NamedTuple):
    """Where adapters' parameters go for what they add to be a mean, and how far it is from being one."""

    values: dict[str, Tensor]
    """By the parameters' names."""
    errors: dict[str, float]
    """By the adapters' paths, as shares of what was learned: of each adapter whose mean is known."""


class AveragedAdapters:
    """The adapters whose parameters have an anchor, and values of those between it and others.

    Args:
        core: what the guard knows.
        held: the weights that have an anchor.
    """

    def __init__(self, core: Core, held: Mapping[str, nn.Parameter]) -> None:
        self._anchor = core.state.anchor
        self._names = {parameter: name for name, parameter in held.items()}
        self._adapters: dict[str, Adapter] = {}
        self._others: list[str] = []
        refuse_merged_adapters(core.runtime.model, {id(p) for p in held.values()})
        for found in every_adapter(core.runtime.model, {id(p) for p in held.values()}):
            module = getattr(found.adapter, "module", None)
            if getattr(module, "disable_adapters", False):
                raise ConfigurationError(
                    f"The adapter of {found.weight!r} is switched off for now, and what it adds to the weight, whose "
                    "mean is to be taken, is nothing. Switch it on first: leave model.disable_adapter(), or call "
                    "model.enable_adapter_layers()."
                )
            if found.adapter is None or found.refusal is not None or self._is_held_in_part(found.adapter):
                self._others.append(found.path)
            else:
                self._adapters[found.path] = found.adapter
        self.newcomers = newcomers(core)
        """Adapters that came after the last consolidation: nothing says what they were, and they stay as they are."""

    def _is_held_in_part(self, adapter: Adapter) -> bool:
        """Return whether some of what makes a product has an anchor, and some that is trained has none."""
        parts = [term.parameters for term in adapter.terms()] or [tuple(adapter.parameters())]
        return any(len({p in self._names for p in part if p.requires_grad}) > 1 for part in parts)

    @torch.no_grad()
    def between(self, own: Mapping[str, Tensor], share: float) -> Means:
        """Return adapters' parameters by which Δ is the mean of that at the anchor and that of given values.

        Args:
            own: the given values, by name.
            share: of these; at its ends, parameters are one or the other.
        """
        means = Means({}, {})
        if not 0 < share < 1:
            return means

        def now(parameter: nn.Parameter) -> Tensor:
            name = self._names.get(parameter)
            return whole(parameter.detach() if name is None else own[name]).to(running_dtype(parameter))

        def then(parameter: nn.Parameter) -> Tensor:
            name = self._names.get(parameter)
            if name is None:  # a part that nothing trains, which is what it was
                return now(parameter)
            return whole(to_compute(self._anchor[name], parameter)).to(running_dtype(parameter))

        for path, adapter in self._adapters.items():
            with products_in("float32", adapter.parameters()[0].device):
                found = adapter.between(now, then, share)
            if found is not None:
                for parameter, value in found.values.items():
                    if name := self._names.get(parameter):
                        means.values[name] = like_parameter(value, parameter)
                means.errors[path] = found.error
        return means

    def warn_of(self, means: Means, share: float) -> None:
        """Say of which adapters what they add will not be the mean, or not nearly."""
        if not 0 < share < 1:
            return
        others = [*self._others, *(path for path in self._adapters if path not in means.errors)]
        if others:
            warn(
                f"average(share={share:g}) moves the adapters of {_some(others)} along the line of their own "
                "parameters: what they add to the weights afterwards is not the mean of what they added before and "
                "after. Nobody knows parameters of their kind that would add just that; anchorhold.merge averages the "
                "weights themselves."
            )
        errors = {path: error for path, error in means.errors.items() if error > SAID_FROM}
        if errors:
            worst = max(errors, key=lambda path: errors[path])
            warn(
                f"average(share={share:g}): the mean of two adapters has twice their rank, and the nearest one of the "
                f"same rank misses {errors[worst]:.0%} of what {worst!r} has learned since (in {len(errors)} of "
                f"{len(means.errors)} adapted layers more than {SAID_FROM:.0%}). What was lost is measured by "
                "guard.retention(); anchorhold.merging.merge_adapters makes an adapter of both ranks together, exactly."
            )


def newcomers(core: Core) -> list[str]:
    """Return the adapters that have trained parameters, and none of those an anchor, by their paths."""
    new = {id(p) for name, p in core.runtime.parameters.items() if p.requires_grad and name not in core.state.anchor}
    return [found.path for found in every_adapter(core.runtime.model, new)] if new and core.state.anchor else []


def newcomers_in_words(paths: list[str]) -> str:
    """Say what becomes of adapters that came after the last consolidation."""
    return (
        f"an adapter of {_some(paths)} came after the last consolidation, so that it has no weights from before to go "
        "back to, and stays as it is. Consolidate before another adapter is put on, or multiply its B by the share "
        "yourself where it lies on top of what was consolidated; where it took another one's place, average the merged "
        "weights with anchorhold.merge."
    )


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]!r}{more}"
