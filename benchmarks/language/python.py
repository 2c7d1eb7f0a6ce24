"""The second part: teach Python, held by one measure with one strength or by none, and watch English go."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.language.corpus import LANGUAGES, Corpus
from benchmarks.language.english import Taught
from benchmarks.language.settings import MEASURES, Settings
from benchmarks.language.training import Device, batches, bits_per_byte, schedule

FINE_TUNE = "fine-tune"


@dataclass(frozen=True)
class Lesson:
    """What is to be run."""

    seed: int
    way: str
    measure: str
    strength: float
    network: str
    """Which weights it starts from."""
    steps: int
    batch: int
    rate: float


@dataclass(frozen=True)
class Learned:
    """What came out: the losses in bits a byte at some of the steps, the first one before the lesson."""

    lesson: Lesson
    at: list[int]
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
    def of(cls, plain: dict[str, object]) -> "Learned":
        """Return what :meth:`plain` returned as it was."""
        return cls(**{**plain, "lesson": Lesson(**plain["lesson"])})


def lessons(settings: Settings, seed: int, way: str, network: str) -> Iterator[Lesson]:
    """Yield every lesson that a network is taught in one way."""
    rest = (network, settings.python_steps, settings.python_batch, settings.python_rate[way])
    yield Lesson(seed, way, FINE_TUNE, 0.0, *rest)
    for measure in MEASURES:
        for strength in settings.strengths[measure]:
            yield Lesson(seed, way, measure, strength, *rest)


def teach(lesson: Lesson, settings: Settings, corpus: Corpus, device: Device, taught: Taught) -> Learned:
    """Teach Python; every lesson of a seed sees the same batches in the same order."""
    taught.restart()
    model = taught.model
    optimizer = device.optimizer(model, lesson.rate, decay=0.0)
    rates = schedule(optimizer, lesson.steps)
    guard = None
    if lesson.measure != FINE_TUNE:
        guard = taught.guard(lesson.way, lesson.measure, lesson.strength, settings)
        guard.attach(optimizer)
    looks = {round(look * lesson.steps / settings.looks) for look in range(settings.looks + 1)}
    at: list[int] = []
    losses: dict[str, list[float]] = {language: [] for language in LANGUAGES}

    def look(step: int) -> None:
        if step in looks:
            at.append(step)
            for language, found in losses.items():
                text = corpus.of(language, "validation")
                found.append(bits_per_byte(device, model, text, settings.windows, settings.context))

    device.synchronise()
    began = time.perf_counter()
    look(0)
    text = corpus.of("python", "train")
    given = batches(text, lesson.steps, lesson.batch, settings.context, lesson.seed, "python")
    for step, batch in enumerate(given, start=1):
        optimizer.zero_grad()
        device.loss(model, batch).backward()
        optimizer.step()
        rates.step()
        look(step)
    if guard is not None:
        guard.detach()
    return Learned(lesson, at, losses["english"], losses["python"], time.perf_counter() - began)
