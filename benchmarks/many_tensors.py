"""A protected step of many small tensors, alone, against the same step without protection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn, optim

import anchorhold
from benchmarks.harness import Report, interleaved

PLAIN = "unprotected"
RATE = 1e-4
NOTES = [
    (
        "The optimiser's step alone, on one thread: gradients are random numbers that are copied into .grad before "
        "each step, outside the time taken."
    ),
    (
        "Each case has parameters and an optimiser of its own. One task is behind it, its importance is in force, and "
        "the parameters have been moved away from the anchor."
    ),
    "The first two have as many tensors, and one has 64 times the numbers of the other.",
]


@dataclass(frozen=True)
class Setting:
    """Which tensors are stepped with, and how many times the unprotected step a protected one may take."""

    title: str
    count: int
    shape: tuple[int, ...]
    optimizer: Callable[..., optim.Optimizer]
    targets: dict[str, float]
    """By measure."""
    repeats: int = 60


_ADAM = partial(optim.Adam, lr=RATE, foreach=True)
_SGD = partial(optim.SGD, lr=RATE)
SETTINGS = (
    Setting("Adam(foreach), 400 of 8×8", 400, (8, 8), _ADAM, {"SI": 1.5, "SOS": 1.4}),
    Setting("Adam(foreach), 400 of 64×64", 400, (64, 64), _ADAM, {"SI": 2.0, "SOS": 1.5}),
    Setting("SGD, 16,000 of 2", 16_000, (2,), _SGD, {"SI": 4.0, "SOS": 4.0}, repeats=20),
)


def run(quick: bool) -> Iterator[Report]:
    report = Report("steps-of-many", "A step of many small tensors, protected against unprotected", NOTES, {})
    with _one_thread():
        for setting in SETTINGS:
            measure(replace(setting, count=20, repeats=2) if quick else setting, report)
        yield report


def measure(setting: Setting, report: Report) -> None:
    """Time a setting's steps with each measure and without, and add the ratios."""
    torch.manual_seed(0)
    cases = {f"{setting.title}: {name}": Steps(setting, name) for name in (PLAIN, *setting.targets)}
    report.seconds |= interleaved(
        {name: steps.optimizer.step for name, steps in cases.items()},
        setting.repeats,
        before=lambda name: cases[name].new_gradients(),
    )
    for name, target in setting.targets.items():
        title = f"{setting.title}: {name} / {PLAIN}"
        report.ratio(title, f"{setting.title}: {name}", f"{setting.title}: {PLAIN}", target)


class Steps:
    """Steps of many parameters in a task after the first, with a measure attached or without."""

    def __init__(self, setting: Setting, measure: str) -> None:
        self.parameters = nn.ParameterList(nn.Parameter(torch.randn(setting.shape)) for _ in range(setting.count))
        self.optimizer = setting.optimizer(self.parameters.parameters())
        self.gradients = [torch.randn(setting.shape) for _ in range(setting.count)]
        self.guard = None
        if measure != PLAIN:  # with the hold in the gradient, as with the other optimisers
            self.guard = anchorhold.Guard(
                self.parameters, measure, strength=1.0, options=anchorhold.GuardOptions(implicit=False)
            )
        if self.guard is not None:
            self.guard.attach(self.optimizer)
        for parameter in self.parameters:
            parameter.grad = torch.empty_like(parameter)
        for _ in range(3):
            self.new_gradients()
            self.optimizer.step()
        if self.guard is not None:
            self.guard.consolidate()
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)

    def new_gradients(self) -> None:
        """Give every parameter a gradient, as a backward pass would: in place, as after ``zero_grad(False)``."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)


@contextmanager
def _one_thread() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
