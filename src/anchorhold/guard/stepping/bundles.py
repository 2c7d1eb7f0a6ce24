"""Parameters that are updated together: one by itself, in pieces, or many small ones side by side in a row.

The work around a step is element by element, so it does not matter whose elements lie beside whose. For a parameter of
a few elements the calls cost more than the arithmetic; in a row they are paid once for all of them. What is kept about
the parameters of a row lies in rows too, of which the guard's own tensors are then views.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from anchorhold.forms import DiagonalMatrix
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.rank_gradients import RankGradients
from anchorhold.guard.stepping.observed import Observed
from anchorhold.guard.stepping.optimizers.accepted import refuse_sparse
from anchorhold.tensors.packed import Packed
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.storage import running_dtype, to_compute

SMALL = 2**14
"""Elements up to which a parameter is small: beyond, a pass over it takes longer than a call."""
ROW = 2**17
"""Elements of a row, half a dozen of which stay in cache together."""


class Bundle(ABC):
    """Some parameters of one optimizer, with their gradients in the step that they are about to take."""

    def __init__(self, core: Core, parameters: Mapping[str, nn.Parameter], *, held: bool) -> None:
        self.core = core
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.like = self.parameters[0]
        """A parameter that says where all of them lie, and how precisely."""
        self.held = held
        """Whether they have an anchor, and are held to it element by element."""
        self.gradient: Tensor | None = None
        """g, as measures see it; ``None`` for a gradient of 0."""
        self.independent: Tensor | None = None
        """g′, likewise."""
        self.squares: Tensor | None = None
        """The mean of the squared gradients of the step's samples, where it was given."""
        self.own: list[Tensor | None] = []
        """The user's own ``.grad`` of each parameter, to be put back after the step."""
        self.handed: list[Tensor | None] = []
        """What the optimizer was handed in their place, if anything."""

    @abstractmethod
    def look(self, observed: Observed, factor: float, *, copy: bool) -> bool:
        """Take in the gradients of the coming step; return whether all parameters have one, or need none.

        Args:
            observed: what a user has given instead of ``.grad``.
            factor: the loss scale that is still in ``.grad``.
            copy: whether the optimizer might overwrite ``.grad`` before it is measured.
        """

    def lacking(self, observed: Observed) -> list[str]:
        """Return the names of those that have no gradient, or were given none."""
        given = [kind for kind in (observed.gradient, observed.independent) if kind]
        return [
            name
            for name, own in zip(self.names, self.own, strict=True)
            if own is None or any(kind.get(name) is None for kind in given)
        ]

    @abstractmethod
    def mean_square(self, ranks: RankGradients) -> Tensor | None:
        """Return the mean square of the ranks' gradients."""

    @abstractmethod
    def weights(self, purpose: str) -> Tensor:
        """Return θ as one tensor: a parameter itself, or a copy in a row that is reused for this purpose."""

    @abstractmethod
    def anchored(self) -> tuple[Tensor, Tensor]:
        """Return Ω and θ*, where the parameters are."""

    @abstractmethod
    def states(self, key: str) -> dict[str, Tensor]:
        """Return the running states of a measure as they are kept, zeros at first."""

    @abstractmethod
    def begun(self, key: str) -> bool:
        """Return whether a measure has running states already."""

    @abstractmethod
    def buffer(self, purpose: str) -> Tensor:
        """Return memory for one number a weight, reused from step to step."""

    @abstractmethod
    def task_gradient(self) -> Tensor:
        """Return what the optimizer would be handed without a hold."""

    @abstractmethod
    def hand(self, *, in_place: bool) -> Tensor:
        """Return where the gradient with the hold's goes: to be delivered to the user's own, or handed in its place."""

    @abstractmethod
    def deliver(self) -> None:
        """Bring to the user's own gradients what was not written there at once."""

    @abstractmethod
    def keep_start(self, before: Tensor) -> None:
        """Remember the weights before the task's first step."""

    @abstractmethod
    def moved_from(self, weights: Mapping[str, Tensor]) -> None:
        """Take other weights as those before the step: the optimizer has moved on from there."""

    @property
    def is_in_place(self) -> bool:
        """Return whether the parameters are still where, and as precise as, they were laid out for."""
        return True

    def is_finite(self, name: str) -> bool:
        """Return whether one parameter's gradients hold numbers alone."""
        return True

    def put_back(self) -> None:
        """Give the user's own gradients back after a step; some optimizers have cleared them, which then stays so."""
        for parameter, given, own in zip(self.parameters, self.handed, self.own, strict=True):
            if given is not None and parameter.grad is given:
                parameter.grad = own
        self.handed = [None] * len(self.parameters)

    def release(self) -> None:
        """Drop the gradients of a step that has ended, so that they can be freed before the next one's are made."""
        self.own, self.handed = [], []
        self.gradient = self.independent = self.squares = None


class Single(Bundle):
    """One parameter; of a sharded one, this process's part."""

    def __init__(self, core: Core, name: str, parameter: nn.Parameter, *, held: bool) -> None:
        super().__init__(core, {name: parameter}, held=held)
        self.name = name
        self._reused: dict[str, Tensor] = {}

    def look(self, observed: Observed, factor: float, *, copy: bool) -> bool:
        """Take the gradient as it is, without a copy where that is safe."""
        grad = self.like.grad
        refuse_sparse({self.name: self.like})
        self.own, self.handed = [grad], [None]
        self.independent = observed.independent.get(self.name)
        self.squares = observed.squares.get(self.name)
        if self.name in observed.gradient:
            # What a user has given is without the loss scale already.
            grad = observed.gradient[self.name]
        # A fused optimizer takes the scaler's factor out inside its step, so that it is still in .grad.
        elif grad is not None and factor != 1.0:
            grad = grad.to(running_dtype(self.like)) / factor
        elif grad is not None and copy:
            grad = grad.clone()
        self.gradient = grad
        return True

    def mean_square(self, ranks: RankGradients) -> Tensor | None:
        return None if self.gradient is None else ranks.mean_square(self.like, self.gradient)

    def weights(self, purpose: str) -> Tensor:
        return self.like.detach()

    def anchored(self) -> tuple[Tensor, Tensor]:
        core = self.core
        matrix = core.state.driving.held[self.name]
        assert isinstance(matrix, DiagonalMatrix)
        return to_compute(matrix.omega, self.like), to_compute(core.state.anchor[self.name], self.like)

    def states(self, key: str) -> dict[str, Tensor]:
        return self.core.state.ledgers[key].states_of(self.name, self.like)

    def begun(self, key: str) -> bool:
        return self.core.state.ledgers[key].knows(self.name)

    def buffer(self, purpose: str) -> Tensor:
        return self._like(purpose, self.like)

    def _like(self, purpose: str, like: Tensor) -> Tensor:
        kept = self._reused.get(purpose)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype or kept.device != like.device:
            kept = self._reused[purpose] = torch.empty_like(like, requires_grad=False)
        return kept

    def task_gradient(self) -> Tensor:
        parameter = self.like
        if parameter.grad is None:
            # torch refuses a gradient of another dtype than this; older versions of it have no such attribute.
            parameter.grad = torch.zeros_like(parameter, dtype=getattr(parameter, "grad_dtype", None))
        return parameter.grad

    def hand(self, *, in_place: bool) -> Tensor:
        """Return ``.grad`` itself, or a tensor in its place, where measures will want the task's after the step."""
        grad = self.task_gradient()
        if in_place:
            return grad
        out = self.like.grad = self._like("held", grad)
        self.handed = [out]
        return out

    def deliver(self) -> None:
        """Do nothing: it was."""

    def moved_from(self, weights: Mapping[str, Tensor]) -> None:
        if self.name in weights:
            self.buffer("before").copy_(weights[self.name])

    def keep_start(self, before: Tensor) -> None:
        # A copy: after the step Δ is written to the buffer.
        self.core.task.start[self.name] = self.core.options.storage.exact(before.clone(), self.like)


def _take_out_of_rows(core: Core, name: str) -> None:
    """Give what is kept about a parameter memory of its own, where it was part of a row: that would live on with it."""
    for kept in (core.state.anchor, core.task.start, *core.state.running()):
        # Only a view has a base: it keeps the memory of the whole row.
        if name in kept and kept[name]._base is not None:
            kept[name] = kept[name].clone()
    matrix = core.state.driving.held.get(name)
    if isinstance(matrix, DiagonalMatrix) and matrix.omega._base is not None:
        matrix.omega = matrix.omega.clone()


class Row:
    """Tensors of different shapes side by side in one."""

    def __init__(
        self, shapes: Sequence[torch.Size], dtype: torch.dtype, device: torch.device, *, pinned: bool = False
    ) -> None:
        length = sum(shape.numel() for shape in shapes)
        self.flat = torch.empty(length, dtype=dtype, device=device, pin_memory=pinned)
        parts = self.flat.split([shape.numel() for shape in shapes])
        # Views, so that the row and the tensors in it are one memory.
        self.views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def fill(self, tensors: list[Tensor]) -> Tensor:
        """Copy tensors into their places, and return all of them."""
        # One call for all: for small tensors a call each would cost more than the copying.
        torch._foreach_copy_(self.views, tensors)
        return self.flat


class Several(Bundle):
    """Small parameters of one precision, on one device, side by side."""

    def __init__(self, core: Core, parameters: Mapping[str, nn.Parameter], *, held: bool) -> None:
        super().__init__(core, parameters, held=held)
        self._shapes = [parameter.shape for parameter in self.parameters]
        self._place = self.like.dtype, self.like.device
        self._looked = False
        """Whether the row of gradients holds the user's own."""
        self._reused: dict[str, Row] = {}
        self._states: dict[str, dict[str, Tensor]] = {}
        if held:
            driving = core.state.driving.held
            matrices = [matrix for name in self.names if isinstance(matrix := driving[name], DiagonalMatrix)]
            omegas = {matrix.name: matrix.omega for matrix in matrices}
            self._omega, self._anchor = self._bound(omegas), self._bound(core.state.anchor)
            for matrix in matrices:
                # _bound() has put a view of the row in its place.
                matrix.omega = omegas[matrix.name]

    def look(self, observed: Observed, factor: float, *, copy: bool) -> bool:
        """Copy the gradients into a row; refused where one is missing."""
        self.own = [parameter.grad for parameter in self.parameters]
        self.handed = [None] * len(self.own)
        seen = [observed.gradient.get(name) for name in self.names] if observed.gradient else self.own
        second = [observed.independent.get(name) for name in self.names] if observed.independent else []
        given = [gradient for gradient in (*seen, *second) if gradient is not None]
        # Each needs its own .grad even if measures see another: the hold's is added to those, in the row.
        if len(given) < len(seen) + len(second) or (seen is not self.own and any(grad is None for grad in self.own)):
            return False
        if [gradient for gradient in given if gradient.is_sparse]:
            refuse_sparse(dict(zip(self.names, self.parameters, strict=True)))
        gradients = given[: len(seen)]
        # Where measures see another gradient they have a row of their own: this one is the optimizer's.
        self._looked = not observed.gradient
        self.gradient = self._row("gradient" if self._looked else "measured", gradients[0].dtype).fill(gradients)
        if factor != 1.0 and not observed.gradient:
            # A new tensor: the row keeps the loss scale, as what the optimizer gets has to.
            self.gradient = self.gradient.to(running_dtype(self.like)) / factor
        self.independent = self._row("independent", given[-1].dtype).fill(given[len(seen) :]) if second else None
        self.squares = None
        if observed.squares.keys() >= set(self.names):
            squares = [observed.squares[name] for name in self.names]
            self.squares = self._row("squares", squares[0].dtype).fill(squares)
        return True

    def mean_square(self, ranks: RankGradients) -> Tensor | None:
        assert self.gradient is not None
        parts = zip(self.parameters, self._cut(self.gradient), strict=True)
        squares = [ranks.mean_square(parameter, part) for parameter, part in parts]
        return self._row("square", squares[0].dtype).fill(squares)

    @property
    def is_in_place(self) -> bool:
        # model.half() and model.to() change parameters where they are: the objects stay the same.
        dtype, device = self._place
        return not [p for p in self.parameters if p.dtype is not dtype or p.device != device]

    def is_finite(self, name: str) -> bool:
        place = self.names.index(name)
        rows = [row for row in (self.gradient, self.independent) if row is not None]
        return all(bool(self._cut(row)[place].isfinite().all()) for row in rows)

    def weights(self, purpose: str) -> Tensor:
        return self._row(purpose, self.like.dtype).fill([*self.parameters])

    def anchored(self) -> tuple[Tensor, Tensor]:
        return to_compute(self._omega, self.like), to_compute(self._anchor, self.like)

    def states(self, key: str) -> dict[str, Tensor]:
        """Return the states of all, of which the guard's own are views."""
        if key not in self._states:
            ledger = self.core.state.ledgers[key]
            for name, parameter in zip(self.names, self.parameters, strict=True):
                # For the zeros that it makes where a parameter has no states yet.
                ledger.states_of(name, parameter)
            self._states[key] = {state: self._bound(tensors) for state, tensors in ledger.running.items()}
        return self._states[key]

    def begun(self, key: str) -> bool:
        """Return whether there are any; all parameters have gradients, so it makes no difference."""
        return True

    def buffer(self, purpose: str) -> Tensor:
        return self._row(purpose, self.like.dtype).flat

    def task_gradient(self) -> Tensor:
        row = self._row("gradient", self.like.dtype)
        if not self._looked:
            row.fill([grad for grad in self.own if grad is not None])
        return row.flat

    def hand(self, *, in_place: bool) -> Tensor:
        """Return a row, whose parts the optimizer gets where measures will want the task's gradients after the step."""
        if in_place:  # over the copied weights, which nobody wants then
            return self.buffer("weights")
        row = self._row("held", self.like.dtype)
        for parameter, view in zip(self.parameters, row.views, strict=True):
            parameter.grad = view
        # put_back() tells by identity whether the optimizer has cleared or replaced them.
        self.handed = [*row.views]
        return row.flat

    def deliver(self) -> None:
        own = [grad for parameter in self.parameters if (grad := parameter.grad) is not None]
        torch._foreach_copy_(own, self._row("weights", self.like.dtype).views)

    def side_by_side(self, purpose: str, tensors: list[Tensor]) -> Tensor:
        """Return copies of one tensor for each parameter, in a row that is reused for this purpose."""
        return self._row(purpose, tensors[0].dtype).fill(tensors)

    def move(self) -> None:
        """Copy the row of weights back into the parameters."""
        torch._foreach_copy_([*self.parameters], self._row("weights", self.like.dtype).views)

    def moved_from(self, weights: Mapping[str, Tensor]) -> None:
        row = self._row("before", self.like.dtype)
        for name, view in zip(self.names, row.views, strict=True):
            if name in weights:
                view.copy_(weights[name])

    def keep_start(self, before: Tensor) -> None:
        # One copy, of which each parameter has a view: _take_out_of_rows() looks for such.
        kept = self.core.options.storage.exact(before.clone(), self.like)
        self.core.task.start.update(zip(self.names, self._cut(kept), strict=True))

    def _cut(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _row(self, purpose: str, dtype: torch.dtype) -> Row:
        row = self._reused.get(purpose)
        if row is None or row.flat.dtype != dtype:
            row = self._reused[purpose] = Row(self._shapes, dtype, self.like.device)
        return row

    def _bound(self, kept: dict[str, Tensor]) -> Tensor:
        """Lay what is kept about these parameters side by side, and let the guard's own tensors be views of it."""
        first = kept[self.names[0]]
        # Pinned where the guard's own are, so that copies to an accelerator need not be waited for.
        row = Row(self._shapes, first.dtype, first.device, pinned=first.is_pinned())
        flat = row.fill([kept[name] for name in self.names])
        kept.update(zip(self.names, row.views, strict=True))
        return flat


def bundles_of(
    core: Core, parameters: Mapping[str, nn.Parameter], alone: Iterable[str], *, elementwise: bool
) -> list[Bundle]:
    """Return parameters in bundles.

    Args:
        core: what the guard knows.
        parameters: all that an optimizer moves of the protected ones.
        alone: the names of those that are updated by themselves, whatever their size.
        elementwise: whether the hold acts on each weight by itself.
    """
    alone = set(alone)
    elsewhere = core.space.held_elsewhere
    rows: dict[tuple[object, ...], dict[str, nn.Parameter]] = {}
    lengths: Counter[tuple[object, ...]] = Counter()
    found: list[Bundle] = []
    for name, parameter in parameters.items():
        held = elementwise and name in core.state.anchor and name not in elsewhere
        whole = parameter.is_contiguous() and not is_sharded(parameter) and 0 < parameter.numel() <= SMALL
        whole = whole and not _is_packed(core, name)
        grad = parameter.grad
        # A row has one dtype: of parameters that lie in one piece, each with a gradient like itself.
        if name in alone or not whole or grad is None or grad.dtype != parameter.dtype:
            _take_out_of_rows(core, name)
            found.append(Single(core, name, parameter, held=held))
            continue
        # A row counts the steps of its first parameter, so all of them have taken as many.
        begun = name in core.task.start, core.task.steps.get(name, 0)
        # What is kept about a parameter may be of another precision, if its own has changed since.
        kept = [tensors[name] for tensors in (core.state.anchor, *core.state.running()) if name in tensors]
        matrix = core.state.driving.held.get(name)
        precisions = [t.dtype for t in (*kept, *(() if matrix is None else matrix.state().values()))]
        key = (parameter.dtype, parameter.device, held, *begun, *precisions)
        rows.setdefault(key, {})[name] = parameter
        lengths[key] += parameter.numel()
        if lengths[key] >= ROW:
            del lengths[key]
            found.append(_row_of(core, rows.pop(key), held=held))
    return found + [_row_of(core, row, held=bool(key[2])) for key, row in rows.items()]


def _is_packed(core: Core, name: str) -> bool:
    """Return whether an importance or an anchor is kept in bytes that cannot be views of a row."""
    matrix = core.state.driving.held.get(name)
    importance = () if matrix is None else matrix.state().values()
    return any(isinstance(kept, Packed) for kept in (core.state.anchor.get(name), *importance))


def _row_of(core: Core, parameters: dict[str, nn.Parameter], *, held: bool) -> Bundle:
    if len(parameters) > 1:
        return Several(core, parameters, held=held)
    ((name, parameter),) = parameters.items()
    _take_out_of_rows(core, name)
    return Single(core, name, parameter, held=held)
