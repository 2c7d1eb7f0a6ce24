"""What is done to one bundle of parameters just before a step and just after it: the recurrences and the hold.

Everything here is element by element, in one pass over the bundle, in pieces that stay in cache: memory traffic is all
that it costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from anchorhold.errors import OrderError
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.rank_gradients import RankGradients
from anchorhold.guard.stepping.bundles import Bundle, Single
from anchorhold.guard.stepping.observed import Observed
from anchorhold.holds.of_weights.quadratic import add_penalty_gradient
from anchorhold.measures import PathMeasure
from anchorhold.measures.base import Seen
from anchorhold.tensors.pieces import in_pieces, is_one_piece
from anchorhold.tensors.storage import put_back, to_compute

Pieces = dict[str, Tensor]
States = dict[str, dict[str, Tensor]]
"""The running states of some measures, by the measure's name and the state's."""


class PathMeasures:
    """The measures that want to see every step, and what they are shown of it."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.observed = Observed()
        self.rank_gradients: RankGradients | None = None
        ledgers = core.state.ledgers.items()
        needs = {key: ledger.measure.needs for key, ledger in ledgers if ledger.measure.needs.path}
        self.every = {key: cast("PathMeasure", core.state.ledgers[key].measure) for key in needs}
        self.waiting = {key: measure for key, measure in self.every.items() if needs[key].step}
        """Those that need Δ."""
        self.at_once = {key: measure for key, measure in self.every.items() if not needs[key].step}
        """Those that do not, and are asked before the step."""
        self.independent = {key for key in needs if needs[key].independent}
        """The names of those that need g′."""
        self.squares = {key for key in needs if needs[key].squares}
        """The names of those that need the samples' squared gradients."""

    def check_step(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Refuse a step for which some measure lacks what it needs."""
        ranks = self.rank_gradients if not self.observed.independent else None
        for key, measure in self.every.items():
            if ranks is not None and measure.takes_estimates:
                ranks.check_step(measure, owned, replaced=bool(self.observed.gradient))
                continue
            measure.check_step(self.observed.samples)
            self._check_squares(key, measure, owned)
            if key in self.independent and not owned.keys() <= self.observed.independent.keys():
                how = "observe_independent(loss)" + (
                    "" if key in self.waiting else " or backward_halves(first, second)"
                )
                raise OrderError(
                    f"{key} needs a second, independent gradient before every step and got none. Call {how} before "
                    "optimizer.step()."
                )

    def _check_squares(self, key: str, measure: PathMeasure, owned: Mapping[str, nn.Parameter]) -> None:
        """Refuse a step that lacks the squared gradients of its samples, and cannot do without."""
        if key not in self.squares or owned.keys() <= self.observed.squares.keys():
            return
        numbers = {self.core.task.steps.get(name, 0) for name in owned}
        if any(map(measure.wants_squares, numbers)):
            raise OrderError(
                f"{key} needs the squared gradients of this step's samples, and got none. Call "
                "observe_samples([batch]) with the step's own batch before optimizer.step(): steps are counted from 0 "
                "in every task. Or take a setting that does without, such as RWalk(fisher='batch')."
            )

    def before_step(self, bundle: Bundle, strength: float, sums: list[Tensor]) -> None:
        """Measure what needs no Δ, keep the weights for the others, and add the hold's gradient.

        Args:
            bundle: the parameters, with their gradients looked at.
            strength: 2c, times the loss scale; 0 for no hold.
            sums: takes in the sums of gradients that only measures after the step will see, to look for NaN.
        """
        g, g_ind = bundle.gradient, bundle.independent
        keep_weights, held = bool(self.waiting), bool(strength) and bundle.held
        measured = [
            key
            for key in self.at_once
            if g is not None or g_ind is not None or bundle.begun(key)  # 0 still ages an average that has begun
        ]
        tensors: dict[str, Tensor | None] = {}
        if keep_weights or held:
            tensors["theta"] = bundle.weights("before" if keep_weights else "weights")
        if held:
            tensors["omega"], tensors["anchor"] = bundle.anchored()
            tensors["task"] = bundle.task_gradient()
            tensors["out"] = bundle.hand(in_place=not keep_weights)
        if keep_weights and isinstance(bundle, Single):
            tensors["before"] = bundle.buffer("before")
        kept, states = self._states(bundle, measured)
        if measured:
            tensors |= self._shown(bundle, measured, states)
        look = keep_weights and not self.at_once and bundle.like.device.type == "cpu"
        if look:
            tensors |= {"g": g, "g_ind": g_ind}
        for piece, own in _pieces(tensors, states):
            for key in measured:
                self._update(self.at_once[key], own[key], piece, bundle)
            if "before" in piece:
                piece["before"].copy_(piece["theta"])
            if look:
                sums += [piece[name].sum() for name in ("g", "g_ind") if name in piece]
            if held:
                add_penalty_gradient(
                    piece["task"], piece["theta"], piece["omega"], piece["anchor"], factor=strength, out=piece["out"]
                )
        if held and not keep_weights:
            bundle.deliver()
        _put_back(states, kept)

    def after_step(self, bundle: Bundle) -> None:
        """Give Δ to the measures that wait for it."""
        waiting = list(self.waiting)
        kept, states = self._states(bundle, waiting)
        tensors = {"theta": bundle.weights("weights"), "step": bundle.buffer("before")}
        for piece, own in _pieces(tensors | self._shown(bundle, waiting, states), states):
            # The weights before the step are not needed again.
            torch.sub(piece["theta"], piece["step"], out=piece["step"])
            for key in waiting:
                self._update(self.waiting[key], own[key], piece, bundle)
        _put_back(states, kept)

    def _shown(self, bundle: Bundle, measured: Sequence[str], states: States) -> dict[str, Tensor | None]:
        """Return what measures are shown: g and g′, 0 where there is none, or what the ranks' gradients come to."""
        some = next(iter(states[measured[0]].values()))
        g, g_ind, square = bundle.gradient, bundle.independent, None
        ranks = self.rank_gradients if not self.observed.independent else None
        if ranks is not None and g is not None and not self.waiting.keys() & set(measured):
            square = bundle.mean_square(ranks)
        elif g_ind is None and not self.independent.isdisjoint(measured):
            g_ind = torch.zeros_like(some)
        return {"g": torch.zeros_like(some) if g is None else g, "g_ind": g_ind, "square": square} | (
            {"squares": bundle.squares} if not self.squares.isdisjoint(measured) else {}
        )

    def _states(self, bundle: Bundle, keys: Sequence[str]) -> tuple[States, States]:
        """Return the running states of some measures as they are kept, and where the parameters are."""
        kept = {key: bundle.states(key) for key in keys}
        if self.core.options.storage.device is None:
            return kept, kept
        return kept, {key: {state: to_compute(t, bundle.like) for state, t in own.items()} for key, own in kept.items()}

    def _update(self, measure: PathMeasure, states: Pieces, piece: Pieces, bundle: Bundle) -> None:
        """Take a step, or a piece of it, into a measure's states."""
        # In 16 bits a difference of gradients would lose its digits.
        g = piece["g"].to(next(iter(states.values())).dtype)
        number = self.core.task.steps.get(bundle.names[0], 0) - ("step" in piece)
        if "square" in piece and measure.takes_estimates:
            ranks = self.rank_gradients
            assert ranks is not None
            counted = {"number": number} if measure.needs.number else {}
            measure.update_from_estimates_(states, g, piece["square"], ranks.estimates, ranks.samples, **counted)
            return
        given = piece.get("g_ind"), piece.get("step"), self.observed.samples, number, piece.get("squares")
        measure.update_(states, Seen(g, *given))


def _pieces(
    tensors: Mapping[str, Tensor | None], states: Mapping[str, Pieces]
) -> Iterable[tuple[Pieces, Mapping[str, Pieces]]]:
    """Return matching pieces of tensors by name, without those that are ``None``, and of every measure's states."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if not given:
        return []
    if is_one_piece(next(iter(given.values()))):
        return [(given, states)]
    places = [(key, state) for key, own in states.items() for state in own]
    cuts = in_pieces([*given.values(), *(states[key][state] for key, state in places)])
    return (_by_name(given, places, states, cut) for cut in cuts)


def _by_name(
    given: Pieces, places: Sequence[tuple[str, str]], states: Mapping[str, Pieces], cut: Sequence[Tensor]
) -> tuple[Pieces, Mapping[str, Pieces]]:
    own: dict[str, Pieces] = {key: {} for key in states}
    for (key, state), piece in zip(places, cut[len(given) :], strict=True):
        own[key][state] = piece
    return dict(zip(given, cut, strict=False)), own


def _put_back(used: States, kept: States) -> None:
    """Keep what was changed where it is kept."""
    if used is kept:
        return
    for key, own in kept.items():
        for state, tensor in own.items():
            put_back(used[key][state], tensor)
