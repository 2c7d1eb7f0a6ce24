"""English, then one invented format, then another: the courses of :mod:`benchmarks.language.sequence`, on records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.language.corpus import Corpus
from benchmarks.language.formats.kind import ROW, two_formats
from benchmarks.language.sequence import study
from benchmarks.language.sequence.keeping import KEEPINGS, Keeping
from benchmarks.language.sequence.kinds import Kind
from benchmarks.language.settings import REHEARSAL as STUDY_REHEARSAL
from benchmarks.language.settings import Settings
from benchmarks.language.training import Device

GAIN = 0.95
"""How many of the records that fine-tuning gets right an average has to leave right."""


@dataclass(frozen=True)
class Lessons:
    """How many records, and how long they are learned."""

    values: int = 16
    """Words that each field's values are drawn from."""
    rows: int = 8000
    apart: int = 1024
    steps: int = 400


REHEARSAL = Lessons(values=8, rows=2000, apart=128, steps=800)
SMALLEST = replace(
    STUDY_REHEARSAL,
    width=64,
    layers=3,
    heads=2,
    context=ROW,
    python_batch=32,
    python_rate={"full": 3e-3},
)
"""A network that gets nearly all records right, for a CPU."""


def run(
    settings: Settings,
    lessons: Lessons,
    corpus: Corpus,
    device: Device,
    lines: Path,
    work: Path,
    seconds: float,
    keepings: Sequence[Keeping] = KEEPINGS,
) -> bool:
    """Go on until all courses are done or the time is up, and return whether they are."""

    def kinds(seed: int) -> list[Kind]:
        english = study.texts(settings, corpus, ["english"])
        return [*english, *two_formats(lessons.values, lessons.rows, lessons.apart, seed, device.device)]

    taught = replace(settings, python_steps=lessons.steps)
    return study.run(taught, corpus, device, lines, work, seconds, GAIN, keepings, kinds)
