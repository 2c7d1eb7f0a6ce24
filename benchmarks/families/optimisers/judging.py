"""The verdict on an optimiser: is what it trains held, and do measures along the path see its steps?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorhold import L2, SI, SOS, Guard, GuardOptions
from benchmarks.families.verdicts import REFUSED, RIGHT, RIGHTLY_REFUSED, WARNED, WRONG, Outcome, listening, worst

Loss = Callable[[], Tensor]
Weights = dict[str, Tensor]

STEPS = 5
LONG = 60
HELD = 0.34
"""How far weights that are held may move, beside those that are not: many optimisers' steps are as long either way."""
BETA2 = 0.999


def plain(optimizer: Any, loss: Loss) -> None:
    """The step of every tutorial."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def by_closure(optimizer: Any, loss: Loss) -> None:
    """A step that evaluates the loss itself."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


@dataclass
class Trained:
    """An optimiser, and how a step with it is written.

    Args:
        make: makes the optimiser for a model.
        step: takes a step, given the optimiser and the loss.
        lr: its learning rate; the strength is one at which a plain step of that size would lead straight back.
        strength: another one, for optimisers whose steps are of another size than their learning rate says.
        attach: the optimisers that the guard is attached to; by default what ``make`` returns.
        dtype: of the weights.
        refused: whether an error is the only right answer.
        handed: whether the gradient that counts is the one that the attached optimiser is handed, and not that of the
            weights before the step: who computes it elsewhere on purpose, and attaches what takes it.
    """

    make: Callable[[nn.Module], Any]
    step: Callable[[Any, Loss], None] = plain
    lr: float = 0.01
    strength: float | None = None
    attach: Callable[[Any], tuple[Any, ...]] = lambda optimizer: (optimizer,)
    dtype: torch.dtype = torch.float64
    refused: bool = False
    handed: bool = False


def judge(make: Callable[[], Trained]) -> Outcome:
    """Return the verdict on an optimiser."""
    trained = make()
    free = _moved(trained, hold=False)
    outcomes = []
    with listening() as heard:
        for attempt in (_seen, lambda trained: _held(trained, free)):
            try:
                outcomes.append(attempt(trained))
            except Exception as error:  # noqa: BLE001 (which is what is to be found)
                outcome = Outcome.of_error(error)
                rightly = trained.refused and outcome.verdict == REFUSED
                outcomes.append(Outcome(RIGHTLY_REFUSED, None, outcome.notes) if rightly else outcome)
    found = worst(outcomes)
    notes = (*found.notes, *(f"warns: {warning}" for warning in heard.warnings))
    return Outcome(WARNED if found.verdict == WRONG and heard.warnings else found.verdict, found.difference, notes)


def _seen(trained: Trained) -> Outcome:
    """Compare SI and SOS with −ΣgΔ and v ← β₂v + (1−β₂)g², computed beside the steps."""
    model, optimizer = _start(trained)
    guard = Guard(model, SI(), watch=[SOS(beta2=BETA2)], from_scratch=True)
    named = dict(model.named_parameters())
    handed: Weights = {}

    def note(*_: Any) -> None:
        handed.update({name: p.grad.clone() for name, p in named.items() if p.grad is not None})

    if trained.handed:
        for attached in trained.attach(optimizer):
            attached.register_step_pre_hook(note)
    guard.attach(*trained.attach(optimizer))
    path, moment = ({name: torch.zeros_like(p) for name, p in named.items()} for _ in range(2))
    for loss in _losses(model, STEPS):
        before = {name: p.detach().clone() for name, p in named.items()}
        gradients = dict(zip(named, torch.autograd.grad(loss(), list(named.values())), strict=True))
        trained.step(optimizer, loss)
        for name, gradient in (handed or gradients).items():
            path[name] -= gradient * (named[name].detach() - before[name])
            moment[name] = BETA2 * moment[name] + (1 - BETA2) * gradient**2
    found = guard.consolidate()
    outcomes = []
    for measure, expected in (("SI", path), ("SOS", moment)):
        difference = _difference(found[measure].raw, expected)
        right = difference <= (1e-8 if trained.dtype == torch.float64 else 1e-3)
        told = f"{measure} {'differs' if found[measure].raw else 'has seen nothing'}"
        outcomes.append(Outcome(RIGHT if right else WRONG, difference, () if right else (told,)))
    return worst(outcomes)


def _held(trained: Trained, free: float) -> Outcome:
    """Compare how far weights move with and without a strong hold."""
    share = _moved(trained, hold=True) / free
    note = f"held, it moves {100 * share:.0f} % as far"
    return Outcome(RIGHT if share < HELD else WRONG, None, (note,))


def _moved(trained: Trained, *, hold: bool) -> float:
    """Return how far the weights come in the second half of training from where the first step led them.

    The first step is left out, since some optimisers put the weights where they want them, on a sphere for instance.
    """
    model, optimizer = _start(trained)
    if hold:
        # In the gradient, where every optimiser takes it: after its step, SGD's would be another thing to judge.
        guard = Guard(model, L2(), strength=trained.strength or 0.5 / trained.lr, options=GuardOptions(implicit=False))
        guard.consolidate()
        guard.attach(*trained.attach(optimizer))
    path = []
    for loss in _losses(model, LONG):
        trained.step(optimizer, loss)
        path.append(_flat(model))
    return max(float((weights - path[0]).norm()) for weights in path[LONG // 2 :])


def _start(trained: Trained) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(trained.dtype)
    return model, trained.make(model)


def _losses(model: nn.Module, steps: int) -> Iterator[Loss]:
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    teacher = torch.randn(6, 3, generator=generator)
    for _ in range(steps):
        inputs = torch.randn(16, 6, generator=generator)
        labels = (inputs @ teacher).argmax(-1)

        def loss(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            return F.cross_entropy(model(inputs.to(dtype)), labels)

        yield loss


def _difference(found: Weights | None, expected: Weights) -> float:
    if found is None or set(found) != set(expected):
        return float("inf")  # nothing was seen of some
    size = max(float(value.norm()) for value in expected.values())
    return max(
        float((found[name] - value).norm()) / max(float(value.norm()), 1e-6 * size) for name, value in expected.items()
    )


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten().clone() for p in model.parameters()])
