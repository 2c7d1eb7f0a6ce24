"""The whole study, one lesson after another: what is finished is on disk and is not run again."""

import time
from pathlib import Path

from benchmarks.language.corpus import Corpus
from benchmarks.language.english import is_learned, kind_of, learn_english, start_python
from benchmarks.language.lines import add
from benchmarks.language.lines import read as read_lines
from benchmarks.language.python import Learned, Lesson, lessons, teach
from benchmarks.language.settings import Settings
from benchmarks.language.training import Device


def read(path: Path) -> list[Learned]:
    """Return the finished lessons of a file, which may end in the middle of a line that a killed process wrote."""
    return [Learned.of(plain) for plain in read_lines(path)]


def run(settings: Settings, corpus: Corpus, device: Device, lines: Path, work: Path, seconds: float) -> bool:
    """Go on with the study until it is done or the time is up, and return whether it is done.

    Args:
        settings: the study.
        corpus: the text, on the device.
        device: where to run.
        lines: the file with a line for every finished lesson.
        work: a folder for the networks that have learned English.
        seconds: when to start nothing new. Learning English counts as one thing.
    """
    began = time.perf_counter()
    _cut_broken_line(lines)
    known = {found.lesson for found in read(lines)}
    for seed in settings.seeds:
        if _is_finished(settings, seed, known):
            continue
        folder = work / f"seed-{seed}"
        if not is_learned(settings, folder):
            if time.perf_counter() - began > seconds:
                return False
            start = time.perf_counter()
            learn_english(settings, corpus, device, seed, folder)
            print(f"seed {seed}: English learned and measured in {time.perf_counter() - start:.1f} s", flush=True)
        for way in settings.compared:
            taught = start_python(settings, device, seed, folder, way)
            for lesson in lessons(settings, seed, way, taught.network):
                if lesson in known:
                    continue
                if time.perf_counter() - began > seconds:
                    return False
                found = teach(lesson, settings, corpus, device, taught)
                add(lines, found.plain())
                print(_told(found), flush=True)
    return True


def _is_finished(settings: Settings, seed: int, known: set[Lesson]) -> bool:
    """Whether some network of a seed has had all its lessons; the network itself may be gone."""
    networks = {lesson.network for lesson in known if lesson.seed == seed}
    return any(
        all(lesson in known for way in settings.compared for lesson in lessons(settings, seed, way, network))
        for network in networks
        if network.startswith(kind_of(settings))
    )


def _cut_broken_line(lines: Path) -> None:
    """Remove what follows the last whole line, so that the next one does not join it."""
    if lines.exists():
        content = lines.read_bytes()
        with lines.open("rb+") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _told(found: Learned) -> str:
    lesson = found.lesson
    return (
        f"seed {lesson.seed} {lesson.way:4} {lesson.measure:29} {lesson.strength:8g}: English "
        f"{found.english[0]:.3f} → {found.english[-1]:.3f}, Python {found.python[0]:.3f} → {found.python[-1]:.3f} "
        f"bits a byte, {found.seconds:.1f} s"
    )
