"""What is kept for one measure: the total so far, and the running states of the current task."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, NotFiniteError
from anchorhold.forms import Diagonal, DiagonalMatrix, Form, Matrix
from anchorhold.forms.damped import add_damping
from anchorhold.guard.arguments.strengths import PatternStrengths, total_trace
from anchorhold.measures import Measure, PathMeasure, SampleMeasure
from anchorhold.measures.base import Finished, States
from anchorhold.tensors.packed import pack_importance
from anchorhold.tensors.sharding import local, whole_maxima, whole_sums, wrap_local
from anchorhold.tensors.storage import Once, Storage, each_as_it_is, running_dtype, to_compute
from anchorhold.tensors.summaries import amount, spread


@dataclass(repr=False)
class TaskImportance:
    """What a measure found for one task."""

    importance: dict[str, Tensor]
    """ω, the task's importance, as added to the total; in a form other than the diagonal, its diagonal.

    With an exchange rate it is added as if this task's samples were as long as those of the first one.
    """

    raw: dict[str, Tensor] | None = None
    """What a path measure accumulated: ω̃ before clamping and rescaling for SI, v before the root for SOS."""

    samples: int | None = None
    """How many samples a measure after training has seen."""

    fallback: dict[str, str] = field(default_factory=dict)
    """The parameters whose per-sample gradients no rule covered, with the way they were found instead."""

    outputs: str | None = None
    """What a measure from data has taken the model's outputs for, and what told it so."""

    forms: dict[str, str] = field(default_factory=dict)
    """In which form each parameter's importance is kept: that of a norm, or of a layer too large, may be another."""

    tokens: float | None = None
    """T, the scored tokens in a sample of this task, of a measure from data; 1 where each is a sample of its own."""

    def __repr__(self) -> str:
        parts = [amount(self.importance.values()), spread(map(local, self.importance.values()))]
        if self.samples is not None:
            of = "" if self.tokens in (None, 1) else f" of {self.tokens:.3g} scored tokens"
            parts.append(f"from {self.samples:,} samples{of}")
        if self.outputs is not None:
            parts.append(f"outputs read as {self.outputs}")
        if set(self.forms.values()) - {"diagonal"}:
            parts.append(", ".join(f"{count} {said}" for said, count in Counter(self.forms.values()).items()))
        if self.fallback:
            parts.append(f"{len(self.fallback)} by {', '.join(sorted(set(self.fallback.values())))}")
        return f"TaskImportance({'; '.join(parts)})"


@dataclass(frozen=True, repr=False)
class PathRecord:
    """What has been measured along the path of the current task so far."""

    running: dict[str, dict[str, dict[str, Tensor]]]
    """The running states of every path measure: by the measure's name, the state's, and then by parameter."""
    start: dict[str, Tensor]
    """θ(0), every parameter just before the task's first step."""
    steps: int
    """How many steps the task has taken."""

    def __repr__(self) -> str:
        seen = max((tensors for states in self.running.values() for tensors in states.values()), key=len, default={})
        whose = ", ".join(self.running) or "no measure"
        return f"PathRecord({whose} after {self.steps} steps of {amount(seen.values())})"


class TaskSoFar:
    """What is known of a task at its end, as measures are given it: of sharded parameters, this process's parts."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        running: Mapping[str, Mapping[str, Tensor]],
        start: Mapping[str, Tensor],
        steps: Mapping[str, int],
        means: Mapping[str, Tensor],
        anchor: Mapping[str, Tensor],
    ) -> None:
        self.parameters: Mapping[str, Tensor] = _Weights(parameters)
        self.means = means
        self._anchor = anchor
        self._whole = parameters
        self._running = running
        self._start = start
        self._steps = steps

    def states(self, name: str) -> States | None:
        """Return a parameter's running states; ``None`` if it has never taken a step."""
        whole = self._whole[name]
        kept = {state: tensors[name] for state, tensors in self._running.items() if name in tensors}
        if not kept:
            return None
        found = {state: local(to_compute(tensor, whole)) for state, tensor in kept.items()}
        some = next(iter(found.values()))
        return {state: found.get(state, torch.zeros_like(some)) for state in self._running}

    def displacement(self, name: str) -> Tensor:
        """Return θ(T) − θ(0), as precise as the running states; 0 where the start was not kept."""
        kept = [tensors[name].dtype for tensors in self._running.values() if name in tensors]
        theta = self.parameters[name]
        theta = theta.to(kept[0]) if kept else theta
        if name not in self._start:
            return torch.zeros_like(theta)
        return theta - local(to_compute(self._start[name], self._whole[name]))

    def steps(self, name: str) -> int:
        """Return how many steps a parameter took."""
        return self._steps.get(name, 0)

    def anchor(self, name: str) -> Tensor | None:
        """Return θ*, what a parameter was held to, as precise as running states; ``None`` in the first task."""
        if name not in self._anchor:
            return None
        whole = self._whole[name]
        return local(to_compute(self._anchor[name], whole)).to(running_dtype(whole))

    def largest(self, values: Mapping[str, Tensor]) -> float:
        """Return the largest of all values, over all parameters and all processes' parts of them."""
        parts = [wrap_local(value, self._whole[name]) for name, value in values.items()]
        return max(map(float, whole_maxima(parts)), default=0.0)

    def sum(self, values: Mapping[str, Tensor]) -> float:
        """Return the sum of all values, over all parameters and all processes' parts of them."""
        parts = [wrap_local(value, self._whole[name]).sum() for name, value in values.items()]
        return sum(map(float, whole_sums(parts)))


class _Weights(Mapping[str, Tensor]):
    """Parameters as measures are given them: in single precision at least, converted when they are asked for."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def __getitem__(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        return local(parameter.detach()).to(running_dtype(parameter))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


@dataclass
class Ledger:
    """The account of one measure."""

    measure: Measure
    form: Form = field(default_factory=Diagonal)
    storage: Storage = field(default_factory=Storage)
    """How its tensors are kept: as all of the guard's, but for a form that says in how many bits."""
    total: dict[str, Matrix] = field(default_factory=dict)
    """Q of every block so far, by the block's name."""
    held: dict[str, Matrix] = field(default_factory=dict)
    """The same as the hold uses it: clamped at 0 where the measure leaves that to the end, damped where that is asked
    for, and weaker where patterns say so, so that c·Q is right everywhere with the largest c."""
    running: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """The running states by name, each by parameter."""
    damping: float = 0.0
    """The share of the mean importance of a weight that holds each beside its own."""
    weights: dict[str, float] = field(default_factory=dict)
    """Of totals that are averages: how many tasks each block's is the mean of, those before it decayed."""
    strengths: PatternStrengths | None = None
    """The strengths of the hold by patterns of names, where they are not all one."""

    def __post_init__(self) -> None:
        _check_measure(self.measure)
        self.form.check(self.measure)
        if self.storage.dtype is torch.bfloat16 and not self.form.supports_bfloat16:
            raise ConfigurationError(
                f"state_dtype=torch.bfloat16 with form={self.form.name!r}: rounded to 16 bits, its matrix is no longer "
                "positive semi-definite, and some directions would be pushed away from the anchor. Leave state_dtype "
                "out, or take a form that bears it: Kronecker(bits=16), 'rotated' or 'lowrank'."
            )
        self._check_packed()
        self.damping = self.form.penalty_damping
        if self.form.storage_dtype is not None:
            self.storage = replace(self.storage, dtype=self.form.storage_dtype)
        self.restart()

    def _check_packed(self) -> None:
        """Refuse state in 8 bits of what they cannot hold."""
        if not self.storage.is_packed:
            return
        if not self.form.elementwise:
            raise ConfigurationError(
                f"state_dtype='8bit' with form={self.form.name!r}: expected form='diagonal', since these 8 bits have "
                "no sign, which factors and eigenvectors need. Take state_dtype=torch.bfloat16 with 'rotated', "
                "'lowrank' or Kronecker(bits=16)."
            )
        if self.measure.clamps_total:
            raise ConfigurationError(
                f"state_dtype='8bit' with {self.measure.name}, whose total has importances below 0 until it is used: "
                "expected a measure that clamps each task's, such as SI() as it comes. Or take "
                "state_dtype=torch.bfloat16."
            )

    @property
    def measured(self) -> dict[str, Matrix]:
        """Q of every block as it was measured, whatever the strengths; none below 0."""
        return self._clamped(self.total) if self.strengths is not None or self.damping else self.held

    @property
    def held_names(self) -> set[str]:
        """The parameters that some block holds."""
        return {name for matrix in self.held.values() for name in matrix.block.parameters}

    @property
    def added_to(self) -> Mapping[str, Matrix]:
        """Q of the tasks so far, to which the next one's will be added: of a measure that replaces it, none."""
        return {} if self.measure.total == "replace" else self.total

    @property
    def diagonal(self) -> dict[str, Tensor]:
        """Ω as it was measured, weight by weight; none below 0."""
        return diagonal_of(self.measured)

    def states_of(self, name: str, parameter: Tensor) -> dict[str, Tensor]:
        """Return a parameter's running states, zeros at first, never in less than single precision."""
        for tensors in self.running.values():
            if name not in tensors:
                nothing = torch.zeros_like(parameter, dtype=running_dtype(parameter), requires_grad=False)
                tensors[name] = self.storage.running(nothing, parameter)
        return {state: tensors[name] for state, tensors in self.running.items()}

    def knows(self, name: str) -> bool:
        """Whether a parameter has running states."""
        return any(name in tensors for tensors in self.running.values())

    def finished(
        self,
        parameters: Mapping[str, Tensor],
        start: Mapping[str, Tensor],
        steps: Mapping[str, int],
        means: Mapping[str, Tensor],
        anchor: Mapping[str, Tensor],
    ) -> tuple[dict[str, Matrix], dict[str, dict[str, Tensor]]]:
        """Return what the measure found for a task, and its lasting states, both checked."""
        finished = self.measure.finish(TaskSoFar(parameters, self.running, start, steps, means, anchor))
        if not isinstance(finished, Finished):
            raise ConfigurationError(
                f"{self.measure.name}.finish() returned a {type(finished).__name__}; expected Finished(importance), "
                "with the importance of each parameter by name."
            )
        importance, lasting = finished
        kept = [state for state, lifetime in self.measure.running.items() if lifetime == "lasting"]
        if unknown := [state for state in lasting if state not in kept]:
            raise ConfigurationError(
                f"{self.measure.name} returned a state {unknown[0]!r} to be kept; those of its that last are {kept}."
            )
        wrapped = {
            state: {
                name: self.storage.running(tensor, parameters[name])
                for name, tensor in self._like(parameters, tensors, state).items()
            }
            for state, tensors in lasting.items()
        }
        omegas = self._like(parameters, importance, "importance")
        # Below 0, weights would be pushed away from the anchor.
        for name, omega in omegas.items() if not self.measure.clamps_total else ():
            own = local(omega)
            if own.numel() and float(own.min()) < 0:
                raise ConfigurationError(
                    f"{self.measure.name} gave an importance of {float(own.min()):g} for a weight of {name!r}; "
                    "expected none below 0. Clamp it, or let clamps_total be True: the total then keeps it, and it "
                    "counts as 0."
                )
        return {name: DiagonalMatrix(name, omega) for name, omega in omegas.items()}, wrapped

    def _like(self, parameters: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
        """Return what a measure found spread as the parameters are, or refuse what is not of their names and shapes."""
        name = self.measure.name
        if found.keys() != parameters.keys():
            missing, unknown = sorted(parameters.keys() - found.keys()), sorted(found.keys() - parameters.keys())
            raise ConfigurationError(
                f"{name} gave an {what} that {'lacks ' + missing[0] if missing else 'has an unknown ' + unknown[0]}; "
                "expected one tensor for each protected parameter."
            )
        own_parts = {key: local(parameter) for key, parameter in parameters.items()}
        for key, tensor in found.items():
            shape = own_parts[key].shape
            if not isinstance(tensor, Tensor) or tensor.shape != shape:
                given = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ConfigurationError(
                    f"{name} gave an {what} of shape {given} for {key!r}, which has {tuple(shape)}; expected one "
                    "number a weight, so that none is spread over others without a word."
                )
        # What a measure gives back may be one of its states, or the weights themselves, which go on changing.
        moving = [*own_parts.values(), *(local(t) for tensors in self.running.values() for t in tensors.values())]
        taken = {tensor.untyped_storage().data_ptr() for tensor in moving}
        own = {k: t.clone() if t.untyped_storage().data_ptr() in taken else t for k, t in found.items()}
        return {key: wrap_local(own[key], parameters[key]) for key in parameters}

    def decayed(self, decay: float) -> float:
        """Return what the total is multiplied by before a task is taken in: the guard's γ, and the measure's own."""
        return decay * self.measure.decay

    def new_total(
        self, found: Mapping[str, Matrix], decay: float, parameters: Mapping[str, Tensor], tasks: int = 0
    ) -> dict[str, Matrix]:
        """Return the total with a task's importance taken in, changing nothing yet.

        Args:
            found: the task's importance, by block.
            decay: the guard's γ.
            parameters: what it is of.
            tasks: how many tasks came before, by which the rounding of packed sums is drawn.
        """
        total, decay, once, kind = dict(self.total), self.decayed(decay), self.once(), self.measure.total
        for name, matrix in found.items():
            like = parameters[matrix.block.parameters[0]]
            added, noise = matrix, None
            if name in total and kind != "replace":
                known = total[name] if total[name].block == matrix.block else total[name].pad(matrix.block)
                earlier = known.to(like.device)
                own = matrix.to(like.device, running_dtype(like))  # measured in turns, it is in storage since
                if kind == "average":
                    before = decay * self.weights.get(name, 0.0)
                    added = own.add(earlier, before).scale(1 / (1 + before))
                else:
                    added = own.add(earlier, decay)
                if self.storage.is_packed:  # the same on all processes, and another in each task
                    noise = torch.Generator(like.device).manual_seed(tasks)
            total[name] = self.to_storage(added, like, once, noise)
            if not total[name].is_finite:
                raise NotFiniteError(
                    f"{self.measure.name}: the importance of {name!r} is not finite, so nothing was consolidated; the "
                    "previous anchor and importance still hold. Look for NaN or overflow in this task's gradients and "
                    "weights; gradients.restart_task() drops what was gathered since the last consolidation."
                )
        return total

    def to_storage(
        self,
        matrix: Matrix,
        parameter: Tensor,
        once: Callable[[Tensor], Tensor],
        noise: torch.Generator | None = None,
    ) -> Matrix:
        """Return a matrix as it is kept beside a parameter of its block; of equal tensors one, by ``once``."""
        return matrix.map(lambda tensor: once(self.storage.importance_to_storage(tensor, parameter, noise)))

    def once(self) -> Callable[[Tensor], Tensor]:
        """Return what gives equal tensors of several blocks as one, where the form lets them have any in common."""
        return Once() if self.form.has_shared_tensors else each_as_it_is

    def shares(self, block: str, decay: float) -> tuple[float, float]:
        """Return by what a block's total and a task's importance are multiplied where they become the next total."""
        decay = self.decayed(decay)
        if self.measure.total == "replace":
            return 0.0, 1.0
        if self.measure.total == "average":
            before = decay * self.weights.get(block, 0.0)
            return before / (1 + before), 1 / (1 + before)
        return decay, 1.0

    def take_in(self, total: dict[str, Matrix], found: Mapping[str, Matrix], decay: float) -> None:
        """Make a total with a task's importance in it the current one."""
        if self.measure.total == "average":
            decay = self.decayed(decay)
            self.weights |= {name: 1 + decay * self.weights.get(name, 0.0) for name in found}
        self.commit(total)

    def commit(self, total: dict[str, Matrix]) -> None:
        """Make a total the current one."""
        self.total = total
        self.held = self.as_held(total)

    def as_held(self, total: dict[str, Matrix]) -> dict[str, Matrix]:
        """Return a total as the hold uses it."""
        found = self._clamped(total)
        if self.damping:  # λ, a share of the mean of all eigenvalues: weights of importance 0 are held a little too
            weights = sum(omega.numel() for matrix in found.values() for omega in matrix.diagonal().values())
            added = self.damping * total_trace(found) / max(1, weights)
            found = {name: add_damping(matrix, added) for name, matrix in found.items()}
        if self.strengths is not None:
            factors = {name: self.strengths.factor(matrix.block.parameters) for name, matrix in total.items()}
            found = {name: m if factors[name] == 1 else m.scale(factors[name]) for name, m in found.items()}
        if found is total or not self.storage.is_packed:
            return found
        return {name: matrix.map(pack_importance) for name, matrix in found.items()}

    def _clamped(self, total: dict[str, Matrix]) -> dict[str, Matrix]:
        if not self.measure.clamps_total:
            return total
        return {
            name: matrix.map(lambda tensor: tensor.clamp(min=0)) if isinstance(matrix, DiagonalMatrix) else matrix
            for name, matrix in total.items()
        }

    def restart(self) -> None:
        """Forget the states of the task; the tensors themselves belong to whoever was given them."""
        lifetimes = self.measure.running
        self.running = {
            state: self.running.get(state, {}) if lifetime == "lasting" else {} for state, lifetime in lifetimes.items()
        }


def diagonal_of(matrices: Mapping[str, Matrix]) -> dict[str, Tensor]:
    """Return the diagonals of all blocks, by parameter."""
    return {name: omega for matrix in matrices.values() for name, omega in matrix.diagonal().items()}


def _check_measure(measure: Measure) -> None:
    """Refuse a measure whose parts do not fit together, before it is asked anything."""
    needs, name = measure.needs, measure.name
    if needs.path and needs.data:
        problem = "needs both every step and data at the end; expected a measure of one or the other"
    elif needs.path and not isinstance(measure, PathMeasure):
        problem = f"needs to see every step and is a {type(measure).__name__}; expected one derived from PathMeasure"
    elif needs.data and not isinstance(measure, SampleMeasure):
        problem = f"needs data and is a {type(measure).__name__}; expected one derived from SampleMeasure"
    elif needs.path and not measure.running:
        problem = "needs to see every step and has no running state; expected one at least, as in {'path': 'task'}"
    elif not set(measure.running.values()) <= {"task", "lasting"}:
        problem = f"has running states {dict(measure.running)}; expected each to be 'task' or 'lasting'"
    elif measure.total not in ("add", "replace", "average"):
        problem = f"has total={measure.total!r}; expected 'add', 'replace' or 'average'"
    elif not name or "/" in name:
        problem = "has no name, or one with '/' in it; expected a name without"
    else:
        return
    raise ConfigurationError(f"The measure {name!r} {problem}.")
