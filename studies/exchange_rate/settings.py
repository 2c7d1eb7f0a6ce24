"""What is run: exchange rates, networks, and ladders of strengths."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from studies.exchange_rate.texts import PAIRS

GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Exchange rates κ: nats of the new text that one gives for a nat of the old."""
BEYOND = (0.001, 0.003, 1000.0, 3000.0)
"""Further ones, tried where the best of those so far lies at an edge."""
FORMS = ("diagonal", "kronecker", "rotated")
Way = Literal["all", "lora"]
WAYS: tuple[Way, ...] = ("all", "lora")
RANK = 8


@dataclass(frozen=True)
class Size:
    """How large a network is, and how long it learns.

    Args:
        width, layers, heads: of a GPT over bytes.
        context: T, the bytes that are predicted of a sample.
        old_steps, old_batch, old_rate: of learning the old text.
        new_steps, new_batch: of learning the new text.
        rates: the learning rate of all weights, and that of an adapter.
        measured: old samples for the Fisher information.
        windows: samples of each text that losses are measured on.
    """

    width: int
    layers: int
    heads: int
    context: int = 256
    old_steps: int = 2500
    old_batch: int = 64
    old_rate: float = 1e-3
    new_steps: int = 200
    new_batch: int = 32
    rates: tuple[float, float] = (1e-3, 3e-3)
    measured: int = 256
    windows: int = 256

    def rate(self, way: Way) -> float:
        """Return the learning rate of one way of learning the new text."""
        return self.rates[WAYS.index(way)]


SIZES = {
    "1M": Size(128, 5, 4, old_rate=2e-3),
    "11M": Size(384, 6, 6, rates=(5e-4, 2e-3)),
    "rehearsal": Size(16, 2, 2, context=32, old_steps=20, old_batch=8, new_steps=4, new_batch=4, measured=8, windows=8),
}
STUDIED = (("dictionary, C", "11M", 2), ("dictionary, C", "1M", 5), ("German, scripture", "1M", 5))
"""Pair, size, and how many seeds."""
REHEARSED = (("dictionary, C", "rehearsal", 2), ("German, scripture", "rehearsal", 1))


@dataclass(frozen=True)
class Base:
    """A network that has learned an old text."""

    pair: str
    size: str
    seed: int

    @property
    def name(self) -> str:
        """Return a file's name for it."""
        return f"{self.pair.replace(', ', '-')}-{self.size}-{self.seed}"

    @property
    def old(self) -> str:
        """Return the kind of text that it has learned."""
        return PAIRS[self.pair][0]

    @property
    def new(self) -> str:
        """Return the kind of text that it is to learn."""
        return PAIRS[self.pair][1]


@dataclass(frozen=True)
class Run:
    """One training on the new text.

    Args:
        base: where it begins.
        way: which weights are trained.
        form: of the guard, or ``"none"``.
        kappa: its exchange rate.
    """

    base: Base
    way: Way
    form: str
    kappa: float = 0.0

    @property
    def name(self) -> str:
        """Return a name for exactly this run."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Run":
        """Return what ``asdict`` returned as it was."""
        return cls(**{**plain, "base": Base(**plain["base"])})


@dataclass(frozen=True)
class Ladder:
    """All runs of one network with one form: they share what is measured. Without a form it is one run."""

    base: Base
    way: Way
    form: str

    @property
    def name(self) -> str:
        """Return a file's name for it."""
        return f"{self.base.name}-{self.way}-{self.form}"

    def run(self, kappa: float) -> Run:
        """Return the run of an exchange rate."""
        return Run(self.base, self.way, self.form, kappa)

    @property
    def first(self) -> tuple[float, ...]:
        """Return the exchange rates that are tried in any case, the most telling first."""
        return (0.0,) if self.form == "none" else tuple(sorted(GRID, key=lambda kappa: max(kappa, 1 / kappa)))


def ladders(studied: tuple[tuple[str, str, int], ...] = STUDIED) -> Iterator[Ladder]:
    """Yield everything that is run: a first seed of all, then the second, and so on."""
    for seed in range(max(seeds for *_, seeds in studied)):
        for pair, size, seeds in studied:
            if seed < seeds:
                for form in ("none", *FORMS):
                    for way in WAYS:
                        yield Ladder(Base(pair, size, seed), way, form)


def beyond(costs: dict[float, float]) -> float | None:
    """Return the next exchange rate to try where the best so far lies at an edge; ``None`` if there is none."""
    tried = sorted(costs)
    best = min(tried, key=lambda kappa: costs[kappa])
    if best == tried[0]:
        return max((kappa for kappa in BEYOND if kappa < best), default=None)
    if best == tried[-1]:
        return min((kappa for kappa in BEYOND if kappa > best), default=None)
    return None
