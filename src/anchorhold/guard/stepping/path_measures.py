"""The measures that see every step: what they need, what they are shown, and what they have gathered so far."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, OrderError, shortened
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.rank_gradients import RankGradients
from anchorhold.guard.ledger import PathRecord
from anchorhold.guard.stepping.bundles import Bundle
from anchorhold.guard.stepping.observed import Observed
from anchorhold.measures import PathMeasure
from anchorhold.measures.base import Seen
from anchorhold.tensors.packed import unpacked
from anchorhold.tensors.pieces import in_pieces, is_one_piece
from anchorhold.tensors.storage import put_back, to_compute

Pieces = dict[str, Tensor]
States = dict[str, dict[str, Tensor]]
"""The running states of some measures, by the measure's name and the state's."""


class PathMeasures:
    """Give the measures along the path their gradients and Δ, and keep their running states.

    Args:
        core: what the guard is made of.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.observed = Observed()
        self.rank_gradients: RankGradients | None = None
        ledgers = core.state.ledgers.items()
        needs = {key: ledger.measure.needs for key, ledger in ledgers if ledger.measure.needs.path}
        self.every = {key: cast("PathMeasure", core.state.ledgers[key].measure) for key in needs}
        self.waiting = {key: measure for key, measure in self.every.items() if needs[key].step}
        """Those that need Δ, and are asked after the step."""
        self.at_once = {key: measure for key, measure in self.every.items() if not needs[key].step}
        """Those that do not, and are asked before the step."""
        self.only_wait = bool(self.waiting) and not self.at_once
        """Whether all measures see gradients after the step alone, so that a NaN before it spoils none."""
        self.independent = {key for key in needs if needs[key].independent}
        """The names of those that need g′."""
        self.squares = {key for key in needs if needs[key].squares}
        """The names of those that need the samples' squared gradients."""

    def check_step(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Raise :class:`OrderError` if some measure lacks what it needs for a step of these parameters."""
        # A second gradient that a user gives goes before the ranks' own.
        ranks = self.rank_gradients if not self.observed.independent else None
        for key, measure in self.every.items():
            if ranks is not None and measure.takes_estimates:
                ranks.check_step(measure, owned, replaced=bool(self.observed.gradient))
                continue
            measure.check_step(self.observed.samples)
            if key in self.squares and not owned.keys() <= self.observed.squares.keys():
                numbers = {self.core.task.steps.get(name, 0) for name in owned}
                if any(map(measure.wants_squares, numbers)):
                    raise OrderError(
                        f"{key} needs the squared gradients of this step's samples, and got none. Call "
                        "gradients.samples([batch]) with the step's own batch before optimizer.step(): steps are "
                        "counted from 0 in every task. Or take a setting that does without, such as "
                        "RWalk(fisher='batch')."
                    )
            if key in self.independent and not owned.keys() <= self.observed.independent.keys():
                how = "gradients.independent(loss)" + (
                    "" if key in self.waiting else " or gradients.halves(first, second)"
                )
                raise OrderError(
                    f"{key} needs a second, independent gradient before every step and got none. Call {how} before "
                    "optimizer.step()."
                )

    def shown(self, bundle: Bundle, keys: Sequence[str]) -> tuple[dict[str, Tensor | None], States, States]:
        """Return what some measures are shown, with their running states where the parameters are, and as kept.

        That is g and g′, 0 where there is none, or what the ranks' gradients come to.
        """
        if not keys:
            return {}, {}, {}
        used = kept = {key: bundle.states(key) for key in keys}
        if self.core.options.storage.device is not None:
            # Copies on the parameter's device, which write_back() brings home.
            used = {key: {state: to_compute(t, bundle.like) for state, t in own.items()} for key, own in kept.items()}
        some = next(iter(used[keys[0]].values()))
        g, g_ind, square = bundle.gradient, bundle.independent, None
        ranks = self.rank_gradients if not self.observed.independent else None
        if ranks is not None and g is not None and not self.waiting.keys() & set(keys):
            square = bundle.mean_square(ranks)
        elif g_ind is None and not self.independent.isdisjoint(keys):
            g_ind = torch.zeros_like(some)
        shown = {"g": torch.zeros_like(some) if g is None else g, "g_ind": g_ind, "square": square}
        if not self.squares.isdisjoint(keys):
            shown["squares"] = bundle.squares
        return shown, used, kept

    def update(self, measure: PathMeasure, states: Pieces, piece: Pieces, number: int) -> None:
        """Update a measure's states by a step, or a piece of it.

        Args:
            measure: whose they are.
            states: they themselves.
            piece: what :meth:`shown` returned, with Δ as ``"step"`` after the step.
            number: how many steps of the task came before.
        """
        # In 16 bits a difference of gradients would lose its digits.
        g = piece["g"].to(next(iter(states.values())).dtype)
        if "square" in piece and measure.takes_estimates:
            ranks = self.rank_gradients
            assert ranks is not None
            counted = {"number": number} if measure.needs.number else {}
            measure.update_from_estimates_(states, g, piece["square"], ranks.estimates, ranks.samples, **counted)
            return
        given = piece.get("g_ind"), piece.get("step"), self.observed.samples, number, piece.get("squares")
        measure.update_(states, Seen(g, *given))


def pieces_of(
    tensors: Mapping[str, Tensor | None], states: Mapping[str, Pieces]
) -> Iterable[tuple[Pieces, Mapping[str, Pieces]]]:
    """Return matching pieces, which stay in cache, of tensors by name and of every measure's states.

    Tensors that are ``None`` are left out.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not given:
        return []
    if is_one_piece(next(iter(given.values()))):
        return [({name: unpacked(tensor) for name, tensor in given.items()}, states)]
    places = [(key, state) for key, own in states.items() for state in own]

    def by_name(cut: Sequence[Tensor]) -> tuple[Pieces, Mapping[str, Pieces]]:
        own: dict[str, Pieces] = {key: {} for key in states}
        for (key, state), piece in zip(places, cut[len(given) :], strict=True):
            own[key][state] = piece
        # `cut` goes on with the pieces of states.
        return dict(zip(given, cut, strict=False)), own

    return map(by_name, in_pieces([*given.values(), *(states[key][state] for key, state in places)]))


def write_back(used: States, kept: States) -> None:
    """Write running states that were changed on the parameters' device to where they are kept."""
    if used is kept:
        return
    for key, own in kept.items():
        for state, tensor in own.items():
            put_back(used[key][state], tensor)


# Records, given to and taken from engines that take steps of their own


def path_of(core: Core, measures: Collection[str]) -> PathRecord:
    """Return what these measures have gathered in the current task."""
    running = {
        label: {state: dict(tensors) for state, tensors in core.state.ledgers[label].running.items()}
        for label in measures
    }
    return PathRecord(running, dict(core.task.start), core.task.most_steps)


def take_path(core: Core, measures: Mapping[str, PathMeasure], record: PathRecord) -> None:
    """Take a record in the place of what these measures have gathered.

    Raise :class:`ConfigurationError` if it is of other measures, states or shapes, which would count as nothing.
    """
    if not isinstance(record, PathRecord):
        raise ConfigurationError(f"path={shortened(record)}: expected a PathRecord, as guard.gradients.path is.")
    if unknown := sorted(set(record.running) - set(measures)):
        raise ConfigurationError(f"path has a measure {unknown[0]!r}; along the path here are {list(measures)}.")
    parameters = core.runtime.parameters
    for label, states in record.running.items():
        expected = list(measures[label].running)
        if unknown := sorted(set(states) - set(expected)):
            raise ConfigurationError(f"path has a state {unknown[0]!r} of {label}; its states are {expected}.")
        for name, tensor in ((n, t) for tensors in states.values() for n, t in tensors.items()):
            if name not in parameters or tensor.shape != parameters[name].shape:
                has = f"one of shape {tuple(parameters[name].shape)}" if name in parameters else "none of that name"
                raise ConfigurationError(
                    f"path has a state of {label} for a parameter {name!r} of shape {tuple(tensor.shape)}; "
                    f"protected here is {has}."
                )
    for label in measures:
        ledger = core.state.ledgers[label]
        given = record.running.get(label, {})
        ledger.running = {state: dict(given.get(state, {})) for state in ledger.measure.running}
    # Layouts have rows of the states until now, and are made anew.
    core.runtime.version += 1
    core.task.start = dict(record.start)
    # One number for all: an engine that gives a record moves every parameter in each of its steps.
    core.task.steps = dict.fromkeys(parameters, record.steps) if record.steps else {}
