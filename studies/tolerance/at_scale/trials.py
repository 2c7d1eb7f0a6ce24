"""What is run: one training of a second task each, held by a tolerance or by a constant strength."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.language.settings import REHEARSAL as TINY_LANGUAGE
from benchmarks.language.settings import Settings as Language

Kind = Literal["tolerance", "strength"]


def decades(first: float, points: int = 10) -> tuple[float, ...]:
    """Return relative strengths, half a power of ten apart."""
    return tuple(float(f"{10 ** (first + step / 2):.3g}") for step in range(points))


@dataclass(frozen=True)
class Setting:
    """Two tasks and a network, and what is tried with them."""

    name: str
    seeds: tuple[int, ...]
    optimisers: tuple[str, ...]
    tolerances: tuple[float, ...]
    strengths: dict[str, tuple[float, ...]]
    """By form: s, in units of the mean importance."""
    rates: dict[str, float]
    """Learning rates of the second task, by optimiser."""
    choosing: tuple[int, ...] = ()
    """Seeds that damping and start are chosen on, and that nothing is reported of."""
    first_epochs: int = 0
    epochs: int = 0
    batch: int = 256
    measured: int = 1000
    """Old inputs that importance is measured on: of those that were trained on."""
    kept: int = 500
    """Old inputs that the tolerance is measured on, which were not."""
    fresh: int = 5000
    """Other old inputs, which judge."""
    hidden: tuple[int, ...] = ()
    language: Language | None = None

    @property
    def steps_said(self) -> str:
        """Say how the old task was learned, and how the new one is."""
        if self.language is not None:
            own = self.language
            english = f"English {own.english_steps} steps of {own.english_batch}"
            return f"{english}, then Python {own.python_steps} of {own.python_batch}"
        first = f"{self.first_epochs} epochs of the first task"
        return f"{first}, then {self.epochs} of the second, batches of {self.batch}"


@dataclass(frozen=True)
class Trial:
    """One training of the second task."""

    setting: str
    seed: int
    form: str
    optimiser: str
    kind: Kind
    value: float
    """Nats, or s."""
    damping: float | None = None
    start: float | None = None
    """Of a tolerance, where they are not what :class:`anchorhold.Tolerance` takes by default."""

    @property
    def said(self) -> dict[str, float]:
        """What is said of the way in which the strength follows the tolerance."""
        given = {"damping": self.damping, "start": self.start}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is told from others by."""
        return tuple(asdict(self).values())


SETTINGS = (
    Setting(
        "english-python",
        seeds=(6, 7),  # as in the study of recipes, whose networks can be taken
        optimisers=("AdamW", "SGD"),
        tolerances=(0.02, 0.05, 0.15),
        strengths={"diagonal": decades(-3.5)},
        rates={"AdamW": 5e-4, "SGD": 0.1},
        choosing=(8,),
        measured=256,
        kept=64,
        fresh=256,
        language=Language(),
    ),
    Setting(
        "permuted-mnist",
        seeds=(0, 1, 2),
        optimisers=("Adam", "SGD"),
        tolerances=(0.001, 0.003, 0.01, 0.03, 0.1),  # the first two were added after a look: nothing reached the last
        strengths={"diagonal": decades(-4), "rotated": decades(-5)},
        rates={"Adam": 1e-3, "SGD": 0.05},
        choosing=(3, 4),
        first_epochs=5,
        epochs=5,
        hidden=(2000, 2000),
    ),
    Setting(
        "split-cifar",
        seeds=tuple(range(10)),
        optimisers=("Adam", "SGD"),
        tolerances=(0.05, 0.2),
        strengths={"diagonal": decades(-2)},
        rates={"Adam": 1e-3, "SGD": 0.02},
        choosing=(10, 11, 12, 13),
        first_epochs=20,
        epochs=30,
        measured=500,
    ),
)
"""English first: it takes longest, and what begins first is not waited for."""


CANDIDATES = ((0.0, 0.3), (0.001, 0.3), (0.003, 0.3), (0.01, 0.3), (0.001, 0.1), (0.003, 0.1))
"""Dampings and starts of a diagonal's tolerance, among which one was chosen."""


def rehearsed(setting: Setting) -> Setting:
    """Return a setting at a size that a CPU runs through in seconds; its numbers mean nothing."""
    return replace(
        setting,
        seeds=setting.seeds[:1],
        choosing=setting.choosing[:1],
        tolerances=setting.tolerances[:1],
        strengths={form: values[3:10:3] for form, values in setting.strengths.items()},
        first_epochs=min(1, setting.first_epochs),
        epochs=min(1, setting.epochs),
        batch=16,
        measured=8,
        kept=8,
        fresh=16,
        hidden=tuple(12 for _ in setting.hidden),
        language=None if setting.language is None else TINY_LANGUAGE,
    )


@dataclass(frozen=True)
class Study:
    """All settings, at full size or at that of a rehearsal."""

    settings: tuple[Setting, ...] = SETTINGS
    rehearsal: bool = False
    names: tuple[str, ...] = field(default=tuple(setting.name for setting in SETTINGS))

    @classmethod
    def of(cls, names: tuple[str, ...], *, rehearse: bool) -> "Study":
        """Return the study of some settings."""
        chosen = [setting for setting in SETTINGS if setting.name in names]
        return cls(tuple(map(rehearsed, chosen)) if rehearse else tuple(chosen), rehearse, names)

    def networks(self) -> Iterator[tuple[Setting, int]]:
        """Yield what learns a first task: a network of each seed."""
        for setting in self.settings:
            for seed in (*setting.seeds, *setting.choosing):
                yield setting, seed

    def trials(self) -> Iterator[tuple[Setting, Trial]]:
        """Yield all trials; those of a seed follow each other."""
        for setting in self.settings:
            for seed, form in itertools.product(setting.seeds, setting.strengths):
                for optimiser in setting.optimisers:
                    about = (setting.name, seed, form, optimiser)
                    for nats in setting.tolerances:
                        yield setting, Trial(*about, "tolerance", nats)
                    for s in setting.strengths[form]:
                        yield setting, Trial(*about, "strength", s)

    def candidates(self) -> Iterator[tuple[Setting, Trial]]:
        """Yield what damping and start are chosen by: a diagonal's tolerances, on seeds of their own."""
        for setting in self.settings:
            for seed, optimiser in itertools.product(setting.choosing, setting.optimisers):
                for nats, (damping, start) in itertools.product(setting.tolerances[:3], CANDIDATES):
                    about = (setting.name, seed, "diagonal", optimiser)
                    yield setting, Trial(*about, "tolerance", nats, damping, start)
