"""Adapters in the space of the weights that they change: what is measured and held in their parameters' place.

With ``space="merged"`` an adapter's parameters stay protected, and their anchor is kept, to go back to. But importance
is of the merged weight, by the name of the weight that the adapter changes: it is measured with respect to a twin of
the layer, whose weight is 0, and the hold is :class:`~anchorhold.holds.of_weights.merged_weights.MergedWeights`.
Protected parameters that belong to no adapter, such as a head beside it, are held as they are.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import nn

from anchorhold.adapters import Adapter, Change, Product, beside, find_adapters, trained_layers, twin_of
from anchorhold.engine.reductions import Block
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Form
from anchorhold.forms.layers import layer_blocks
from anchorhold.holds.of_weights.merged_weights import MergedWeights
from anchorhold.tensors.matrices import decomposed
from anchorhold.tensors.names import named_modules
from anchorhold.tensors.sharding import is_sharded

Space = Literal["weights", "merged"]


class MergedSpace:
    """The adapters of a model, each by the name of the weight that it changes.

    Args:
        model: the network.
        adapters: its adapters that have protected parameters; none where weights are held as they are.
        parameters: the protected parameters.
    """

    def __init__(
        self, model: nn.Module, adapters: Mapping[str, Adapter], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self.model = model
        self.adapters = adapters
        names = {id(parameter): name for name, parameter in parameters.items()}
        self.parts = {
            weight: [names[id(p)] for p in adapter.parameters() if id(p) in names]
            for weight, adapter in adapters.items()
        }
        """The names of each adapter's protected parameters."""
        self.names = frozenset(name for parts in self.parts.values() for name in parts)
        """Those of all adapters."""

    @classmethod
    def of(cls, model: nn.Module, parameters: Mapping[str, nn.Parameter], space: Space) -> "MergedSpace":
        """Return the adapters of a model that have protected parameters, or refuse what cannot be held so."""
        if space != "merged":
            return cls(model, {}, {})
        if sharded := [name for name, p in parameters.items() if is_sharded(p)]:
            raise ConfigurationError(
                f"space='merged' with parameters that are spread over processes, such as {sharded[0]!r}: it needs "
                "whole layers. Use DDP, or give options=GuardOptions(space='weights')."
            )
        adapters = find_adapters(model, {id(p) for p in parameters.values()})
        return cls(model, adapters, parameters)

    def refuse_parts(self) -> None:
        """Refuse to hold part of what is trained of an adapter: the rest would change the merged weight freely."""
        for weight, adapter in self.adapters.items():
            trained = sum(p.requires_grad for p in adapter.parameters())
            held = self.parts[weight]
            if len(held) < trained:
                raise ConfigurationError(
                    f"space='merged' with protect= matching {', '.join(map(repr, held))} alone of the adapter of "
                    f"{weight!r}: what it adds is made of {trained} trained parameters together. Let protect= match "
                    "all of them, such as '*lora_*', or give options=GuardOptions(space='weights')."
                )

    def without_layers(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return parameters without the weights that adapters change, in whose place the merged ones are held."""
        layers = trained_layers(self.model, dict(self.adapters)) if self.adapters else {}
        return {name: parameter for name, parameter in parameters.items() if name not in layers}

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """How the names begin of all that lies within an adapted module."""
        modules = {id(adapter.module) for adapter in self.adapters.values()}
        return tuple(f"{path}." for path, module in named_modules(self.model) if id(module) in modules)

    def covers(self, name: str) -> bool:
        """Whether a parameter is, or was, part of an adapter of a layer that has one now."""
        return bool(self.adapters) and name.startswith(self._places)

    @cached_property
    def twins(self) -> dict[str, nn.Module]:
        """A layer for each adapter, whose weight stands for the merged one."""
        return {name: twin_of(adapter.layer, adapter.parameters()[0]) for name, adapter in self.adapters.items()}

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """How each merged weight lies."""
        own = {name: _weight(twin) for name, twin in self.twins.items()}
        return {block.name: block for block in layer_blocks(nn.ModuleList(self.twins.values()), own)}

    def coordinates(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return what importance is of: parameters, with twins' weights in the place of adapters' parameters."""
        found = {name: parameter for name, parameter in parameters.items() if name not in self.names}
        return found | {name: _weight(twin) for name, twin in self.twins.items()}

    def blocks_of(self, form: Form, coordinates: Mapping[str, nn.Parameter]) -> list[Block]:
        """Return how a form puts coordinates together, or refuse one that puts a merged weight with others."""
        if not self.adapters:
            return form.blocks(self.model, coordinates)
        found = form.blocks(nn.ModuleList([self.model, *self.twins.values()]), coordinates)
        for block in found:
            if len(block.parameters) > 1 and not self.adapters.keys().isdisjoint(block.parameters):
                raise ConfigurationError(
                    f"space='merged' in the form {form.name!r}, which has one matrix over several weights. Forms that "
                    "go layer by layer: 'diagonal', 'rotated', 'kronecker', and LowRank(span='layers')."
                )
        return found

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[set[str]]:
        """Let each twin's weight be part of what the model computes with, for a while: the outputs stay the same.

        What this gives are the names of those whose layers were called meanwhile.
        """
        called: set[str] = set()
        with contextlib.ExitStack() as stack:
            for name, twin in self.twins.items():
                stack.enter_context(beside(self.adapters[name].module, twin, partial(called.add, name)))
            yield called

    @torch.no_grad()
    def changes(self) -> dict[str, Change]:
        """Return what each adapter adds to its weight now: of a fresh one, whose B is 0, a product of rank 0."""
        found: dict[str, Change] = {}
        for name, adapter in self.adapters.items():
            change = adapter.change()
            if change is None or (isinstance(change, Product) and not bool(change.b.any())):
                change = self._nothing(name)
            found[name] = change
        return found

    def _nothing(self, name: str) -> Product:
        (outputs, inputs), like = self.blocks[name].size, _weight(self.twins[name])
        return Product(like.new_zeros(outputs, 0), like.new_zeros(0, inputs))

    def hold(self, anchor: Mapping[str, Change]) -> MergedWeights:
        """Return the hold of merged weights around an anchor."""
        return MergedWeights(self.adapters, self.blocks, anchor)

    @torch.no_grad()
    def steepness(self) -> dict[str, float]:
        """Return by how much at most an eigenvalue of Q is larger in an adapter's parameters than in its weight.

        Of a product, the largest eigenvalue of AAᵀ or of BᵀB as they are now; of others nothing is known.
        """
        found: dict[str, float] = {}
        for name, adapter in self.adapters.items():
            change = adapter.change()
            if isinstance(change, Product):
                sides = change.a @ change.a.mT, change.b.mT @ change.b
                most = max(float(decomposed(torch.linalg.eigvalsh, side.float())[-1]) for side in sides)
                found |= dict.fromkeys(self.parts[name], most)
        return found


def _weight(twin: Any) -> nn.Parameter:
    found: nn.Parameter = twin.weight
    return found
