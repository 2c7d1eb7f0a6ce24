"""One trial, whatever the setting: hold what is old, learn what is new, go back, and see what became of both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

import anchorhold
from anchorhold.engine.batches import Forward
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.undamped import undamped
from studies.tolerance.at_scale.trials import Setting, Trial

DAMPING = 0.1
"""What searched strengths of the rotated form are damped by: as a tolerance is there."""


@dataclass(frozen=True)
class Old:
    """Inputs of the first task."""

    measured: Sequence[Any]
    kept: Sequence[Tensor]
    fresh: Sequence[Tensor]
    forward: Forward | None
    """How the network is called with them."""


class Judged(NamedTuple):
    """How well both tasks are done: accuracies in per cent, or losses in bits a byte."""

    old: float
    new: float


class Subject(Protocol):
    """A network of one seed, and its tasks."""

    setting: Setting

    @property
    def model(self) -> nn.Module:
        """Return the network."""

    @property
    def protect(self) -> str | None:
        """Return the pattern of the parameters that are held; None for all."""

    @property
    def old(self) -> Old:
        """Return inputs of the first task to measure importance on, to keep and to judge by."""

    def learn_first(self, path: Path) -> None:
        """Learn the first task, and save the model."""

    def load(self, path: Path) -> None:
        """Load a model that has learned the first task."""

    def optimizer(self, name: str) -> torch.optim.Optimizer:
        """Return an optimizer of the model, by its name."""

    def learn_second(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn the second task."""

    def judged(self) -> Judged:
        """Return what became of both tasks."""


def run(trial: Trial, subject: Subject, first: Path) -> dict[str, Any]:
    """Make one trial, from the network as it was after the first task, and return what came out.

    A strength that destroys the network is an outcome too: its row says so.
    """
    subject.load(first)
    before, old = subject.judged(), subject.old
    guard = new_guard(trial, subject)
    guard.consolidate(old.measured, forward=old.forward)
    judge = anchorhold.Guard(subject.model, "fine-tune")
    judge.keep(old.fresh, "fresh", samples=sum(map(len, old.fresh)), forward=old.forward)
    if trial.kind == "tolerance":
        guard.keep(old.kept, "kept", samples=sum(map(len, old.kept)), forward=old.forward)
    optimizer = subject.optimizer(trial.optimiser)
    guard.attach(optimizer)
    try:
        seconds = timed(lambda: subject.learn_second(optimizer))
        guard.detach()
        found: dict[str, Any] = {"seconds": seconds, "end": ended(subject, judge)}
        if trial.kind == "tolerance":
            found |= {"strength": guard.strength, "peak": max(point.kl for point in guard.control.trace)}
            back = guard.pull_back()
            found |= {"looks": len(guard.control.trace) - 1, "share": back.share, "kept": back.kl, "said": str(back)}
            found["sure"] = back.is_sure
            found["back"] = ended(subject, judge)
    except anchorhold.errors.NotFiniteError as error:
        return {"before": before._asdict(), "diverged": True, "why": str(error)}
    return {"before": before._asdict(), **found}


def new_guard(trial: Trial, subject: Subject) -> anchorhold.Guard:
    """Return a guard with a trial's tolerance or strength.

    SGD's hold acts after the step, or the strengths that it bears would decide what is compared.
    """
    samples = subject.setting.measured
    text = subject.setting.language is not None
    measure = anchorhold.Fisher(samples, labels="sampled") if text else anchorhold.Fisher(samples)
    protect, options = subject.protect, anchorhold.GuardOptions(implicit=trial.optimiser == "SGD")
    if trial.kind == "tolerance":
        tolerance = anchorhold.Tolerance(trial.value, damping=trial.damping, start=trial.start)
        form = undamped(trial.form)  # the tolerance damps it
        return anchorhold.Guard(
            subject.model, measure, tolerance=tolerance, form=form, protect=protect, options=options
        )
    damped = anchorhold.Rotated(damping=DAMPING) if trial.form == "rotated" else trial.form
    s = trial.value
    return RelativeGuard(subject.model, measure, relative_strength=s, form=damped, protect=protect, options=options)


def ended(subject: Subject, judge: anchorhold.Guard) -> dict[str, float]:
    """Return where a network is: what fresh old data has lost, and how well both tasks are done."""
    return {"kl": judge.retention().kl, **subject.judged()._asdict()}


def timed(work: Any) -> float:
    """Return the seconds that something took, waiting for an accelerator."""
    waits: Callable[[], None] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    waits()
    began = time.perf_counter()
    work()
    waits()
    return time.perf_counter() - began
