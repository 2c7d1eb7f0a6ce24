"""What a layer rule provides, and the parts of parameters that it is for.

A rule belongs to one call of one function, such as ``F.linear(x, weight, bias)``. It knows the call's input and turns
the gradient δ at the call's output into the per-sample gradients of its parameters. Samples come first in everything
it is given: the input as ``[N, ...]``, δ as ``[V, N, ...]`` for V rows of scores.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.errors import ConfigurationError

TILE_BYTES = 2 * 2**20
"""Per-sample gradients are made in tiles of about this many bytes, so that they are summed while still in cache."""

ACCELERATOR_TILE_BYTES = 64 * 2**20
"""The same on an accelerator, which wants few and large kernels."""


class LookedUp(NamedTuple):
    """Inputs of which each is one row of a table: vectors that are 1 in one place."""

    places: Tensor
    """Which rows, as ``[N, T]``."""
    rows: int
    """How many there are."""
    padding: int | None = None
    """One that does not count."""


class Products(NamedTuple):
    r"""What the gradient of a layer's weight is made of, :math:`\sum_t \delta_t a_t^T` over its positions t."""

    delta: Tensor
    """δ, as ``[V, N, T, outputs]``."""
    a: Tensor | LookedUp
    """The inputs, as ``[N, T, inputs]``."""
    bias: bool = False
    """Whether they have one more, which is 1 everywhere."""


class Rule(ABC):
    """The parameters of one call and how their gradients follow from δ."""

    inputs_first: ClassVar[bool] = False
    """Of a rule that is one of :meth:`products`: whether its weight lies as ``[inputs, ...outputs]``."""

    def __init__(self, input: Tensor, parameters: Mapping[str, Tensor | None]) -> None:
        self.input = input
        self.parameters = {role: p for role, p in parameters.items() if p is not None}

    @abstractmethod
    def gradients(self, role: str, a: Tensor, delta: Tensor) -> Tensor:
        """Return the gradients ``[V, N, *parameter.shape]`` of each row and sample."""

    def importance(self, role: str, a: Tensor, delta: Tensor, phi: Phi) -> Tensor:
        """Return φ of the gradients, summed over rows and samples."""
        return phi.sum(self.gradients(role, a, delta), (0, 1))

    def delta_of_rows(self, role: str, delta: Tensor, rows: Tensor) -> Tensor | None:
        """Return δ by which :meth:`importance` is that of some rows of a parameter, where there is such a δ."""
        return None

    def inputs(self, a: Tensor) -> Tensor | LookedUp | None:
        """Return what the weight is multiplied with, as ``[N, T, inputs]``, where it is a matrix that is."""
        return None

    def products(self, a: Tensor, delta: Tensor) -> Products | None:
        """Return what the weight's gradient is made of, where it is one matrix product for each row and sample."""
        return None

    def products_numel(self, a: Tensor) -> int:
        """Return how many numbers a sample's inputs are in :meth:`products`; 0 where it is none."""
        return 0

    def reads(self, dim: int) -> bool:
        """Return whether the rule can be used where samples lie along dimension ``dim`` of its input."""
        return True

    def row_numel(self, role: str) -> int:
        """Return how many numbers :meth:`importance` holds for each row of each sample, besides δ."""
        return self.parameters[role].numel()

    def sample_numel(self) -> int:
        """Return how many numbers :meth:`importance` holds for each sample, whatever the rows."""
        return 0


Binding = TypeVar("Binding", bound=Callable[..., Rule | None])

RULES: dict[Callable[..., Any], Callable[..., Rule | None]] = {}
"""What binds the arguments of each function that has a rule: :func:`register_rule` enters it here."""


def register_rule(*functions: Callable[..., Any]) -> Callable[[Binding], Binding]:
    """Register how calls of some functions of torch's, such as ``F.linear``, are measured.

    Decorates a :class:`Rule`, or a function that returns one. It is called with the arguments of each call that takes a
    parameter, and may return ``None`` for a call that it does not cover: torch.func measures that one. A function that
    has a rule already gets this one in its place.
    """
    if not functions or not all(map(callable, functions)):
        raise ConfigurationError(
            f"register_rule{functions!r}: expected the functions whose calls the rule covers, such as "
            "@register_rule(F.linear). A layer has the rule of the function that its forward() calls."
        )

    def register(binding: Binding) -> Binding:
        RULES.update(dict.fromkeys(functions, binding))
        return binding

    return register


def phi_of_products(delta: Tensor, a: Tensor, phi: Phi) -> Tensor:
    r"""Return :math:`\sum_{n,v} \varphi(\sum_t \delta_{vnt} a_{nt}^T)`, the heart of every layer with weights.

    Args:
        delta: ``[N, V, G, O, T]``, for G groups of outputs that see inputs of their own.
        a: ``[N, G, T, K]``.
        phi: the φ of the measure.

    Returns:
        ``[G, O, K]``. With one position φ goes through the product and no per-sample gradient is ever made; otherwise
        they are made in tiles that stay in cache.
    """
    n, rows, groups, outputs, places = delta.shape
    features = a.shape[-1]
    if places == 1:
        # Row by row, so that no tensor as large as δ is made for φ(δ).
        summed = phi(delta[:, 0, ..., 0])
        for v in range(1, rows):
            phi.add_(summed, delta[:, v, ..., 0])
        return summed.permute(1, 2, 0) @ phi(a.squeeze(2)).transpose(0, 1)
    total = a.new_zeros(groups, outputs, features)
    if total.numel() == 0:
        return total
    tile = tile_bytes(a.device)
    gradient = total.numel() * total.element_size()
    if gradient > tile:
        # A large layer: some outputs of a single row and sample at a time.
        across = max(1, tile * outputs // gradient)
        for first in range(0, outputs, across):
            part = total[:, first : first + across]
            for sample in range(n):
                for row in range(rows):
                    phi.add_(part, delta[sample, row, :, first : first + across] @ a[sample])
        return total
    # The rows of a sample share its input, so they are one matrix product; samples are a batch of them.
    deep = min(rows, tile // gradient)
    wide = max(1, tile // (gradient * deep))
    for first in range(0, n, wide):
        inputs = a[first : first + wide].flatten(0, 1)
        for row in range(0, rows, deep):
            block = delta[first : first + wide, row : row + deep].transpose(1, 2)
            products = torch.bmm(block.reshape(len(inputs), -1, places), inputs)
            total += phi.sum(products.view(-1, groups, block.shape[2], outputs, features), (0, 2))
    return total


def tile_bytes(device: torch.device) -> int:
    """Return how large a tile of per-sample gradients may be."""
    return TILE_BYTES if device.type == "cpu" else ACCELERATOR_TILE_BYTES


def sum_to(tensor: Tensor, shape: torch.Size, lead: int) -> Tensor:
    """Sum ``tensor`` over what broadcasting added to ``shape``, leaving its first ``lead`` dimensions alone."""
    inner = tensor.shape[lead:]
    # The sample dimension is among the first `lead`, so a parameter's own leading 1 in its place is put back last.
    aligned = shape[1:] if len(shape) > len(inner) else shape
    extra = len(inner) - len(aligned)
    summed = [lead + i for i in range(extra)]
    summed += [lead + extra + i for i, size in enumerate(aligned) if size == 1 and inner[extra + i] != 1]
    if summed:
        tensor = tensor.sum(dim=summed, keepdim=False)
    return tensor.reshape(*tensor.shape[:lead], *shape)


@dataclass(frozen=True)
class Part:
    """Where a tensor lies in the parameter ``name``; a geometry of ``None`` is the whole of it."""

    name: str
    geometry: tuple[torch.Size, tuple[int, ...], int] | None = None

    def within(self, whole: Tensor, lead: int = 0) -> Tensor:
        """Return this part of a tensor ``[*lead, *parameter.shape]`` that is laid out as the parameter is."""
        if self.geometry is None:
            return whole
        size, stride, offset = self.geometry
        return whole.as_strided(
            (*whole.shape[:lead], *size), (*whole.stride()[:lead], *stride), whole.storage_offset() + offset
        )

    @property
    def span(self) -> tuple[float, float]:
        """The places between which it lies: from the first, up to but without the last."""
        if self.geometry is None:
            return 0, float("inf")
        size, stride, offset = self.geometry
        return offset, offset + 1 + sum(step * (length - 1) for length, step in zip(size, stride, strict=True))


def part_of(tensor: Tensor, names: Mapping[int, str]) -> Part | None:
    """Return what part of a parameter a tensor is, given the parameters' names by id, if it is one at all."""
    name = names.get(id(tensor))
    if name is not None:
        return Part(name)
    base = tensor._base if tensor.requires_grad else None
    if base is None or id(base) not in names or not base.is_contiguous() or tensor.dtype != base.dtype:
        return None
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    reached = 0
    for stride, size in order:
        if size > 1 and stride <= reached:
            return None  # an expanded or overlapping view holds one number at several places
        reached += stride * (size - 1)
    offset = tensor.storage_offset() - base.storage_offset()
    return Part(names[id(base)], (tensor.shape, tensor.stride(), int(offset)))


def is_parameter(tensor: object) -> bool:
    """Return whether this is a parameter, or a view of one through which gradients flow."""
    if isinstance(tensor, nn.Parameter):
        return True
    return isinstance(tensor, Tensor) and tensor.requires_grad and isinstance(tensor._base, nn.Parameter)


def without(parts: Mapping[str, Part], names: Collection[str]) -> Mapping[str, Part]:
    """Return the parts, by their roles, of all but some parameters."""
    return {role: part for role, part in parts.items() if part.name not in names} if names else parts


def disjoint(parts: Iterable[Part]) -> bool:
    """Return whether no two of these parts of one parameter overlap, so that each may be added up on its own."""
    spans = sorted(part.span for part in parts)
    return all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
