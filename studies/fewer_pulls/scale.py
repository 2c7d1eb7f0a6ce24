"""Permuted MNIST, Split CIFAR and Python after English: each way at the size that the study of tolerances has."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import anchorhold
from anchorhold.errors import NotFiniteError
from anchorhold_lab.data import Dataset
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.language import corpus
from benchmarks.language.settings import Settings as Language
from benchmarks.language.training import Device
from studies.fewer_pulls.ways import Puller, Way
from studies.tolerance.at_scale import held, images, text
from studies.tolerance.at_scale.trials import SETTINGS as AT_SCALE
from studies.tolerance.at_scale.trials import Setting, rehearsed
from studies.tolerance_dual import packing

PLAIN = Way("none")
SGD_WAYS = (
    *(Way("every", k) for k in (1, 4, 16, 2, 8, 64, 32)),
    Way("leading", share=0.99),
    Way("leading", share=0.9),
    Way("turns", 16),
    Way("gradient"),
    Way("reused", 4),
)
ADAM_WAYS = (
    Way("gradient"),
    Way("conjugate", 4, products=3),
    Way("conjugate", 4, products=10),
    Way("conjugate", 16, products=10),
    Way("conjugate", 1, products=3),
    Way("conjugate", 64, products=10),
    Way("reused", 4),
)
FEWER = {
    ("split-cifar", "SGD"): 6,
    ("split-cifar", "Adam"): 4,
    ("english-python", "SGD"): 3,
    ("english-python", "AdamW"): 4,
}
"""How many of the ways are tried where a run takes longer; those that are worth most come first."""
STRENGTHS = {
    ("permuted-mnist", "SGD"): (0.01, 0.1, 1.0),
    ("permuted-mnist", "Adam"): (0.001, 0.01, 0.1),
    ("split-cifar", "SGD"): (0.1, 1.0, 10.0),
    ("split-cifar", "Adam"): (0.1, 1.0, 10.0),
    ("english-python", "SGD"): (0.03, 0.3),
    ("english-python", "AdamW"): (0.03, 0.3),
}
"""Relative ones."""


@dataclass(frozen=True)
class Trial:
    """One training of the second task."""

    setting: str
    seed: int
    optimizer: str
    way: Way
    strength: float

    @property
    def key(self) -> str:
        """What it is told from others by."""
        return str(asdict(self))


def sized(setting: Setting) -> Setting:
    """Return a setting as it is run on a card."""
    changes: dict[str, dict[str, Any]] = {
        "english-python": {"language": replace(Language(), english_steps=600, python_steps=200, windows=256)},
        "permuted-mnist": {"seeds": (0, 1), "first_epochs": 10, "epochs": 10},
        "split-cifar": {"seeds": (0, 1, 2), "first_epochs": 40, "epochs": 20},
    }
    return replace(setting, **changes[setting.name])


SIZES = {"card": tuple(map(sized, AT_SCALE)), "rehearsal": tuple(map(rehearsed, AT_SCALE))}


def trials(setting: Setting) -> Iterator[Trial]:
    """Yield a setting's trials, those of a seed together."""
    for seed, optimizer in itertools.product(setting.seeds, sorted(setting.optimisers, reverse=True)):
        ways = SGD_WAYS if optimizer == "SGD" else ADAM_WAYS
        strengths = STRENGTHS[setting.name, optimizer]
        yield Trial(setting.name, seed, optimizer, PLAIN, 0.0)
        for way, strength in itertools.product(ways[: FEWER.get((setting.name, optimizer))], strengths):
            yield Trial(setting.name, seed, optimizer, way, strength)


class Networks:
    """The networks of each seed, which learn their first tasks once.

    Args:
        data: the folder that ``studies.tolerance_dual pack`` wrote.
        store: where networks lie that have learned their first task.
    """

    def __init__(self, data: Path, store: Path) -> None:
        self.data, self.store = data, store
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._pictures: dict[str, Mapping[str, Dataset]] = {}
        self._latest: tuple[tuple[Setting, int], held.Subject] | None = None

    def subject(self, setting: Setting, seed: int) -> held.Subject:
        """Return a network that has learned the first task."""
        path = self.store / f"{setting.name}-{seed}.safetensors"
        if self._latest is None or self._latest[0] != (setting, seed):
            self._latest = (setting, seed), self._made(setting, seed)
        subject = self._latest[1]
        if not path.exists():
            self.store.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            subject.learn_first(path)
            print(f"{setting.name}, seed {seed}: first task in {time.perf_counter() - began:.1f} s", flush=True)
        subject.load(path)
        return subject

    def _made(self, setting: Setting, seed: int) -> held.Subject:
        if setting.language is not None:
            return text.Text(
                setting, seed, corpus.load(self.data / packing.CORPUS).to(self.device), Device(self.device)
            )
        if setting.name not in self._pictures:
            self._pictures[setting.name] = packing.datasets_in(self.data, setting.name)
        return images.Pictures(setting, seed, self._pictures[setting.name], self.device)


def new_guard(subject: held.Subject, strength: float, way: Way) -> RelativeGuard:
    """Return a guard in rotated coordinates; *every* is the library's own keyword."""
    is_text = subject.setting.language is not None
    samples = subject.setting.measured
    measure = anchorhold.Fisher(samples, labels="sampled") if is_text else anchorhold.Fisher(samples)
    form = anchorhold.Rotated(precision="tf32", sharing="expand" if is_text else "exact")
    every = way.every if way.kind == "every" else 1
    options = anchorhold.GuardOptions(implicit=way.kind == "every", pull_every=every)
    return RelativeGuard(
        subject.model,
        measure,
        relative_strength=strength,
        form=form,
        protect=subject.protect,
        monitors=(),  # most ways are none of the guard's own
        options=options,
    )


def run(trial: Trial, subject: held.Subject) -> dict[str, Any]:
    """Learn the second task in one way, and return how well both are done and how long it took."""
    optimizer = subject.optimizer(trial.optimizer)
    if trial.way == PLAIN:
        return {"seconds": held.timed(lambda: subject.learn_second(optimizer)), **subject.judged()._asdict()}
    old = subject.old
    guard = new_guard(subject, trial.strength, trial.way)
    guard.consolidate(old.measured, forward=old.forward)
    hooks = []
    if trial.way.kind == "every":
        guard.attach(optimizer)
        finish = guard.detach
    else:
        puller = Puller(guard, optimizer, trial.way)
        hooks.append(optimizer.register_step_pre_hook(lambda *_: puller.before_step()))
        hooks.append(optimizer.register_step_post_hook(lambda *_: puller.after_step()))
        finish = puller.finish
    try:
        seconds = held.timed(lambda: subject.learn_second(optimizer))
        finish()
    except NotFiniteError as error:
        return {"diverged": str(error)}
    for hook in hooks:
        hook.remove()
    if not all(bool(p.isfinite().all()) for p in subject.model.parameters()):
        return {"diverged": "weights are not finite"}
    return {"seconds": seconds, **subject.judged()._asdict()}
