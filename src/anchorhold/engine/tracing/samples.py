"""Tell samples apart in the tensors of a model, and check that they stay apart.

A layer may see its samples first (``[N, T, d]``), second (``[T, N, d]``), merged with positions (``[N·T, d]`` or
``[T·N, d]``) or not at all (``[T, d]``, broadcast later). Guessing from one shape would sometimes be wrong without a
sign of it, so the engine runs the model on one sample and on two, and compares.

Shapes say where a tensor's samples lie, not in which order. A layer may get them sorted, or an expert those that were
sent to it, as many as expected by coincidence; both are put back later, so that the outputs show nothing. Gradients do:
those of each sample's outputs must arrive where that sample is read, and nowhere else.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node


@dataclass(frozen=True)
class SampleLayout:
    """Samples lie along ``dim``, where each of them has ``places`` entries.

    Args:
        dim: the dimension that grows with the samples.
        places: how many entries of it belong to each sample; 1 unless samples are merged with positions.
        interleaved: whether neighbouring entries belong to different samples (``[T·N]``) and not to one (``[N·T]``).
    """

    dim: int
    places: int = 1
    interleaved: bool = False

    def samples_first(self, tensor: Tensor, lead: int = 0) -> Tensor:
        """View a tensor as ``[*lead, N, ...]``, where its first ``lead`` dimensions are none of the layout's."""
        dim = self.dim + lead
        if self.interleaved:
            return torch.unflatten(tensor, dim, (self.places, -1)).movedim(dim + 1, lead)
        if self.places > 1:
            tensor = torch.unflatten(tensor, dim, (-1, self.places))
        return tensor.movedim(dim, lead)

    def unbroadcast(self, tensor: Tensor, shape: torch.Size, lead: int) -> Tensor:
        """Sum a tensor over what broadcasting added to ``shape``, but not over samples: ``[*lead, N, *shape]``."""
        aligned = (1,) * (tensor.ndim - lead - len(shape)) + tuple(shape)
        added = [
            lead + dim
            for dim, size in enumerate(aligned)
            if size == 1 and tensor.shape[lead + dim] != 1 and dim != self.dim
        ]
        if added:
            tensor = tensor.sum(added, keepdim=True)
        tensor = tensor.movedim(lead + self.dim, lead)
        return tensor.reshape(*tensor.shape[: lead + 1], *shape)

    def shape(self, of_one: torch.Size, samples: int) -> torch.Size:
        """Return the shape of a tensor for so many samples, given that for one."""
        sizes = list(of_one)
        sizes[self.dim] *= samples
        return torch.Size(sizes)


def layout_of_shapes(one: torch.Size, two: torch.Size) -> SampleLayout | None:
    """Return where samples lie, given the shapes for one sample and for two, or ``None`` where that is unclear."""
    if len(one) != len(two):
        return None
    grown = [dim for dim, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if len(grown) != 1 or two[grown[0]] != 2 * one[grown[0]]:
        return None
    return SampleLayout(grown[0], one[grown[0]])


def layout_of(one: Tensor, two: Tensor) -> SampleLayout | None:
    """Return where samples lie, given the values for the first sample and for it and another.

    Where samples are merged with positions, the first sample's values must be found in one of the two orders; if
    both fit (or neither does), the layout is unclear.
    """
    layout = layout_of_shapes(one.shape, two.shape)
    if layout is None or layout.places == 1:
        return layout
    orders = [layout, SampleLayout(layout.dim, layout.places, interleaved=True)]
    fitting = [order for order in orders if same_values(one, order.samples_first(two)[0])]
    return fitting[0] if len(fitting) == 1 else None


def same_values(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding: the order of sums differs with the size of a batch."""
    x, y = x.detach(), y.detach()
    if x.shape != y.shape:
        return False
    if x.is_complex() and y.is_complex():
        x, y = torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj())
    if not x.is_floating_point():
        return bool(torch.equal(x, y))
    # Without infinities, which would make the tolerance one, and any two tensors equal.
    size = x.abs().masked_fill(~x.isfinite(), 0.0)
    tolerance = torch.finfo(x.dtype).eps ** 0.5 * float(size.max()) if x.numel() else 0.0
    return bool(torch.allclose(x, y, rtol=0.0, atol=tolerance, equal_nan=True))


_BY_DATA = (
    *("Index", "UnsafeIndex", "UnsafeMaskedIndex", "Gather", "Scatter", "MaskedSelect", "MaskedScatter", "Take", "Put"),
    *("Sort", "Topk", "Embedding", "PackPaddedSequence", "SegmentReduce", "Sparse", "CopySlices"),
)
"""How the names begin of those of autograd's nodes that may move rows as some data say (or hide one that does).

Reductions that choose by data, such as a maximum, are none of them: over samples they would mix them, and a model that
does so is refused.
"""

_PARTS = (
    "Slice",
    "Select",
    "Split",
    "UnsafeSplit",
    "Unbind",
    "Unfold",
    "AsStrided",
    "Diagonal",
    "Flip",
    "Roll",
    "Rot90",
)
"""The same of those that take out a part which the program, not data, decides on."""

_FACTORS = (1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 8.0, -8.0, 0.5, -0.5, 0.25, -0.25, 0.125, -0.125, 0.0625, -0.0625)
"""Powers of two, so that scaled gradients are rounded as unscaled ones are, whatever their type."""


class Readable(Protocol):
    """Where the gradients of samples arrive, and how they are told apart there."""

    @property
    def edges(self) -> list[GradientEdge]:
        """The places in autograd's graph where its gradients arrive."""
        ...

    def delta(self, arrived: list[Tensor | None]) -> Tensor | None:
        """Return δ as ``[V, N, ...]``, or ``None`` where nothing arrived."""
        ...


class SampleOrder:
    """Checks chunk after chunk that samples stay apart, where the model could do otherwise.

    That costs two backward passes, so it is done in every chunk only where data decide on the route, and once for every
    other route and number of samples. Where no part of the samples is ever taken out of the whole, the two samples that
    a plan is made from stand for any number of them.
    """

    def __init__(self) -> None:
        self._checked: set[tuple[int, int]] = set()

    def keep_apart(self, outputs: Tensor, sites: Sequence[Readable]) -> bool:
        """Return whether each sample's gradients arrive at every site where that sample is read."""
        if not sites:
            return True
        route = route_of(outputs)
        if not route.by_data and (not route.takes_parts or (route.way, len(outputs)) in self._checked):
            return True
        apart = samples_stay_apart(outputs, sites)
        if apart and not route.by_data:
            self._checked.add((route.way, len(outputs)))
        return apart


class Route(NamedTuple):
    """The way that gradients take from the outputs.

    Args:
        way: a hash of the graph: its nodes, the edges between them and the whole numbers that they hold, such as where
            a slice begins. Sizes are left out: they follow from the inputs' shapes, each with a plan of its own.
        by_data: whether data decide where gradients go.
        takes_parts: whether something may be a part of the samples, and not all of them.
    """

    way: int
    by_data: bool
    takes_parts: bool


def route_of(outputs: Tensor) -> Route:
    """Return the way that gradients take from these outputs."""
    assert outputs.grad_fn is not None
    numbers: dict[Node, int] = {outputs.grad_fn: 0}
    pending = [outputs.grad_fn]
    way: list[object] = []
    by_data = takes_parts = False
    for node in pending:  # which grows as it is gone through
        kind = type(node)
        entry: list[object] = [kind]
        parameters_only = True
        for following, place in node.next_functions:
            if following is None:
                entry.append(None)
                continue
            number = numbers.get(following)
            if number is None:
                number = numbers[following] = len(pending)
                pending.append(following)
            entry.append((number, place))
            parameters_only = parameters_only and type(following).__name__ == "AccumulateGrad"
        if names := _numbers_of(kind):
            entry.extend([_whole(getattr(node, name)) for name in names])
        way.append(tuple(entry))
        # What leads to parameters alone moves weights, such as a transposed one, and no samples.
        if not parameters_only:
            # A function of the user's own, or a compiled one, does what it likes.
            own = issubclass(kind, BackwardCFunction)
            by_data = by_data or own or kind.__name__.lstrip("_").startswith(_BY_DATA)
            takes_parts = takes_parts or _takes_part(node, len(outputs))
    return Route(hash(tuple(way)), by_data, takes_parts)


def samples_stay_apart(outputs: Tensor, sites: Sequence[Readable]) -> bool:
    """Send one row back twice, the second time with factors for the samples: they must arrive as they were sent."""
    if not outputs.requires_grad:
        return True
    edges = [edge for site in sites for edge in site.edges]
    # A generator of its own, so that no draw of the user's changes.
    generator = torch.Generator().manual_seed(len(outputs))
    order = torch.randperm(len(outputs), generator=generator) % len(_FACTORS)  # up to 16 samples: all different
    factors = torch.tensor(_FACTORS)[order].to(outputs)
    generator = torch.Generator(outputs.device).manual_seed(0)
    row = torch.randn(outputs.shape[1:], generator=generator, device=outputs.device, dtype=torch.float32)
    plain = row.to(outputs.dtype).expand(outputs.shape)
    scaled = plain * factors.view(-1, *[1] * row.ndim)
    rows: list[Iterator[Tensor | None]] = []
    for sent in (plain, scaled):
        # The graph serves the second row too, and after that the measurement.
        arrived = torch.autograd.grad(outputs, edges, sent, retain_graph=True, allow_unused=True)
        rows.append(iter([None if g is None else g.unsqueeze(0) for g in arrived]))
    for site in sites:
        one, two = [site.delta(list(itertools.islice(row, len(site.edges)))) for row in rows]
        if one is not None and two is not None and not _scaled_by(factors, one[0].flatten(1), two[0].flatten(1)):
            return False
    return True


def _scaled_by(factors: Tensor, plain: Tensor, scaled: Tensor) -> bool:
    """Return whether ``scaled`` is ``plain``, both ``[N, ...]``, times the samples' factors, up to rounding."""
    info = torch.finfo(plain.dtype)
    expected = plain * factors.to(plain.dtype).unsqueeze(1)
    size = expected.abs().nan_to_num(0.0, 0.0, 0.0)
    # Of a sample's own gradients, which may be much smaller than another's; and of what is rounding error alone.
    tolerance = info.eps**0.5 * size.amax(1, keepdim=True) + 16 * info.eps * size.max() + 16 * info.tiny
    gap = (scaled - expected).abs().nan_to_num(0.0, 0.0, 0.0)  # where a number overflowed, nothing can be told
    return not bool((gap > tolerance).any())


def _takes_part(node: Node, samples: int) -> bool:
    """Return whether a node may take some of the samples out of the whole, or turn them round."""
    if not type(node).__name__.lstrip("_").startswith(_PARTS):
        return False
    sizes, dim = getattr(node, "_saved_self_sym_sizes", None), getattr(node, "_saved_dim", None)
    if sizes is None or dim is None:
        return True
    dim = dim - 2**64 if dim >= 2**63 else dim  # one that counts from the end, which autograd shows as if unsigned
    return bool(sizes[dim] % samples == 0)  # else samples do not lie along that dimension


def _whole(held: object) -> object:
    """Return whole numbers that a node holds; others, such as a slope, move nothing."""
    if isinstance(held, list | tuple):
        return tuple(_whole(value) for value in held)
    return held if isinstance(held, int) else None


@cache
def _numbers_of(kind: type[Node]) -> tuple[str, ...]:
    """Return the names of what a kind of node holds besides tensors and their sizes."""
    names = set(dir(kind))
    saved = [name for name in sorted(names) if name.startswith("_saved_") and "_sym_" not in name]
    return tuple(name for name in saved if f"_raw{name}" not in names)
