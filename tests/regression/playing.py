"""A case played: all that is asked of the library, by its public names alone."""

import copy
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anchorhold
from anchorhold.guard.arguments.strengths import Importance
from tests.guard.sam import SAM
from tests.helpers import grouped
from tests.regression.networks import batches, loss_of, network

STEPS, END, AFTER = 4, 4, 5
"""The steps of a task, and the places where it ends and has ended."""
HALF = 2
"""The step of the second task before which a run is stopped and goes on."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A guard, a network, an optimizer, and what happens to them in some short tasks.

    Args:
        measure: its name, or a name and its settings.
        form: a name, or a name and its settings.
        network: a name in ``networks.NETWORKS``.
        optimizer: a name in ``OPTIMIZERS``.
        train: how a step is taken, a name in ``WAYS``.
        holds: each a name, the name and size of a buffer or ``None``, and settings.
        options: the guard's other arguments, made anew for each guard.
        events: what else happens, ``event(play, task, step)`` before each step, at a task's end and after it.
        consolidate: further arguments of ``consolidate``; ``None`` if an event does it.
        tasks: how many.
        resumes: whether a new process could go on from the middle with what is saved.
    """

    measure: Any = "EWC"
    form: Any = "diagonal"
    network: str = "mlp"
    optimizer: str = "sgd"
    train: str = "plain"
    holds: tuple[Any, ...] = ()
    options: Callable[[], dict[str, Any]] = dict
    events: Callable[["Play", int, int], None] = lambda play, task, step: None
    consolidate: dict[str, Any] | None = dataclasses.field(default_factory=dict)
    tasks: int = 2
    resumes: bool = True

    @property
    def apart(self):
        """Return how far numbers of other machines may be apart, as a share of their norm."""
        if "16" in str(self.form) or "state_dtype" in self.options():
            return 2e-2  # a last bit of few may be rounded to the other side
        return 1e-6 if "lowrank" in str(self.form).lower() else 1e-9  # random directions of single precision


def _torch(name, **settings):
    return lambda parameters: getattr(torch.optim, name)(parameters, **settings)


OPTIMIZERS = {
    "sgd": _torch("SGD", lr=0.05),
    "sgd foreach": _torch("SGD", lr=0.05, foreach=True),
    "sgd fused": _torch("SGD", lr=0.05, fused=True),
    "momentum": _torch("SGD", lr=0.03, momentum=0.9, weight_decay=0.01),
    "nesterov": _torch("SGD", lr=0.03, momentum=0.8, nesterov=True),
    "adam": _torch("Adam", lr=0.01),
    "adam single": _torch("Adam", lr=0.01, foreach=False),
    "adam foreach": _torch("Adam", lr=0.01, foreach=True, weight_decay=0.01),
    "adam fused": _torch("Adam", lr=0.01, fused=True),
    "amsgrad": _torch("Adam", lr=0.01, amsgrad=True),
    "adamw": _torch("AdamW", lr=0.01, weight_decay=0.1),
    "adamw fused": _torch("AdamW", lr=0.01, weight_decay=0.1, fused=True),
    "adamax": _torch("Adamax", lr=0.01),
    "nadam": _torch("NAdam", lr=0.01),
    "radam": _torch("RAdam", lr=0.01),
    "rmsprop": _torch("RMSprop", lr=0.01),
    "rmsprop centred": _torch("RMSprop", lr=0.01, centered=True, momentum=0.5),
    "adagrad": _torch("Adagrad", lr=0.05),
    "adadelta": _torch("Adadelta", lr=1.0),
    "asgd": _torch("ASGD", lr=0.05),
    "rprop": _torch("Rprop", lr=0.01),
    "lbfgs": _torch("LBFGS", lr=0.1, max_iter=3, history_size=3),
    "sam": lambda parameters: SAM(parameters, torch.optim.SGD, lr=0.05),
    "groups": lambda parameters: torch.optim.SGD(
        [{"params": parameters[:1], "lr": 0.01}, {"params": parameters[1:]}], lr=0.05, momentum=0.5
    ),
}


class Play:
    """One run of a case."""

    def __init__(self, case):
        self.case = case
        torch.manual_seed(0)
        self.model = network(case.network)
        if any(name == "Variational" for name, *_ in case.holds):
            self.model = anchorhold.variational.mean_field(self.model, log_variance=-3.0)
        self.guard = self.new_guard()
        self.optimizers = self.new_optimizers()
        self.guard.attach(*self.optimizers, hold=case.train != "penalty")

    def new_guard(self):
        case = self.case
        holds = []
        for name, buffer, settings in case.holds:
            source = [] if buffer is None else [named(buffer[0])(buffer[1])]
            holds.append(named(name)(*source, **settings))
        options = {"strength": 2.0, "from_scratch": True, "form": made(form_of, case.form), "holds": holds}
        options |= case.options()
        if "tolerance" in options:
            del options["strength"]
        if options.pop("relative_strength", None) is not None:
            options["strength"] = 0.0  # until the first task has ended
        return anchorhold.Guard(self.model, made(anchorhold.measures.measure, case.measure), **grouped(**options))

    def new_optimizers(self):
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if self.case.optimizer == "two":
            return [OPTIMIZERS["adam"](trained[:1]), OPTIMIZERS["momentum"](trained[1:])]
        return [OPTIMIZERS[self.case.optimizer](trained)]

    # Training

    def batch(self, task, step):
        return batches(self.case.network, task)[step]

    def other_batch(self, task, step):
        """Return a batch that takes no part in a step."""
        return batches(self.case.network, 10 + task)[step]

    def outputs(self, x, task):
        return self.model(x, task) if self.case.network == "heads" else self.model(x)

    def loss(self, batch, task=0):
        return loss_of(self.outputs(batch[0], task), batch[1])

    def forward(self, task):
        """Return how the model is called when it is measured."""
        return (lambda model, x: model(x, task)) if self.case.network == "heads" else None

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self, task, step):
        torch.manual_seed(1000 * task + step)  # for models and measures that draw
        WAYS[self.case.train](self, self.batch(task, step), task, step)

    def end(self, task):
        if self.case.consolidate is not None:
            forward = self.forward(task)
            self.guard.consolidate(batches(self.case.network, task), forward=forward, **self.case.consolidate)
        relative = self.case.options().get("relative_strength")
        if relative is not None and task == 0:  # c = s·p/tr Q, as version 0.1.0 found it
            self.guard.strength = Importance.of(self.guard.held.matrices, self.guard.parameters).strength(relative)

    def run(self, *, interrupted=False):
        """Play all tasks, and return what came of it as tensors by group."""
        seen = Seen()
        for task in range(self.case.tasks):
            for step in range(STEPS):
                if (task, step) == (1, HALF):
                    if interrupted:
                        self.stop_and_go_on()
                    seen.state(self.guard)
                self.case.events(self, task, step)
                self.step(task, step)
            self.case.events(self, task, END)
            seen.weights(self.model)
            self.end(task)
            self.case.events(self, task, AFTER)
            seen.task(self)
        seen.state(self.guard)
        return seen.groups()

    def stop_and_go_on(self):
        """Save all that a user would save, and go on in new objects that have loaded it."""
        weights = copy.deepcopy(self.model.state_dict())
        steps = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
        buffers = [copy.deepcopy(buffer.state_dict()) for buffer in buffers_of(self.guard)]
        kept = copy.deepcopy(self.guard.kept.state_dict())
        with tempfile.TemporaryDirectory() as folder:
            self.guard.save(Path(folder) / "guard.safetensors")
            again = Play(self.case)
            again.model.load_state_dict(weights)
            for optimizer, state in zip(again.optimizers, steps, strict=True):
                optimizer.load_state_dict(state)
            for buffer, state in zip(buffers_of(again.guard), buffers, strict=True):
                buffer.load_state_dict(state)
            again.guard.kept.load_state_dict(kept)
            again.guard.load(Path(folder) / "guard.safetensors")
        self.model, self.guard, self.optimizers = again.model, again.guard, again.optimizers


def buffers_of(guard):
    return [hold.buffer for hold in guard.options.holds if getattr(hold, "buffer", None) is not None]


def named(name):
    """Return what has a public name, at the top or in the package of holds or forms."""
    places = (anchorhold, anchorhold.holds, anchorhold.forms)
    return next(getattr(place, name) for place in places if hasattr(place, name))


def form_of(name, **settings):
    return name if not settings else named(name)(**settings)


def made(make, given):
    """Make something from a name, or from a name and settings."""
    return make(given) if isinstance(given, str) else make(given[0], **given[1])


class Seen:
    """What came of a run so far."""

    def __init__(self):
        self._found = {"weights": [], "importance": [], "penalty": [], "state": [], "bases": []}

    def weights(self, model):
        self._found["weights"] += [value for _, value in sorted(model.state_dict().items())]
        self._keep("weights")

    def task(self, play):
        """Take in what a task has left: importances, and the penalty a little away from the weights."""
        guard, model = play.guard, play.model
        self._found["weights"] += [value for _, value in sorted(model.state_dict().items())]
        for measure in guard.measures:
            self._found["importance"] += [value for _, value in sorted(guard.held.of(measure).items())]
        self._found["importance"] += [value for _, value in sorted(guard.held.importance.items())]
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for number, p in enumerate(model.parameters()):
                p.add_(0.05 * torch.cos(number + torch.arange(p.numel(), dtype=p.dtype)).view_as(p))
        self._found["penalty"].append(guard.penalty(batches=False).detach())
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(before[name])
        for key in self._found:
            self._keep(key)

    def state(self, guard):
        for key, value in sorted(guard.state_dict()["tensors"].items()):
            # Signs of eigenvectors, and those of equal eigenvalues, are each machine's own.
            self._found["bases" if "#U" in key else "state"].append(value)
        self._keep("state")
        self._keep("bases")

    def _keep(self, group):
        """Copy what is there, which may be live tensors."""
        self._found[group] = [flat(self._found[group])]

    def groups(self):
        return {key: value for key, (value,) in self._found.items()}


def flat(tensors):
    return torch.cat([torch.empty(0).double(), *(value.detach().double().flatten() for value in tensors)])


# How a step is taken


def plain(play, batch, task, step):
    play.zero_grad()
    play.loss(batch, task).backward()
    for optimizer in play.optimizers:
        optimizer.step()


def closure(play, batch, task, step):
    def evaluate():
        play.zero_grad()
        loss = play.loss(batch, task)
        loss.backward()
        return loss

    for optimizer in play.optimizers:
        optimizer.step(evaluate)


def in_two_steps(play, batch, task, step):
    """As sharpness-aware minimisation is used: a gradient, and another one at a point nearby."""
    play.zero_grad()
    play.loss(batch, task).backward()
    for optimizer in play.optimizers:
        optimizer.step(lambda: play.loss(batch, task).backward())


def accumulated(play, batch, task, step):
    """Two micro-batches."""
    play.zero_grad()
    for half in halves_of(batch):
        (play.loss(half, task) / 2).backward()
    for optimizer in play.optimizers:
        optimizer.step()


def observed(play, batch, task, step):
    """The task's own gradient is another than the one that makes the step."""
    play.zero_grad()
    (play.loss(batch, task) + 0.01 * sum(p.square().sum() for p in play.model.parameters())).backward()
    play.guard.gradients.observe(play.loss(batch, task))
    for optimizer in play.optimizers:
        optimizer.step()


def observed_in_parts(play, batch, task, step):
    play.zero_grad()
    for number, half in enumerate(halves_of(batch)):
        (play.loss(half, task) / 2).backward()
        play.guard.gradients.observe(play.loss(half, task) / 2, accumulate=number > 0)
    for optimizer in play.optimizers:
        optimizer.step()


def independent(play, batch, task, step):
    """A second batch, which takes no part in the step."""
    play.zero_grad()
    play.loss(batch, task).backward()
    play.guard.gradients.independent(play.loss(play.other_batch(task, step), task), samples=len(batch[0]))
    for optimizer in play.optimizers:
        optimizer.step()


def halves(play, batch, task, step):
    play.zero_grad()
    first, second = (play.loss(half, task) for half in halves_of(batch))
    play.guard.gradients.halves(first, second, samples=len(batch[0]) // 2)
    for optimizer in play.optimizers:
        optimizer.step()


def samples(play, batch, task, step):
    """RWalk's squared gradients of single samples."""
    play.zero_grad()
    play.loss(batch, task).backward()
    play.guard.gradients.samples([batch], forward=play.forward(task))
    for optimizer in play.optimizers:
        optimizer.step()


def penalised(play, batch, task, step):
    """The penalty is part of the loss."""
    play.zero_grad()
    play.guard.gradients.observe(play.loss(batch, task))
    loss = play.loss(batch, task)
    (loss + play.guard.penalty() if play.guard.anchor else loss).backward()
    for optimizer in play.optimizers:
        optimizer.step()


def clipped(play, batch, task, step):
    play.zero_grad()
    play.loss(batch, task).backward()
    nn.utils.clip_grad_norm_(play.model.parameters(), 0.2)
    for optimizer in play.optimizers:
        optimizer.step()


def without_some(play, batch, task, step):
    """Every other step has no gradient of the first parameter."""
    play.zero_grad()
    play.loss(batch, task).backward()
    if step % 2:
        next(play.model.parameters()).grad = None
    for optimizer in play.optimizers:
        optimizer.step()


def halves_of(batch):
    middle = len(batch[0]) // 2
    return [tuple(part[:middle] for part in batch), tuple(part[middle:] for part in batch)]


WAYS = {
    "plain": plain,
    "closure": closure,
    "in two steps": in_two_steps,
    "accumulated": accumulated,
    "observed": observed,
    "observed in parts": observed_in_parts,
    "independent": independent,
    "halves": halves,
    "samples": samples,
    "penalty": penalised,
    "clipped": clipped,
    "without some": without_some,
}
