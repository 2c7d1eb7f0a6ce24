"""What is run: one training of a second task, held by a strength that follows a tolerance."""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import anchorhold
from anchorhold_lab.data import Dataset
from benchmarks.language import corpus
from benchmarks.language.settings import Settings as Language
from benchmarks.language.training import Device
from benchmarks.undamped import undamped
from studies.tolerance import digits
from studies.tolerance.at_scale import held, images, text
from studies.tolerance.at_scale.trials import SETTINGS as AT_SCALE
from studies.tolerance.at_scale.trials import Setting, rehearsed
from studies.tolerance.at_scale.trials import Trial as Held
from studies.tolerance_dual import packing
from studies.tolerance_dual.controllers import AIM, STARTS, Follower, followers

DIGITS = "digits"
SEEDS, CHOOSING = range(5), range(10, 12)
"""Of digits: those that are reported, and those that the multiple and the clip are chosen by."""
CANDIDATES = ((0.1, 0.1), (0.1, 0.2), (0.2, 0.2))
"""Multiples and clips of dual ascent, of those that did best on the toy."""
ENOUGH = 3
"""Seeds that both starts are tried on before others are."""


@dataclass(frozen=True)
class Trial:
    """One training of the second task."""

    setting: str
    seed: int
    form: str
    optimiser: str
    nats: float
    follower: Follower

    @property
    def key(self) -> str:
        """What it is told from others by."""
        return str(asdict(self))


def digit_trials(seeds: range, chosen: Iterator[Follower] | list[Follower]) -> Iterator[Trial]:
    """Yield the trials on permuted digits."""
    ways = ((way.form, way.said) for way in digits.WAYS)
    for (form, optimiser), seed, nats, follower in itertools.product(ways, seeds, digits.TOLERANCES, list(chosen)):
        yield Trial(DIGITS, seed, form, optimiser, nats, follower)


def candidates() -> list[Follower]:
    """Return the dual ascents that multiple and clip are chosen from."""
    starts = dict.fromkeys(each.start for each in followers())
    return [Follower("dual", start, *pair) for start in starts for pair in CANDIDATES]


def run_digits(trial: Trial, first: torch.nn.Module) -> dict[str, Any]:
    """Make a trial on permuted digits, from the network that has learned the first task."""
    way = next(way for way in digits.WAYS if (way.form, way.said) == (trial.form, trial.optimiser))
    form = undamped(way.form)
    run = digits.Run(trial.seed, way.optimiser, first, tolerance=trial.nats, form=form, options=way.options)
    trial.follower.take_over(run.guard, tokens=1)
    seconds = run.train()
    end = run.judged()
    followed = trial.follower.found(run.guard, AIM * trial.nats)
    back = run.pulled_back(trial.nats)
    ends = ({"kept": each["kept"], "fresh": each["fresh"], "new": 100 * each["accuracy"]} for each in (end, back))
    return {**followed, "seconds": seconds, **dict(zip(("end", "back"), ends, strict=True)), "share": back["share"]}


def small(setting: Setting) -> Setting:
    """Return a setting with a small network, for a CPU."""
    changes: dict[str, dict[str, Any]] = {
        "english-python": {
            "seeds": (6, 7, 8, 9, 10),
            "language": replace(
                Language(), width=64, layers=2, heads=4, context=64, english_steps=1000, english_batch=32, windows=128
            ),
            "measured": 128,
        },
        "permuted-mnist": {"seeds": tuple(range(5)), "hidden": (200, 200), "tolerances": (0.003, 0.01, 0.03)},
        "split-cifar": {"seeds": (0, 1), "batch": 32, "first_epochs": 5, "epochs": 4},
    }
    return replace(setting, **changes[setting.name])


def large(setting: Setting) -> Setting:
    """Return a setting with the network that the study of tolerances has, for a card."""
    changes: dict[str, dict[str, Any]] = {
        "english-python": {"language": replace(Language(), english_steps=1000), "tolerances": (0.02, 0.1)},
        "permuted-mnist": {"tolerances": (0.001, 0.003)},
        "split-cifar": {"seeds": tuple(range(5)), "first_epochs": 60},
    }
    return replace(setting, **changes[setting.name])


def tiny(setting: Setting) -> Setting:
    """Return a setting for a rehearsal; its numbers mean nothing."""
    return replace(rehearsed(setting), seeds=setting.seeds[:2])


SIZES = {
    "small": tuple(map(small, AT_SCALE)),
    "large": tuple(map(large, AT_SCALE)),
    "rehearsal": tuple(map(tiny, AT_SCALE)),
}


def trials(setting: Setting) -> Iterator[Trial]:
    """Yield a setting's trials, what tells most first: the library's start before the other, on a few seeds."""
    some, others = setting.seeds[:ENOUGH], setting.seeds[ENOUGH:]
    for seeds, start in itertools.product((some, others), STARTS):
        chosen = [follower for follower in followers() if follower.start == start]
        ways = itertools.product(seeds, setting.strengths, setting.optimisers, setting.tolerances, chosen)
        for seed, form, optimiser, nats, follower in ways:
            yield Trial(setting.name, seed, form, optimiser, nats, follower)


class Networks:
    """Makes the networks of each seed, and has them learn their first tasks once.

    Args:
        data: the folder that ``packing.pack`` wrote.
        store: where networks lie that have learned their first task.
    """

    def __init__(self, data: Path, store: Path) -> None:
        self.data, self.store = data, store
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._pictures: dict[str, Mapping[str, Dataset]] = {}
        self._text: corpus.Corpus | None = None
        self._latest: tuple[tuple[Setting, int], held.Subject] | None = None

    def first(self, setting: Setting, seed: int) -> Path:
        """Return where the network lies that has learned the first task; have it learn that now if there is none."""
        path = self.store / f"{setting.name}-{seed}.safetensors"
        if not path.exists():
            self.store.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            self._made(setting, seed).learn_first(path)
            print(f"{setting.name}, seed {seed}: first task in {time.perf_counter() - began:.1f} s", flush=True)
        return path

    def run(self, trial: Trial, setting: Setting) -> dict[str, Any]:
        """Make a trial."""
        path = self.first(setting, trial.seed)
        if self._latest is None or self._latest[0] != (setting, trial.seed):
            self._latest = (setting, trial.seed), self._made(setting, trial.seed)
        subject = self._latest[1]
        subject.load(path)
        return run_subject(trial, subject)

    def _made(self, setting: Setting, seed: int) -> held.Subject:
        if setting.language is not None:
            if self._text is None:
                self._text = corpus.load(self.data / packing.CORPUS).to(self.device)
            return text.Text(setting, seed, self._text, Device(self.device))
        if setting.name not in self._pictures:
            self._pictures[setting.name] = packing.datasets_in(self.data, setting.name)
        return images.Pictures(setting, seed, self._pictures[setting.name], self.device)


def run_subject(trial: Trial, subject: held.Subject) -> dict[str, Any]:
    """Make a trial with a network that has learned the first task."""
    old, setting = subject.old, subject.setting
    own = Held(trial.setting, trial.seed, trial.form, trial.optimiser, "tolerance", trial.nats)
    guard = held.new_guard(own, subject)
    guard.consolidate(old.measured, forward=old.forward)
    guard.keep(old.kept, "kept", samples=setting.kept, forward=old.forward)
    judge = anchorhold.Guard(subject.model, "fine-tune")
    judge.keep(old.fresh, "fresh", samples=setting.fresh, forward=old.forward)
    trial.follower.take_over(guard, 1 if setting.language is None else setting.language.context)
    optimizer = subject.optimizer(trial.optimiser)
    guard.attach(optimizer)
    began = time.perf_counter()
    try:
        subject.learn_second(optimizer)
        seconds = time.perf_counter() - began
        guard.detach()
        followed = trial.follower.found(guard, AIM * trial.nats)
        end = _ended(subject, guard, judge)
        back = guard.pull_back()
    except anchorhold.NotFiniteError as error:
        return {"diverged": str(error)}
    return {**followed, "seconds": seconds, "end": end, "back": _ended(subject, guard, judge), "share": back.share}


def _ended(subject: held.Subject, guard: anchorhold.Guard, judge: anchorhold.Guard) -> dict[str, float]:
    judged = subject.judged()
    return {"kept": guard.retention().kl, "fresh": judge.retention().kl, "new": judged.new, "old": judged.old}


def median(values: list[float]) -> float:
    """Return the median, NaN of nothing."""
    return statistics.median(values) if values else float("nan")
