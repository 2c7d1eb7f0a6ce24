"""What is run: a recipe says all that a run's end depends on."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from studies.pretrained.texts import LESSONS

GuardForm = Literal["diagonal", "kronecker"]


@dataclass(frozen=True)
class Recipe:
    """How a model learns a lesson.

    Args:
        model, lesson: their names.
        weights: which weights are trained.
        rank: of a LoRA adapter.
        rate: the highest learning rate; it rises over the first 3 % of steps and falls to 0 on a line.
        epochs: how often the lesson is read.
        keep: what keeps the old: nothing, the KL divergence from the model before on text that it wrote, or a guard of
            this form that has measured such text.
        strength: what a nat of this divergence counts beside a nat of the lesson's loss; a guard's exchange rate.
        kept_rows: rows of own text beside each step's rows of the lesson.
        seed: of the rows' order and the adapter.
        batch: rows of a step.
    """

    model: str
    lesson: str
    weights: Literal["all", "lora"]
    rate: float
    epochs: int
    rank: int = 0
    keep: Literal["nothing", "own text"] | GuardForm = "nothing"
    strength: float = 0.0
    kept_rows: int = 0
    seed: int = 0
    batch: int = 16

    @property
    def name(self) -> str:
        """Return a name for exactly this recipe."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Recipe":
        """Return what ``asdict`` returned as it was."""
        return cls(**plain)


@dataclass(frozen=True)
class Regime:
    """A way in which people fine-tune."""

    name: str
    weights: Literal["all", "lora"]
    rate: float
    epochs: int
    rank: int = 0

    def recipe(self, model: str, lesson: str, seed: int = 0) -> Recipe:
        """Return the recipe of this regime for a model and a lesson."""
        return Recipe(model, lesson, self.weights, self.rate, self.epochs, self.rank, seed=seed)


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("lora", "lora", 1e-4, 2, rank=16),
        Regime("mild", "all", 1e-5, 2),
        Regime("hard", "all", 5e-5, 5),
    )
}
RATES = {"lora": (3e-5, 3e-4), "hard": (2e-5, 1e-4)}
"""Further learning rates of two regimes, for the frontier of plain fine-tuning."""
GUARDS: tuple[GuardForm, ...] = ("diagonal", "kronecker")
EXCHANGE_RATES = (1.0, 0.3, 3.0, 0.1, 10.0, 30.0, 0.03)
"""Of guards, the most telling first."""
GUARDED: tuple[tuple[str, GuardForm], ...] = (("lora", "kronecker"), ("hard", "kronecker"), ("hard", "diagonal"))
"""Regimes, and the guards beside them."""
STRENGTHS = (0.3, 1.0, 3.0)
KEPT_ROWS = 8


def screening(
    model: str,
    lessons: Sequence[str] = LESSONS,
    regimes: Sequence[str] = tuple(REGIMES),
    seeds: Sequence[int] = (0,),
) -> Iterator[Recipe]:
    """Yield what finds the pairs of a model and a lesson in which kept text is lost."""
    for seed, regime, lesson in itertools.product(seeds, regimes, lessons):
        yield REGIMES[regime].recipe(model, lesson, seed)


def rates(model: str, lessons: Sequence[str] = LESSONS) -> Iterator[Recipe]:
    """Yield fine-tuning at further learning rates."""
    for lesson in lessons:
        for regime, some in RATES.items():
            for rate in some:
                yield replace(REGIMES[regime], rate=rate).recipe(model, lesson)


def own_text(model: str, lessons: Sequence[str] = LESSONS) -> Iterator[Recipe]:
    """Yield the hard regime with the KL on own text, at several strengths."""
    for lesson in lessons:
        for strength in STRENGTHS:
            recipe = REGIMES["hard"].recipe(model, lesson)
            yield replace(recipe, keep="own text", strength=strength, kept_rows=KEPT_ROWS)


def guards(
    model: str,
    lessons: Sequence[str] = LESSONS,
    regimes: Sequence[str] = tuple(REGIMES),
    seeds: Sequence[int] = (0,),
    exchange_rates: Sequence[float] = EXCHANGE_RATES,
    forms: Sequence[GuardForm] = GUARDS,
) -> Iterator[Recipe]:
    """Yield guards beside two regimes, at several exchange rates."""
    for seed, kappa, (regime, form), lesson in itertools.product(seeds, exchange_rates, GUARDED, lessons):
        if regime in regimes and form in forms:
            yield replace(REGIMES[regime].recipe(model, lesson, seed), keep=form, strength=kappa)
