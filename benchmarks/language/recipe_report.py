"""What the recipes come to: English lost at equal gain, chosen on one half of the text and read off on the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.language.frontier import Mean, lost_at
from benchmarks.language.recipes import RECIPES, SHARES, Looked, Recipe
from holdfast.whole_files import write_whole

GAINS = (0.90, 0.95)
CHOSEN_BY, REPORTED = 0, 1
"""The halves of the text."""
Line = Sequence[tuple[float, float]]
"""Points of Python gained and English lost."""


def write(folder: Path, looked: Sequence[Looked], corpus: str, recipes: Sequence[Recipe] = RECIPES) -> Path:
    """Write the page and return where."""
    path = folder / ("recipes.md" if recipes[0].way == "full" else "adapter-recipes.md")
    write_whole(path, page(looked, corpus, recipes).encode())
    return path


def page(looked: Sequence[Looked], corpus: str, recipes: Sequence[Recipe] = RECIPES) -> str:
    """Return the page."""
    whole = recipes[0].way == "full"
    seeds = sorted({found.seed for found in looked})
    header = [f"{gain:.0%}{after}" for after in ("", ", then averaged") for gain in GAINS]
    lines = [
        "# Everything that keeps, English and then Python" + ("" if whole else ", by an adapter"),
        "",
        (
            f"`python -m benchmarks.language recipes {'' if whole else '--adapter '}CORPUS`, "
            f"torch {torch.__version__}, corpus sha256 {corpus}, "
            f"seeds {', '.join(map(str, seeds))}, networks of their own. English lost in bits a byte where Python has "
            "so much of what fine-tuning gains, ± the standard error over seeds. Every recipe with anything to choose "
            f"has four trials, and each trained network is averaged with the one before at {len(SHARES)} shares. Which "
            "trial is best is chosen on one half of the text kept apart, and the numbers are read off on the other. "
            "“–”: no trial reaches so far, or there is nothing to interpolate."
        ),
        "",
        f"| recipe | {' | '.join(header)} |",
        f"|---{'|---' * len(header)}|",
    ]
    for name in [recipe.name for recipe in recipes]:
        cells = [_cell(looked, seeds, name, gain, averaged=after) for after in (False, True) for gain in GAINS]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def lost(looked: Sequence[Looked], seed: int, name: str, gain: float, *, averaged: bool) -> float | None:
    """Return the English that one seed loses by a recipe, where its best trial has a share of fine-tuning's gain."""
    here = {found.trial: found for found in looked if found.seed == seed}
    free = next((found for trial, found in here.items() if trial.recipe == RECIPES[0].name), None)
    mine = [found for trial, found in here.items() if trial.recipe == name]
    if free is None or not mine:
        return None
    whole = str(SHARES[-1])
    groups = [[(found, share) for share in found.after] for found in mine] if averaged else [[(f, whole) for f in mine]]
    best: tuple[float, float | None] | None = None
    for group in groups:
        choosing, reporting = (
            lost_at(_line(group, half, from_start=averaged), gain * _gained(free, whole, half))
            for half in (CHOSEN_BY, REPORTED)
        )
        if choosing is not None and (best is None or choosing < best[0]):
            best = choosing, reporting
    return None if best is None else best[1]


def _line(group: Sequence[tuple[Looked, str]], half: int, *, from_start: bool) -> Line:
    points = [(_gained(found, share, half), _lost(found, share, half)) for found, share in group]
    return [(0.0, 0.0), *points] if from_start else points


def _gained(found: Looked, share: str, half: int) -> float:
    return found.before["python"][half] - found.after[share]["python"][half]


def _lost(found: Looked, share: str, half: int) -> float:
    return found.after[share]["english"][half] - found.before["english"][half]


def _cell(looked: Sequence[Looked], seeds: Sequence[int], name: str, gain: float, *, averaged: bool) -> str:
    found: Mapping[int, float | None] = {seed: lost(looked, seed, name, gain, averaged=averaged) for seed in seeds}
    values = [value for value in found.values() if value is not None]
    if not values:
        return ""
    missing = len(seeds) - len(values)
    return str(Mean.over(values)) + (f" ({len(values)} of {len(seeds)} seeds)" if missing else "")
