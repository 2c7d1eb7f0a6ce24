"""Watching an optimiser's steps: what happens just before and just after each of them.

Before a step, the measures that need no Δ see g, the weights are remembered for those that do, and the hold's gradient
joins the task's. After it, the others see g and Δ. Parameters are walked in bundles, each of them once, in pieces that
stay in cache: memory traffic is all that this costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.errors import NotFiniteError, OrderError
from holdfast.guard.distributed.rank_gradients import RankGradients
from holdfast.guard.memory import Memory
from holdfast.guard.steps.bundles import Bundle, Single, bundles_of
from holdfast.guard.steps.closures import closure_in, guarded, with_closure
from holdfast.guard.steps.handed_gradients import HandedGradients, Lent, Overwriters
from holdfast.guard.steps.observed import Observed
from holdfast.guard.steps.optimizers import (
    give_each_its_own_gradient,
    ids,
    is_within_its_own_step,
    read_scaling,
    trained_by,
)
from holdfast.holds import Hold, Quadratic
from holdfast.holds.base import checked_pull
from holdfast.holds.quadratic import add_penalty_gradient, add_pull, penalty_value
from holdfast.measures import PathMeasure
from holdfast.measures.base import Seen
from holdfast.tensors.pieces import in_pieces, is_one_piece
from holdfast.tensors.sharding import local
from holdfast.tensors.storage import at_hand, put_back

Pieces = dict[str, Tensor]
States = dict[str, dict[str, Tensor]]
"""The running states of some measures, by the measure's name and the state's."""


@dataclass
class Walk:
    """The parameters that one optimiser moves, laid out for its steps."""

    trained: list[nn.Parameter]
    """All parameters of the optimiser, and below, which of them can be trained: what it was made for."""
    trainable: list[bool]
    version: int
    owned: dict[str, nn.Parameter]
    bundles: list[Bundle]


class StepWatcher:
    """Observes, and holds back, the steps of optimisers."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.observed = Observed()
        self.rank_gradients: RankGradients | None = None
        ledgers = memory.ledgers.items()
        self.path_measures = {
            name: cast("PathMeasure", ledger.measure) for name, ledger in ledgers if ledger.measure.needs.path
        }
        """The measures that want to see every step, by name."""
        needs = {key: measure.needs for key, measure in self.path_measures.items()}
        self._waiting = {key: measure for key, measure in self.path_measures.items() if needs[key].step}
        self._at_once = {key: measure for key, measure in self.path_measures.items() if not needs[key].step}
        self._independent = {key for key in needs if needs[key].independent}
        self._overwriters = Overwriters()
        self._passed_over: set[int] = set()
        self._alone: set[str] = set()
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._walks: WeakKeyDictionary[Optimizer, Walk] = WeakKeyDictionary()
        self._stepping: list[Bundle] = []
        self._lent: list[Lent] = []
        self._handed: HandedGradients | None = None

    @property
    def holds_anything(self) -> bool:
        """Whether there is anything that could pull."""
        return bool(self.memory.anchor or self.memory.holds)

    def hook(self, optimizer: Optimizer, *, hold: bool) -> list[RemovableHandle]:
        """Watch an optimiser, and hold its steps back if ``hold``."""
        # A compiled step calls the hooks as they are: what they do differs from parameter to parameter, so tracing them
        # would compile each anew.
        return [
            optimizer.register_step_pre_hook(torch.compiler.disable(partial(self._pre_hook, hold))),
            optimizer.register_step_post_hook(torch.compiler.disable(partial(self._post_hook, hold))),
        ]

    def forget_layouts(self) -> None:
        """Let go of the rows and buffers of steps, which the next step makes anew."""
        self._walks = WeakKeyDictionary()

    def release(self) -> None:
        """Let go of what was given for a step to come, and of what is reused, as large as two copies of the model."""
        self.observed = Observed()
        self._forget_steps()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to a step or to optimisers: a copy watches none yet."""
        return {"memory": self.memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["memory"])  # type: ignore[misc]

    def take_in_new(self, optimizer: Optimizer) -> None:
        """Begin to watch what an optimiser trains that was not there before, or frozen.

        Layers are unfrozen in the middle of a task, and Lightning freezes all but one optimiser's for its step.
        """
        known = ids(self.memory.parameters.values()) | self._passed_over
        new = [parameter for parameter in trained_by(optimizer) if id(parameter) not in known]
        trainable = ids(parameter for parameter in new if parameter.requires_grad)
        if trainable:
            self.memory.refresh()
            # What the selection leaves out need not be looked up at every step.
            self._passed_over |= trainable - ids(self.memory.parameters.values())

    def owned(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the protected parameters that this optimiser trains."""
        trained = ids(trained_by(optimizer))
        return {name: p for name, p in self.memory.parameters.items() if id(p) in trained and p.requires_grad}

    # Before a step

    def _pre_hook(
        self, hold: bool, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_within_its_own_step(optimizer):
            return None
        closure = closure_in(args, kwargs)
        if closure is None:
            self.begin(optimizer, hold=hold)
            return None
        return with_closure(args, kwargs, guarded(closure, self, optimizer, hold=hold))

    @torch.no_grad()
    def begin(self, optimizer: Optimizer, *, hold: bool, closure: bool = False) -> None:
        """Do what comes before a step, or raise before anything has changed; a closure makes new gradients later."""
        walk = self._current_walk(optimizer)
        if self._is_tried_again(optimizer, walk):
            return  # it is measured and held already
        self._let_go_of_last_step()
        scaling = read_scaling(optimizer)
        if scaling.skipped:
            return
        memory = self.memory
        if not memory.steps:
            self._begin_task()
        if not memory.steps or optimizer not in self._walks or walk is None:
            self.take_in_new(optimizer)
            walk = self._laid_out(optimizer)
        owned = walk.owned
        waiting, at_once = bool(self._waiting), bool(self._at_once)
        self._check_measures(owned)
        strength = 2 * memory.strength * scaling.factor if hold else 0.0
        pulls = self._pulls(owned) if hold else []
        in_place = self._written_in_place(walk, pulls, strength)
        give_each_its_own_gradient(in_place)
        bundles, sums = self._look(
            optimizer,
            walk,
            factor=scaling.factor,
            held_apart=bool(strength),
            sums=at_once,
            waiting=waiting,
            closure=closure,
        )
        # Measures that all wait for the step have no state to spoil yet: there, the walk itself looks for NaN.
        if at_once and memory.found_by_any_rank([] if _finite(sums) else [True]):
            self._refuse_unless_finite(bundles)
        sums = []
        for bundle in bundles:
            self._before_step(bundle, strength, sums)
        self._stepping = bundles
        if waiting and memory.found_by_any_rank([] if _finite(sums) else [True]):
            self._refuse_unless_finite(bundles)
        self._add_pulls(owned, pulls, scaling.factor, in_place=not waiting)
        self._count_step(bundles, keep_start=waiting)
        if not closure and (strength or self.path_measures or memory.holds):
            if waiting:
                self._lend(bundles)
            self._handed = HandedGradients(optimizer, owned, in_place)

    def _written_in_place(
        self, walk: Walk, pulls: Sequence[Mapping[str, Tensor]], strength: float
    ) -> dict[str, nn.Parameter]:
        """Return the parameters whose own gradients are written to: nobody needs the task's after the step."""
        if self._waiting:
            return {}
        pulled = {name for pull in pulls for name in pull}
        held = [bundle for bundle in walk.bundles if bundle.held and strength]
        found = {n: p for bundle in held for n, p in zip(bundle.names, bundle.parameters, strict=True)}
        return found | {name: walk.owned[name] for name in pulled}

    def _begin_task(self) -> None:
        """Look at the model again, and let holds look at its weights, before a task's first step."""
        memory = self.memory
        memory.refresh()
        self._passed_over = set()
        for each in memory.holds:
            each.begin_task(memory.held(memory.parameters))

    def _look(
        self,
        optimizer: Optimizer,
        walk: Walk,
        *,
        factor: float,
        held_apart: bool,
        sums: bool,
        waiting: bool,
        closure: bool,
    ) -> tuple[list[Bundle], list[Tensor]]:
        """Return the bundles, with the gradients that measures see, and the sums of these where they are asked for.

        Parameters that lack a gradient go by themselves from now on.
        """
        at_risk = waiting and self._overwriters.may_include(optimizer)
        lacking: set[str] = set()
        found: list[Tensor] = []
        for bundle in walk.bundles:
            # What is held goes to the optimiser as another tensor; the rest it might overwrite.
            copy = waiting and (closure or (at_risk and not (held_apart and bundle.held)))
            if not bundle.look(self.observed, factor, copy=copy):
                lacking |= set(bundle.lacking(self.observed))
            elif sums and bundle.like.device.type == "cpu":  # an accelerator would have to be waited for
                found += [local(g).sum() for g in (bundle.gradient, bundle.independent) if g is not None]
        if not lacking:
            return walk.bundles, found
        self._alone |= lacking
        return self._look(
            optimizer,
            self._laid_out(optimizer),
            factor=factor,
            held_apart=held_apart,
            sums=sums,
            waiting=waiting,
            closure=closure,
        )

    def _before_step(self, bundle: Bundle, strength: float, sums: list[Tensor]) -> None:
        """Walk once through a bundle: measure what needs no Δ, keep the weights, add the hold's gradient."""
        g, g_ind = bundle.gradient, bundle.independent
        keep_weights, held = bool(self._waiting), bool(strength) and bundle.held
        measured = [
            key
            for key in self._at_once
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
        look = keep_weights and not self._at_once and bundle.like.device.type == "cpu"
        if look:
            tensors |= {"g": g, "g_ind": g_ind}
        for piece, own in _pieces(tensors, states):
            for key in measured:
                self._update(self._at_once[key], own[key], piece, bundle)
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

    def _shown(self, bundle: Bundle, measured: Sequence[str], states: States) -> dict[str, Tensor | None]:
        """Return what measures are shown: g and g′, 0 where there is none, or what the ranks' gradients come to."""
        some = next(iter(states[measured[0]].values()))
        g, g_ind, square = bundle.gradient, bundle.independent, None
        ranks = self.rank_gradients if not self.observed.independent else None
        if ranks is not None and g is not None and not self._waiting.keys() & set(measured):
            square = bundle.mean_square(ranks)
        elif g_ind is None and not self._independent.isdisjoint(measured):
            g_ind = torch.zeros_like(some)
        return {"g": torch.zeros_like(some) if g is None else g, "g_ind": g_ind, "square": square}

    def _states(self, bundle: Bundle, keys: Sequence[str]) -> tuple[States, States]:
        """Return the running states of some measures as they are kept, and where the parameters are."""
        kept = {key: bundle.states(key) for key in keys}
        if self.memory.storage.device is None:
            return kept, kept
        return kept, {key: {state: at_hand(t, bundle.like) for state, t in own.items()} for key, own in kept.items()}

    def _update(self, measure: PathMeasure, states: Pieces, piece: Pieces, bundle: Bundle) -> None:
        """Take a step, or a piece of it, into a measure's states."""
        # In 16 bits a difference of gradients would lose its digits.
        g = piece["g"].to(next(iter(states.values())).dtype)
        if "square" in piece and measure.takes_estimates:
            ranks = self.rank_gradients
            assert ranks is not None
            measure.update_from_estimates_(states, g, piece["square"], ranks.estimates, ranks.samples)
            return
        number = self.memory.steps.get(bundle.names[0], 0) - ("step" in piece)
        measure.update_(states, Seen(g, piece.get("g_ind"), piece.get("step"), self.observed.samples, number))

    @torch.no_grad()
    def add_holds(self, owned: Mapping[str, nn.Parameter]) -> Tensor:
        """Add the gradients of all holds in place, for a closure, and return their value."""
        memory = self.memory
        held = memory.anchor if memory.driving.form.elementwise and memory.strength else {}
        for name, parameter in owned.items():
            if name in held:
                bundle = Single(memory, name, parameter, held=True)
                (omega, anchor), grad = bundle.anchored(), bundle.task_gradient()
                for g, theta, piece, theta_star in in_pieces([grad, parameter.detach(), omega, anchor]):
                    add_penalty_gradient(g, theta, piece, theta_star, factor=2 * memory.strength, out=g)
        pulls = self._pulls(owned)
        give_each_its_own_gradient({name: owned[name] for pull in pulls for name in pull})
        self._add_pulls(owned, pulls, 1.0, in_place=True)
        value = penalty_value(owned, memory.driving.held, memory.anchor, memory.strength)
        for each in memory.holds:
            own = each.value(memory.held(owned))
            value = value if own is None else value + own.detach().to(value.device)
        return value

    def _pulls(self, owned: Mapping[str, nn.Parameter]) -> list[dict[str, Tensor]]:
        """Return the gradients of holds that are not element by element, and of those beside the guard's own."""
        memory = self.memory
        holds: list[Hold] = list(memory.holds)
        if not memory.driving.form.elementwise and memory.anchor and memory.strength:
            holds.append(Quadratic())
        found = []
        for each in holds:
            with torch.set_grad_enabled(each.runs_model):
                added = each.gradient(memory.held(owned))
            found.append({name: pull.detach() for name, pull in checked_pull(each, added, owned).items()})
        return found

    def _add_pulls(
        self,
        owned: Mapping[str, nn.Parameter],
        pulls: Sequence[Mapping[str, Tensor]],
        factor: float,
        *,
        in_place: bool,
    ) -> None:
        """Add them to what the optimiser gets; where measures will want the task's gradient, to a copy."""
        if not pulls:
            return
        places = {name: (bundle, i) for bundle in self._stepping for i, name in enumerate(bundle.names)}
        for added in pulls:
            for name, pull in added.items():
                parameter, (bundle, place) = owned[name], places[name]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                    bundle.handed[place] = None if in_place else parameter.grad
                elif not in_place and bundle.handed[place] is None:
                    bundle.handed[place] = parameter.grad = parameter.grad.clone()
                add_pull(parameter.grad, pull, factor)

    # After a step

    @torch.no_grad()
    def _post_hook(self, hold: bool, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what comes after a step."""
        if is_within_its_own_step(optimizer):
            return
        self._overwriters.look(optimizer, self._lent)
        stepping, self._stepping, self._lent = self._stepping, [], []
        for bundle in stepping:
            moved = bundle.gradient is not None or bundle.independent is not None
            moved = moved or any(grad is not None for grad in (*bundle.own, *bundle.handed))
            bundle.put_back()
            if self._waiting and moved:  # no optimiser moves a parameter without a gradient
                self._after_step(bundle)
            bundle.let_go()
        walk = self._walks.get(optimizer)
        owned = self.owned(optimizer) if walk is None else walk.owned
        if hold and stepping:
            for each in self.memory.holds:
                each.after_step(self.memory.held(owned))
        if self._handed is not None:
            self._handed.ended = True
        if self.observed.gradient or self.observed.independent:
            self.observed.drop(list(owned))
        if self.rank_gradients is not None:
            self.rank_gradients.clear(trained_by(optimizer))

    def _after_step(self, bundle: Bundle) -> None:
        """Give Δ to the measures that wait for it."""
        waiting = list(self._waiting)
        kept, states = self._states(bundle, waiting)
        tensors = {"theta": bundle.weights("weights"), "step": bundle.buffer("before")}
        for piece, own in _pieces(tensors | self._shown(bundle, waiting, states), states):
            # The weights before the step are not needed again.
            torch.sub(piece["theta"], piece["step"], out=piece["step"])
            for key in waiting:
                self._update(self._waiting[key], own[key], piece, bundle)
        _put_back(states, kept)

    # Helpers

    def _laid_out(self, optimizer: Optimizer) -> Walk:
        """Lay out the protected parameters of an optimiser anew."""
        memory, owned = self.memory, self.owned(optimizer)
        for other, theirs in list(self._walks.items()):
            shared = theirs.owned.keys() & owned.keys() if other is not optimizer else set()
            if shared:  # what two optimisers move cannot lie in the rows of both
                self._alone |= shared
                del self._walks[other]
        trained = trained_by(optimizer)
        bundles = bundles_of(memory, owned, self._alone, elementwise=memory.driving.form.elementwise)
        walk = Walk(trained, [p.requires_grad for p in trained], memory.version, dict(owned), bundles)
        self._walks[optimizer] = walk
        return walk

    def _current_walk(self, optimizer: Optimizer) -> Walk | None:
        """Return how an optimiser's parameters are laid out, unless anything has changed about them."""
        walk = self._walks.get(optimizer)
        if walk is None or walk.version != self.memory.version:
            return None
        trained = trained_by(optimizer)
        same = list(map(id, walk.trained)) == list(map(id, trained))
        same = same and walk.trainable == [p.requires_grad for p in trained]
        return walk if same and all(bundle.is_in_place for bundle in walk.bundles) else None

    def _count_step(self, bundles: Sequence[Bundle], *, keep_start: bool) -> None:
        memory = self.memory
        for bundle in bundles:
            if keep_start and bundle.names[0] not in memory.start:
                bundle.keep_start(bundle.buffer("before"))
            for name in bundle.names:
                memory.steps[name] = memory.steps.get(name, 0) + 1

    def _let_go_of_last_step(self) -> None:
        self._handed = None
        if self._stepping:  # it never ended; its buffers may still be some parameter's gradient
            self._walks = WeakKeyDictionary()
            self._stepping, self._lent = [], []

    def _is_tried_again(self, optimizer: Optimizer, walk: Walk | None) -> bool:
        """Whether this very step has begun before, and raised; one that has ended is not to be taken twice."""
        if self._handed is None:
            return False
        owned = self.owned(optimizer) if walk is None else walk.owned
        if self._handed.is_tried_again(optimizer, owned):
            return True
        if (name := self._handed.still_changed(owned)) is not None:
            raise OrderError(
                f"The gradient of {name!r} is still that of the last step, with the penalty's in it: optimizer.step() "
                "was called again without a new backward pass, or by another optimiser that trains the same parameter. "
                "Call optimizer.zero_grad() and backward() before every step."
            )
        return False

    def _lend(self, bundles: Sequence[Bundle]) -> None:
        """Note which gradients the optimiser is about to get as they are."""
        for bundle in bundles:
            given = bundle.own[0]
            if isinstance(bundle, Single) and given is not None and bundle.like.grad is given:
                self._lent.append(Lent(given, given._version, measured=bundle.gradient is given))

    def _check_measures(self, owned: dict[str, nn.Parameter]) -> None:
        """Refuse a step for which some measure lacks what it needs."""
        ranks = self.rank_gradients if not self.observed.independent else None
        for key, measure in self.path_measures.items():
            if ranks is not None and measure.takes_estimates:
                ranks.check_step(measure, owned, replaced=bool(self.observed.gradient))
                continue
            measure.check_step(self.observed.samples)
            if key in self._independent and not owned.keys() <= self.observed.independent.keys():
                how = "observe_independent(loss)" + (
                    "" if key in self._waiting else " or backward_halves(first, second)"
                )
                raise OrderError(
                    f"{key} needs a second, independent gradient before every step and got none. Call {how} before "
                    "optimizer.step()."
                )

    def _refuse_unless_finite(self, bundles: Sequence[Bundle]) -> None:
        """Refuse a NaN or an infinity before it spoils anything; on a CPU, where looking costs little.

        An accelerator would have to be waited for at every step: there, the end of the task finds it.
        """
        spoilt = [
            name
            for bundle in bundles
            if not all(map(_looks_finite, (bundle.gradient, bundle.independent)))
            for name in bundle.names
            if len(bundle.names) == 1 or not bundle.is_finite(name)
        ]
        spoilt.sort(key=list(self.memory.parameters).index)
        for name in self.memory.found_by_any_rank(spoilt):
            for bundle in bundles:
                bundle.put_back()
            self._stepping = []
            step = self.memory.steps.get(name, 0) + 1
            raise NotFiniteError(
                f"The gradient of {name!r} holds a NaN or an infinity at step {step} of this task. The step was not "
                "taken and nothing was recorded. Look at this batch and its loss; zero the gradients to go on without "
                "it."
            )


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


def _finite(sums: Sequence[Tensor]) -> bool:
    """Whether all of some sums are numbers."""
    return not sums or bool(torch.stack([total.double() for total in sums]).isfinite().all())


def _looks_finite(gradient: Tensor | None) -> bool:
    """Whether a gradient holds numbers alone, as far as can be seen without waiting for an accelerator."""
    if gradient is None or gradient.device.type != "cpu":
        return True
    own = local(gradient)
    # The sum is not finite if any element is not; the reverse is rare, and then looked into.
    return bool(own.sum().isfinite()) or bool(own.isfinite().all())
