"""The second part: teach Python, held by one measure with one strength or by none, and watch English go."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.language import training
from benchmarks.language.corpus import LANGUAGES, Corpus
from benchmarks.language.english import Taught, weights_of
from benchmarks.language.settings import UNGUARDED, Settings
from benchmarks.language.training import Device, batches, bits_per_byte, spread

FINE_TUNE = "fine-tune"


@dataclass(frozen=True)
class Lesson:
    """What is to be run."""

    seed: int
    way: str
    measure: str
    strength: float
    """Of the guard; without one, what :attr:`Settings.unguarded` says."""
    network: str
    """Which weights it starts from."""
    steps: int
    batch: int
    rate: float


@dataclass(frozen=True)
class Learned:
    """What came out: the losses in bits a byte, before the lesson and after it."""

    lesson: Lesson
    english: list[float]
    python: list[float]
    seconds: float

    @property
    def lost(self) -> float:
        """English loss after, less that before."""
        return self.english[-1] - self.english[0]

    @property
    def gained(self) -> float:
        """Python loss before, less that after."""
        return self.python[0] - self.python[-1]

    def plain(self) -> dict[str, object]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Learned":
        """Return what :meth:`plain` returned as it was."""
        return cls(**{**plain, "lesson": Lesson(**plain["lesson"])})


def lessons(settings: Settings, seed: int, way: str, network: str) -> Iterator[Lesson]:
    """Yield every lesson that a network is taught in one way."""
    steps, batch, rate = settings.python_steps, settings.python_batch, settings.python_rate[way]
    yield Lesson(seed, way, FINE_TUNE, 0.0, network, steps, batch, rate)
    for name in settings.compared[way]:
        for strength in settings.strengths_of(name):
            taken = max(1, round(strength * steps)) if name == "shorter" else steps
            slowed = rate * strength if name == "slower" else rate
            yield Lesson(seed, way, name, strength, network, taken, batch, slowed)


def teach(lesson: Lesson, settings: Settings, corpus: Corpus, device: Device, taught: Taught) -> Learned:
    """Teach Python; every lesson of a seed sees the same batches in the same order."""
    device.synchronise()
    began = time.perf_counter()
    taught.restart()
    before = _losses(settings, corpus, device, taught)
    # An average takes the fine-tuned weights; a study that goes on in another process has to find them once more.
    if lesson.measure != "averaged" or taught.tuned is None:
        _train(lesson, settings, corpus, device, taught)
        if lesson.measure in (FINE_TUNE, "averaged"):
            taught.tuned = weights_of(taught.model)
    if lesson.measure == "averaged":
        taught.average(lesson.strength)
    after = _losses(settings, corpus, device, taught)
    english, python = zip(before, after, strict=True)
    return Learned(lesson, list(english), list(python), time.perf_counter() - began)


def _train(lesson: Lesson, settings: Settings, corpus: Corpus, device: Device, taught: Taught) -> None:
    guard = None
    if lesson.measure not in (FINE_TUNE, *UNGUARDED):
        guard = taught.guard(lesson.way, lesson.measure, lesson.strength, settings)
    training.teach(device, taught.model, _batches(lesson, settings, corpus), lesson.steps, lesson.rate, guard)


def _batches(lesson: Lesson, settings: Settings, corpus: Corpus) -> Iterator[Tensor]:
    """Yield what every lesson of a seed sees, or, with replay, the same with English in some of its places."""

    def pieces(language: str, size: int, purpose: str) -> Iterator[Tensor]:
        text = corpus.of(language, "train")
        return batches(text, lesson.steps, size, settings.context, lesson.seed, purpose)

    given = pieces("python", lesson.batch, "python")
    if lesson.measure != "replay":
        return given
    again = round(lesson.strength * lesson.batch)
    old = pieces("english", again, "replayed")
    return (torch.cat([new[again:], seen]) for new, seen in zip(given, old, strict=True))


def _losses(settings: Settings, corpus: Corpus, device: Device, taught: Taught) -> list[float]:
    return [
        bits_per_byte(
            device, taught.model, spread(corpus.of(language, "validation"), settings.windows, settings.context)
        )
        for language in LANGUAGES
    ]
