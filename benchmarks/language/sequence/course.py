"""A network that knows English goes through a course: one kind after another, kept by one recipe."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anchorhold
from benchmarks.language.english import Taught, start_python, weights_of
from benchmarks.language.recipes import Trial
from benchmarks.language.sequence.keeper import Keeper
from benchmarks.language.sequence.keeping import Keeping
from benchmarks.language.sequence.kinds import CHOOSES, Kind
from benchmarks.language.settings import Settings
from benchmarks.language.training import Device, teach

HALVINGS = 7
"""By so many halvings the share is found with which enough of a lesson is left."""


@dataclass(frozen=True)
class Stage:
    """What the network had wrong of every kind when a lesson was over."""

    kind: str
    share: float
    """Of the trained weights in the average with those before the lesson."""
    wrong: dict[str, list[float]]


@dataclass(frozen=True)
class Went:
    """A whole course with one recipe."""

    trial: Trial
    seed: int
    network: str
    gain: float
    """How much of what fine-tuning learns each lesson had to leave; 1 where nothing was averaged."""
    steps: int
    before: dict[str, list[float]]
    stages: list[Stage]
    seconds: float
    machine: str
    corpus: str
    """What it read, by its sha256."""
    held: dict[str, float | None] | None = None
    """c, κ, T and tr Q of the guard; ``None`` without one, and in rows that were made before it was noted."""

    @property
    def key(self) -> tuple[object, ...]:
        """What was run, which is not run again."""
        return self.trial, self.network, self.gain, self.steps, tuple(stage.kind for stage in self.stages)

    @property
    def learned(self) -> dict[str, list[float]]:
        """What each kind had wrong when it had just been learned; the first, before all lessons."""
        first = next(iter(self.before))
        return {first: self.before[first]} | {stage.kind: stage.wrong[stage.kind] for stage in self.stages}

    @property
    def left(self) -> dict[str, list[float]]:
        """What each kind had wrong after all lessons."""
        return self.stages[-1].wrong

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Went":
        """Return what ``asdict`` returned as it was."""
        stages = [Stage(**stage) for stage in plain["stages"]]
        return cls(**{**plain, "trial": Trial(**plain["trial"]), "stages": stages})


class Course:
    """One network, and what it is to be taught.

    Args:
        settings: of the network and of its lessons.
        kinds: the first of them is what the network knows.
        device, seed, folder: where it runs, and where it lies.
        corpus: the sha256 of what it reads.
    """

    def __init__(
        self, settings: Settings, kinds: Sequence[Kind], device: Device, seed: int, folder: Path, corpus: str
    ) -> None:
        self.settings, self.kinds, self.device, self.seed, self.folder = settings, kinds, device, seed, folder
        self.corpus = corpus
        self.taught: Taught = start_python(settings, device, seed, folder, "full")
        self.before = self._wrong()

    def key(self, keeping: Keeping, trial: Trial, gain: float) -> tuple[Trial, str, float, int, tuple[str, ...]]:
        """Return what :attr:`Went.key` will be."""
        names = tuple(kind.name for kind in self.kinds[1:])
        return trial, self.taught.network, gain if keeping.averaged else 1.0, self.settings.python_steps, names

    def go(self, keeping: Keeping, trial: Trial, gain: float, free: Went | None) -> Went:
        """Teach all kinds, one after another; ``free`` is the course with nothing kept, which an average asks for."""
        began = time.perf_counter()
        self.taught.restart()
        keeper = Keeper(
            keeping, trial, self.taught, self.settings, self.device, self.seed, self.folder, first=self.kinds[0]
        )
        keeper.take_in(self.kinds[0])
        stages = []
        for kind in self.kinds[1:]:
            before = weights_of(self.taught.model)
            self._teach(kind, keeper)
            share = self._go_back(before, kind, gain, free) if keeping.averaged and free is not None else 1.0
            stages.append(Stage(kind.name, share, self._wrong()))
            if kind is not self.kinds[-1]:
                keeper.take_in(kind)
        self.device.synchronise()
        seconds = time.perf_counter() - began
        _, network, gain, steps, _ = self.key(keeping, trial, gain)
        where = self.device.name, self.corpus
        return Went(trial, self.seed, network, gain, steps, self.before, stages, seconds, *where, keeper.held)

    def _wrong(self) -> dict[str, list[float]]:
        return {kind.name: kind.wrong(self.device, self.taught.model) for kind in self.kinds}

    def _teach(self, kind: Kind, keeper: Keeper) -> None:
        """Teach one kind, in every course of a seed by the same batches."""
        settings = self.settings
        steps, rate = settings.python_steps, settings.python_rate["full"]
        given = kind.batches(steps, settings.python_batch, self.seed, kind.name)
        teach(self.device, self.taught.model, given, steps, rate, keeper.guard)

    def _go_back(self, before: dict[str, Any], kind: Kind, gain: float, free: Went) -> float:
        """Go back towards the weights before a lesson, as far as enough of it is left, and return the share.

        Enough is a share of what fine-tuning learned of it in its own course, so that recipes are compared where they
        have learned as much; it is looked for on the half that chooses. A lesson that never had so much stays whole.
        """
        trained = weights_of(self.taught.model)
        start, end = (found[kind.name][CHOOSES] for found in (self.before, free.learned))
        enough = start - gain * (start - end)
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            self.taught.model.load_state_dict(_between(before, trained, middle))
            if kind.wrong(self.device, self.taught.model)[CHOOSES] <= enough:
                high = middle
            else:
                low = middle
        self.taught.model.load_state_dict(_between(before, trained, high))
        return high


def _between(before: dict[str, Any], trained: dict[str, Any], share: float) -> dict[str, Any]:
    merged = anchorhold.merge(before, trained, share)
    assert isinstance(merged, dict)
    return merged
