"""All courses of all seeds: what is finished is on disk and is not run again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.language.corpus import Corpus
from benchmarks.language.english import is_learned, learn_english
from benchmarks.language.lines import add
from benchmarks.language.lines import read as read_lines
from benchmarks.language.sequence.course import Course, Went
from benchmarks.language.sequence.keeping import FREE, KEEPINGS, Keeping
from benchmarks.language.sequence.kinds import CHOOSES, Kind, Text
from benchmarks.language.settings import Settings
from benchmarks.language.training import Device

KINDS = ("english", "python", "german", "c")
"""In the order in which they are learned."""
Kinds = Callable[[int], Sequence[Kind]]
"""What a seed learns, English first."""


def texts(settings: Settings, corpus: Corpus, names: Sequence[str] = KINDS) -> list[Kind]:
    """Return kinds of text of a corpus."""
    missing = [name for name in names if (name, "train") not in corpus.texts]
    if missing:
        raise SystemExit(
            f"The corpus has no {' and no '.join(missing)}. Make one that has all of {', '.join(names)} with: "
            "python -m benchmarks.language prepare --sequence CORPUS"
        )
    return [
        Text(name, settings.context, corpus.of(name, "train"), corpus.of(name, "validation"), settings.windows)
        for name in names
    ]


def run(
    settings: Settings,
    corpus: Corpus,
    device: Device,
    lines: Path,
    work: Path,
    seconds: float,
    gain: float,
    keepings: Sequence[Keeping] = KEEPINGS,
    kinds: Kinds | None = None,
) -> bool:
    """Go on until all courses are done or the time is up, and return whether they are; a line for each.

    Args:
        settings, corpus, device: the network, its text, and where it runs.
        lines: the file with a line for every finished course.
        work: a folder for the networks that have learned English.
        seconds: when to start nothing new.
        gain: how much of what fine-tuning learns an average has to leave of each lesson.
        keepings: the recipes, of which fine-tuning comes first.
        kinds: what each seed learns; the kinds of text of the corpus unless others are given.
    """
    began, digest = time.perf_counter(), corpus.digest()
    for seed in settings.seeds:
        folder = work / f"seed-{seed}"
        if not is_learned(settings, folder):
            learn_english(settings, corpus, device, seed, folder)
        taught = texts(settings, corpus) if kinds is None else kinds(seed)
        course = Course(settings, taught, device, seed, folder, digest)
        known = {went.key: went for went in read(lines)}
        free: Went | None = None
        for keeping, trial in [(each, trial) for each in keepings for trial in each.trials()]:
            went = known.get(course.key(keeping, trial, gain))
            if went is None:
                if time.perf_counter() - began > seconds:
                    return False
                went = course.go(keeping, trial, gain, free)
                add(lines, asdict(went))
                print(_told(went), flush=True)
            if keeping.name == FREE:
                free = went
    return True


def read(path: Path) -> list[Went]:
    """Return the courses of a file, which may end in the middle of a line that a killed process wrote."""
    return [Went.of(plain) for plain in read_lines(path)]


def _told(went: Went) -> str:
    left = ", ".join(f"{kind} {wrong[CHOOSES]:.3f}" for kind, wrong in went.left.items())
    shares = ", ".join(f"{stage.share:.2f}" for stage in went.stages)
    trial = went.trial
    return (
        f"seed {went.seed} {trial.recipe:44} s = {trial.strength:<7g} old = {trial.old:<7g} shares {shares}: "
        f"wrong after all {left}, {went.seconds:.1f} s"
    )
