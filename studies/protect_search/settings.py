"""What is trained, and which settings of the recipe are tried by hand."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from studies.pretrained.recipes import REGIMES, Recipe

Weights = Literal["all", "lora"]
EPOCHS = {"lesson-records": 2, "lesson-basque": 1}
"""Short trainings, so that a search by hand fits into minutes."""
REGIME_OF: dict[Weights, str] = {"lora": "lora", "all": "hard"}
AVERAGES = (1.0, 0.9, 0.8, 0.6)
"""How much of what was learned is left, of which a hand chooses too."""

GIVEN_BACK = 0.5
"""The part of what was lost that ``finish()`` gave back when these were run; it averages nothing by itself now."""


@dataclass(frozen=True)
class Setting:
    """What a hand sets.

    Args:
        exchange_rate: κ of the hold.
        share: the part of each step that distils own text.
    """

    exchange_rate: float
    share: float


DEFAULT = Setting(1.0, 1 / 8)
"""What ``protect()`` has with no option."""
TRIED = (
    DEFAULT,
    Setting(1.0, 1 / 2),
    Setting(3.0, 1 / 8),
    Setting(3.0, 1 / 2),
    Setting(1.0, 3 / 4),
    Setting(10.0, 1 / 2),
    Setting(10.0, 1 / 8),
    Setting(3.0, 3 / 4),
)
"""The most telling first."""


@dataclass(frozen=True)
class Run:
    """One training under a guard of ``protect()``'s.

    Args:
        recipe: the model, the lesson and how it is trained.
        setting: of the recipe that keeps.
    """

    recipe: Recipe
    setting: Setting

    @property
    def name(self) -> str:
        """Return a name for exactly this run."""
        return hashlib.sha256(json.dumps(self.told(), sort_keys=True).encode()).hexdigest()[:12]

    def told(self) -> dict[str, Any]:
        """Return what a line says of the run."""
        return {"recipe": asdict(self.recipe), "setting": asdict(self.setting)}

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Run":
        """Return what :meth:`told` returned as it was."""
        return cls(Recipe.of(told["recipe"]), Setting(**told["setting"]))


def runs(model: str, lesson: str, weights: Weights, seed: int = 0) -> Iterator[Run]:
    """Yield what is tried of one lesson and one way of training."""
    regime = REGIMES[REGIME_OF[weights]]
    recipe = Recipe(model, lesson, weights, regime.rate, EPOCHS[lesson], regime.rank, seed=seed)
    for setting in TRIED:
        yield Run(recipe, setting)
