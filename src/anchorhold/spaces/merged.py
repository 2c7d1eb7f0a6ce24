"""Adapters in the space of the weights that they change: what is measured and held in their parameters' place.

With ``space="merged"`` an adapter's parameters stay protected, and their anchor is kept, to go back to. But importance
is of the merged weight, by the name of the weight that the adapter changes: it is measured with respect to a twin of
the layer, whose weight is 0, and the hold is :class:`~anchorhold.holds.of_weights.merged_weights.MergedWeights`.
Protected parameters that belong to no adapter, such as a head beside it, are held as they are.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anchorhold.adapters import Change, Product, beside, find_adapters, in_parts, trained_layers, twin_of, whole
from anchorhold.engine.reductions import Block
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Form
from anchorhold.forms.base import Cost
from anchorhold.forms.layers import layer_blocks
from anchorhold.holds import MergedWeights
from anchorhold.spaces.base import Space
from anchorhold.tensors.matrices import decomposed
from anchorhold.tensors.names import named_modules
from anchorhold.tensors.sharding import is_sharded


class Merged(Space):
    """The space of merged weights: each adapter is measured and held by the name of the weight that it changes.

    Raise ConfigurationError if the model has no adapter with protected parameters, or one that cannot be held so.
    """

    name: ClassVar[str] = "merged"
    description: ClassVar[str] = "adapters by their merged weights"
    why_explicit: ClassVar[str] = "in the space of merged weights"
    has_changes: ClassVar[bool] = True

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], folded: Mapping[str, str]) -> None:
        super().__init__(model, parameters, folded)
        if sharded := [name for name, p in parameters.items() if is_sharded(p)]:
            raise ConfigurationError(
                f"space='merged' with parameters that are spread over processes, such as {sharded[0]!r}: it needs "
                "whole layers. Use DDP, or give options=GuardOptions(space='weights')."
            )
        names = {id(parameter): name for name, parameter in parameters.items()}
        self.adapters = find_adapters(model, names.keys())
        self.parts = {
            weight: [names[id(p)] for p in adapter.parameters() if id(p) in names]
            for weight, adapter in self.adapters.items()
        }
        self._protected = parameters

    @cached_property
    def _twins(self) -> dict[str, nn.Module]:
        """A layer for each adapter, whose weight stands for the merged one."""
        return {name: twin_of(adapter.layer, adapter.parameters()[0]) for name, adapter in self.adapters.items()}

    @cached_property
    def _own_blocks(self) -> dict[str, Block]:
        """How each merged weight lies."""
        own = {name: _weight(twin) for name, twin in self._twins.items()}
        return {block.name: block for block in layer_blocks(nn.ModuleList(self._twins.values()), own)}

    def measured(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return parameters, with twins' weights in the place of adapters' parameters."""
        found = {name: parameter for name, parameter in parameters.items() if name not in self.in_parts}
        return found | {name: _weight(twin) for name, twin in self._twins.items()}

    def blocks(self, form: Form, measured: Mapping[str, nn.Parameter]) -> list[Block]:
        """Return how a form puts together what is measured, or refuse one that puts a merged weight with others."""
        found = form.blocks(nn.ModuleList([self.model, *self._twins.values()]), measured)
        for block in found:
            if len(block.parameters) > 1 and not self.adapters.keys().isdisjoint(block.parameters):
                raise ConfigurationError(
                    f"space='merged' in the form {form.name!r}, which has one matrix over several weights. Forms that "
                    "go layer by layer: 'diagonal', 'rotated', 'kronecker', and LowRank(span='layers')."
                )
        return found

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[set[str]]:
        """Let each twin stand beside its adapted layer for a while."""
        called: set[str] = set()
        with contextlib.ExitStack() as stack:
            for name, twin in self._twins.items():
                stack.enter_context(beside(self.adapters[name].module, twin, partial(called.add, name)))
            yield called

    def holds(self, changes: Mapping[str, Change]) -> Sequence[MergedWeights]:
        return [MergedWeights(self.adapters, self._own_blocks, changes)]

    @torch.no_grad()
    def largest_of_parts(self, largest: Mapping[str, float]) -> dict[str, float]:
        """Return that of adapters' parameters, from that of their weights.

        Of a product it is larger by the largest eigenvalue of AAᵀ or of BᵀB at most; of others nothing is known.
        """
        found: dict[str, float] = {}
        for name, adapter in self.adapters.items():
            change = adapter.change() if name in largest else None
            if isinstance(change, Product):
                sides = change.a @ change.a.mT, change.b.mT @ change.b
                most = max(float(decomposed(torch.linalg.eigvalsh, side.float())[-1]) for side in sides)
                found |= dict.fromkeys(self.parts[name], largest[name] * most)
        return found

    @torch.no_grad()
    def changes(self) -> dict[str, Change]:
        """Return Δ of each adapter now: of a fresh one, whose B is 0, a product of rank 0."""
        found: dict[str, Change] = {}
        for name, adapter in self.adapters.items():
            change = adapter.change()
            if change is None or (isinstance(change, Product) and not bool(change.b.any())):
                (outputs, inputs), like = self._own_blocks[name].size, _weight(self._twins[name])
                change = Product(like.new_zeros(outputs, 0), like.new_zeros(0, inputs))
            found[name] = change
        return found

    @torch.no_grad()
    def displacements(self, changes: Mapping[str, Change]) -> dict[str, Tensor]:
        """Return Δ − Δ* of each weight."""
        hold = self.holds(changes)[0]
        return {name: whole(hold.displacement(name)) for name in hold.adapters}

    @torch.no_grad()
    def anchor_cost(
        self, block: Block, form: Form, cost: Cost, usual: int, changes: Mapping[str, Change]
    ) -> tuple[int, int]:
        """Return the cost of a merged weight: its anchor's numbers, and a step's multiplications.

        The anchor is the adapter's parameters and what they come to: Δ*, or B* and A*, of which those of a fresh
        adapter have rank 0. A step's products are of D, which has both ranks together.
        """
        if block.name not in self.adapters:
            return usual, cost.applying
        now = self.adapters[block.name].change()
        then = changes.get(block.name, now)
        if then is now and isinstance(now, Product) and not now.b.is_meta and not bool(now.b.any()):
            then = None  # which is what will be kept of it
        numbers = sum(self._protected[name].numel() for name in self.parts[block.name])
        numbers += 0 if then is None else sum(tensor.numel() for tensor in in_parts(then).values())
        both = [now] if then is None else [now, then]
        ranks = [change.b.shape[1] for change in both if isinstance(change, Product)]
        if len(ranks) < len(both):
            return numbers, cost.applying
        return numbers, form.cost_of_product(block, self.measured(self._protected), sum(ranks))

    def check(self) -> None:
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

    def check_form(self, form: Form, parameters: Mapping[str, nn.Parameter]) -> None:
        """Refuse a form that puts a merged weight with others."""
        self.blocks(form, self.measured(parameters))

    def without_layers(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        layers = trained_layers(self.model, self.adapters)
        return {name: parameter for name, parameter in parameters.items() if name not in layers}

    def covers(self, name: str) -> bool:
        """Return whether a parameter lies, or lay, within an adapted module."""
        return name.startswith(self._places)

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """How the names begin of all that lies within an adapted module."""
        modules = {id(adapter.module) for adapter in self.adapters.values()}
        return tuple(f"{path}." for path, module in named_modules(self.model) if id(module) in modules)


def _weight(twin: Any) -> nn.Parameter:
    found: nn.Parameter = twin.weight
    return found
