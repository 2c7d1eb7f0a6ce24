"""How a model's uses of its parameters are to be read: worked out once, on its first samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from holdfast.errors import ModelError
from holdfast.importance.batches import Batch, Forward
from holdfast.importance.layout import Layout, layout_of, layout_of_shapes
from holdfast.importance.rules.base import sum_to
from holdfast.importance.uses import Recorder, Use, count_edges

WHOLE = Layout(-1, 0)
"""The layout of a tensor that belongs to a single sample, or is the same for all of them."""


@dataclass
class Site:
    """A use in one chunk, with where its gradients arrive and how to tell samples apart there."""

    use: Use
    layout: Layout
    edges: list[GradientEdge]
    edge_layouts: list[Layout]
    wanted: frozenset[str]

    def input(self, samples: int) -> Tensor:
        """Return the call's input with samples first."""
        a = self.use.rule.input.detach()
        return a.expand(samples, *a.shape) if self.layout is WHOLE else self.layout.samples_first(a)

    def delta(self, arrived: list[Tensor | None], samples: int) -> Tensor | None:
        """Return δ as ``[V, N, ...]``, or ``None`` where nothing arrived."""
        found = [
            self._one(delta, layout, samples)
            for delta, layout in zip(arrived, self.edge_layouts, strict=True)
            if delta is not None
        ]
        return sum(found[1:], start=found[0]) if found else None

    def _one(self, delta: Tensor, layout: Layout, samples: int) -> Tensor:
        if self.layout is not WHOLE:
            return layout.samples_first(delta, lead=1)
        if samples == 1:
            return sum_to(delta, self.use.shape, 1).unsqueeze(1)
        return sum_to(layout.samples_first(delta, lead=1), self.use.shape, 2)


@dataclass
class Plan:
    """For each use of a model's parameters, how its samples lie; and which parameters no rule covers."""

    layouts: list[tuple[Layout, list[Layout]] | None]
    signatures: list[object]
    without_rule: set[str]
    outputs: Tensor
    numel_per_row: int
    numel_per_sample: int

    @classmethod
    def of_one_sample(cls, uses: list[Use], outputs: Tensor, parameters: Mapping[str, nn.Parameter]) -> "Plan":
        """Return the plan for a single sample, where everything belongs to it."""
        layouts: list[tuple[Layout, list[Layout]] | None] = [(WHOLE, [WHOLE]) for _ in uses]
        return cls._of(uses, layouts, outputs, parameters)

    @classmethod
    def _of(
        cls,
        uses: list[Use],
        layouts: list[tuple[Layout, list[Layout]] | None],
        outputs: Tensor,
        parameters: Mapping[str, nn.Parameter],
    ) -> "Plan":
        into_parameter, into_node = count_edges(outputs, parameters)
        known = dict.fromkeys(parameters, 0)
        without_rule = set()
        for i, use in enumerate(uses):
            layout = layouts[i]
            if layout is not None and layout[0] is WHOLE and use.edge is not None and layout[1] != [WHOLE]:
                # Broadcast over the samples: every consumer must be an addition that was seen.
                if into_node[use.edge.node] != len(use.additions):
                    layout = layouts[i] = None
            for name in use.names.values():
                known[name] += 1
                if layout is None or use.edge is None or use.input_changed:
                    without_rule.add(name)
        without_rule |= {name for name in parameters if into_parameter[name] > known[name]}
        samples = len(outputs)
        recorded = sum(use.shape.numel() for use in uses)
        rows = 2 * recorded + max((use.rule.row_numel(role) for use in uses for role in use.names), default=0) * samples
        fixed = 2 * recorded + max((use.rule.sample_numel() for use in uses), default=0) * samples
        return cls(
            layouts,
            [use.signature for use in uses],
            without_rule,
            outputs.detach()[:1],
            max(1, rows // samples),
            fixed // samples,
        )

    def fits(self, uses: list[Use]) -> bool:
        """Whether these uses are the ones that the plan was made for."""
        return self.signatures == [use.signature for use in uses]

    def sites(self, uses: list[Use]) -> list[Site]:
        """Return where to collect gradients in a chunk."""
        found = []
        for use, layout in zip(uses, self.layouts, strict=True):
            wanted = frozenset(use.names.values()) - self.without_rule
            if layout is None or use.edge is None or not wanted:
                continue
            broadcast = layout[0] is WHOLE and layout[1] != [WHOLE]
            edges = [edge for edge, _ in use.additions] if broadcast else [use.edge]
            found.append(Site(use, layout[0], edges, layout[1], wanted))
        return found

    def samples_within(self, budget: int, rows: int) -> int:
        """Return how many samples of so many rows a chunk may hold."""
        each = self.outputs.element_size() * (self.numel_per_row * rows + self.numel_per_sample)
        return max(1, budget // each)

    def rows_within(self, budget: int, samples: int) -> int:
        """Return how many rows of so many samples may go backward together."""
        fixed = self.outputs.element_size() * self.numel_per_sample * samples
        each = self.outputs.element_size() * self.numel_per_row * samples
        return max(1, (budget - fixed) // each)


def record(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], forward: Forward, inputs: Any
) -> tuple[list[Use], Tensor]:
    """Run the model and return its uses of ``parameters`` and its outputs."""
    with Recorder(parameters) as recorder:
        outputs = forward(model, inputs)
    return recorder.uses, outputs


def make_plan(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], forward: Forward, pair: Batch
) -> Plan:
    """Run the model on one sample and on two, and work out where samples lie in every use."""
    one, outputs_of_one = record(model, parameters, forward, pair[:1].inputs)
    two, outputs = record(model, parameters, forward, pair.inputs)
    if layout_of_shapes(outputs_of_one.shape, outputs.shape) != Layout(0, 1):
        raise ModelError(
            f"The model's outputs have shape {tuple(outputs_of_one.shape)} for one sample and {tuple(outputs.shape)} "
            "for two; expected [N, ...]. Give a `forward` whose outputs have one row a sample."
        )
    if [use.signature for use in one] != [use.signature for use in two]:
        raise ModelError(
            "The model takes another path through its layers for two samples than for one, so that samples cannot be "
            "told apart. Give batches of one sample each."
        )
    layouts = [_layouts(a, b) for a, b in zip(one, two, strict=True)]
    return Plan._of(two, layouts, outputs, parameters)


def _layouts(one: Use, two: Use) -> tuple[Layout, list[Layout]] | None:
    """Return the layout of a use's input, and of the gradients at its edges."""
    if one.shape == two.shape and one.rule.input.shape == two.rule.input.shape:
        added = [layout_of_shapes(a[1], b[1]) for a, b in zip(one.additions, two.additions, strict=False)]
        if not added or len(one.additions) != len(two.additions) or any(x is None or x.size != 1 for x in added):
            return None
        return WHOLE, [x for x in added if x is not None]
    layout = layout_of(one.rule.input, two.rule.input)
    if layout is None or layout_of_shapes(one.shape, two.shape) != layout:
        return None
    return layout, [layout]
