r"""The protocol of a space: in which coordinates importance is measured, and the hold acts.

A space maps the protected parameters θ to coordinates :math:`\tilde\theta(\theta)`: importance is measured of these
while the model computes with them, and the hold is :math:`c\langle D, Q(D)\rangle` with
:math:`D = \tilde\theta - \tilde\theta^*`, where the anchor is the coordinates as they were when a task ended. The
hold's gradient goes back to the parameters by the chain rule, :math:`J^T\,2cQ(D)`.

Importance is of what :meth:`Space.measured` returns, while :meth:`Space.put_in_place` is entered; the anchor is of
:meth:`Space.coordinates` and :meth:`Space.changes`; the gradient goes back by :meth:`Space.to_parameters`, or by a hold
of the space's own (:meth:`Space.holds`). The methods here are those of parameters that are their own coordinates.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import ClassVar, cast

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorhold.adapters import Change
from anchorhold.engine.reductions import Block
from anchorhold.forms import Form, Matrix
from anchorhold.forms.base import Cost
from anchorhold.holds import Held, Hold, LinearTerm, Quadratic

TakeFirst = Callable[[Sequence[Tensor]], None]
"""Gives tensors the values that they have on the first process, in place."""


class Space:
    """The coordinates of a model's protected parameters.

    Args:
        model: the network.
        parameters: the protected parameters, by name.
        folded: batch norms that are held together with a layer, by name, each with the layer's name.
    """

    name: ClassVar[str] = ""
    """By which it is registered."""
    description: ClassVar[str] = ""
    """What adapters are held by, for a guard's description."""
    why_explicit: ClassVar[str] = ""
    """Why the hold cannot act after an optimizer's step; empty where it can: where coordinates take steps."""
    has_changes: ClassVar[bool] = False
    """Whether what adapters add to weights is part of the anchor."""

    parts: Mapping[str, Sequence[str]] = {}
    """The parameters in whose place a weight is measured that is none of them, by the weight's name."""
    mapped: frozenset[str] = frozenset()
    """The parameters whose anchor is of a map that they are part of, and not of themselves."""
    silent: frozenset[str] = frozenset()
    """Of those, the names in whose place nothing is held."""
    coupled: Sequence[tuple[Sequence[str], str]] = ()
    """Parameters that can only have one strength together, each time with the reason."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], folded: Mapping[str, str]) -> None:
        self.model = model

    @cached_property
    def in_parts(self) -> frozenset[str]:
        """The names of all parameters in whose place another weight is measured."""
        return frozenset(name for own in self.parts.values() for name in own)

    @cached_property
    def held_elsewhere(self) -> frozenset[str]:
        """The parameters that are held as part of something else, and not element by element."""
        return self.mapped | self.in_parts

    # What importance is of

    def measured(self, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return what importance is of, by name, where these are the protected parameters."""
        return parameters

    def blocks(self, form: Form, measured: Mapping[str, nn.Parameter]) -> list[Block]:
        """Return how a form puts together what is measured."""
        return form.blocks(self.model, measured)

    @contextmanager
    def put_in_place(self) -> Iterator[set[str]]:
        """Let the model compute with what is measured for a while: its outputs stay the same.

        Yield the names in :attr:`parts` whose layers were called meanwhile.
        """
        yield set()

    def silenced(self, matrices: Mapping[str, Matrix]) -> dict[str, Matrix]:
        """Return importances with 0 for parameters that are no coordinates of what is held."""
        return {name: m.scale(0.0) if self.silent.issuperset(m.block.parameters) else m for name, m in matrices.items()}

    # Where the hold acts

    def coordinates(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the coordinates in the parameters' places, without the silent ones; differentiable in all of them."""
        return parameters

    def to_parameters(self, gradient: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a gradient with respect to the parameters, from one with respect to the coordinates."""
        return gradient

    def quadratic(self, *, elementwise: bool) -> Quadratic | None:
        """Return the quadratic hold of what is not held element by element; ``None`` where all is."""
        if self.mapped:
            return QuadraticOfMaps(self, elementwise=elementwise)
        return None if elementwise else Quadratic()

    def linear_term(self, linear_term: Mapping[str, Tensor], factors: Mapping[str, float]) -> LinearTerm:
        """Return the hold that is linear in the coordinates; the arguments are a :class:`LinearTerm`'s."""
        if self.mapped:
            return LinearTermOfMaps(self, linear_term, factors)
        return LinearTerm(linear_term, factors)

    def holds(self, changes: Mapping[str, Change]) -> Sequence[Hold]:
        """Return the holds of what adapters add to weights, around what they added at the anchor."""
        return ()

    def diagonal(self, omega: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return an importance of the parameters, from one of the coordinates: the diagonal of JᵀΩJ."""
        return omega

    def steepness(self) -> Mapping[str, float]:
        """Return by how much at most an eigenvalue of Q is larger in a parameter than in its map; no name for 1."""
        return {}

    def largest_of_parts(self, largest: Mapping[str, float]) -> dict[str, float]:
        """Return the largest importance of :attr:`in_parts` as they are now, from that of what is measured."""
        return {}

    # Between steps

    def agree(self, take_first: TakeFirst) -> None:
        """Let the coordinates be the same on all processes, though each has seen batches of its own."""

    def follow(self, take_first: TakeFirst, *, is_held: bool) -> None:
        """Keep held coordinates where the optimizer left them, whatever else has moved since; note where they are."""

    def stepped(self) -> None:
        """Note that the optimizer has moved the parameters."""

    def resume(self, before: "Space") -> None:
        """Take over what was noted by the space of the same model before its parameters were looked up again."""

    # The anchor, beside the coordinates

    def changes(self) -> dict[str, Change]:
        """Return what each adapter adds to its weight now."""
        return {}

    def displacements(self, changes: Mapping[str, Change]) -> dict[str, Tensor]:
        """Return D of each weight that adapters change."""
        return {}

    def anchor_cost(
        self, block: Block, form: Form, cost: Cost, usual: int, changes: Mapping[str, Change]
    ) -> tuple[int, int]:
        """Return how many numbers a block's anchor has, usually so many, and how many multiplications a step takes."""
        return usual, cost.applying

    # What fits

    def check(self) -> None:
        """Refuse parameters of which the rest would have to be protected too."""

    def check_form(self, form: Form, parameters: dict[str, nn.Parameter]) -> None:
        """Refuse parameters that a form cannot keep an importance of, long before it is measured."""
        if not any(map(is_lazy, parameters.values())):
            form.check_model(self.model, parameters)

    def without_layers(self, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return parameters without those in whose place others are measured."""
        return parameters

    def covers(self, name: str) -> bool:
        """Return whether a parameter is, or was, one of :attr:`parts` of a layer that has such parts now."""
        return False

    def check_way_back(self, call: str) -> None:
        """Refuse a call that moves weights to the anchor, where that is not of weights."""


class QuadraticOfMaps(Quadratic):
    """The quadratic hold in the coordinates of a space.

    Args:
        space: the space.
        elementwise: whether what is its own coordinate is held elsewhere, element by element.
    """

    def __init__(self, space: Space, *, elementwise: bool) -> None:
        super().__init__()
        self._space = space
        self._elementwise = elementwise

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return the quadratic hold's gradient, brought back to the parameters."""
        importance = {
            name: matrix
            for name, matrix in held.importance.items()
            if not self._elementwise or not self._space.mapped.isdisjoint(matrix.block.parameters)
        }
        inside = _in_coordinates(self._space, held)._replace(importance=importance)
        return _brought_back(self._space, super().gradient(inside), held)


class LinearTermOfMaps(LinearTerm):
    """What a hold has beside its quadratic, in the same coordinates; r is by the names in whose places they are."""

    def __init__(self, space: Space, linear_term: Mapping[str, Tensor], factors: Mapping[str, float]) -> None:
        super().__init__(linear_term, factors)
        self._space = space

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return −2c·r, brought back to the parameters."""
        return _brought_back(self._space, super().gradient(_in_coordinates(self._space, held)), held)

    def value(self, held: Held) -> Tensor | None:
        """Return −2c⟨θ̃ − θ̃*, r⟩."""
        return super().value(_in_coordinates(self._space, held))


def _in_coordinates(space: Space, held: Held) -> Held:
    """Return what a hold may look at with coordinates in the places of the parameters."""
    return held._replace(parameters=cast("Mapping[str, nn.Parameter]", space.coordinates(held.parameters)))


def _brought_back(space: Space, gradient: Mapping[str, Tensor], held: Held) -> dict[str, Tensor]:
    return {name: pull for name, pull in space.to_parameters(gradient).items() if name in held.parameters}
