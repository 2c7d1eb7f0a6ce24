"""What the recipes come to: English lost at equal gain, chosen on one half of the English and read off on the other."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.language.frontier import Mean, lost_at
from benchmarks.language.recipes import PIECES, RECIPES, SHARES, Looked, Recipe
from holdfast.whole_files import write_whole

GAINS = (0.90, 0.95)
HALVES = (0, 1)
TRAINED = str(SHARES[-1])
"""The share of a network as it was trained."""


def write(
    path: Path, looked: Sequence[Looked], corpus: str, recipes: Sequence[Recipe] = RECIPES, flags: str = ""
) -> Path:
    """Write the page and return where."""
    write_whole(path, page(looked, corpus, recipes, flags).encode())
    return path


def page(looked: Sequence[Looked], corpus: str, recipes: Sequence[Recipe] = RECIPES, flags: str = "") -> str:
    """Return the page; ``flags`` are what the command was given besides the corpus."""
    whole = recipes[0].way == "full"
    tries = max(len(list(recipe.trials())) for recipe in recipes)
    where = {
        "command": f"python -m benchmarks.language recipes {'' if whole else '--adapter '}{flags}CORPUS",
        "machine": "; ".join(sorted({found.machine for found in looked})),
        "corpus": f"sha256 {corpus}",
    }
    header = [f"{gain:.0%}{after}" for after in ("", ", then averaged") for gain in GAINS]
    missing = [recipe.name for recipe in recipes if not seeds_of(looked, recipe.name, recipes)]
    lines = [
        "# Everything that keeps, English and then Python" + ("" if whole else ", by an adapter"),
        "",
        *(f"- {key}: {value}" for key, value in where.items()),
        "",
        (
            "English lost in bits a byte where Python has so much of what fine-tuning gains, ± the standard error over "
            f"seeds, each of which is a network of its own. Every recipe with anything to choose has {tries} trials, "
            f"and each trained network is averaged with the one before at {len(SHARES)} shares. Which trial is best is "
            "chosen on one half of the English kept apart and read off on the other, both ways round, and the two are "
            "averaged. “–”: no trial reaches so far, or there is nothing to interpolate. Own text is what the model "
            f"wrote before it learned Python, {PIECES} pieces; English is as many pieces of what it learned from; "
            "distilled, the model's outputs then are the target. A rotated guard is measured on 256 pieces. Tables of "
            "other seeds are of other networks: each has fine-tuning of its own, whose average is averaging alone."
        ),
    ]
    for seeds, names in _by_networks(looked, recipes).items():
        lines += ["", f"Seeds {', '.join(map(str, seeds))}:", ""]
        lines += [f"| recipe | {' | '.join(header)} |", f"|---{'|---' * len(header)}|"]
        for name in names:
            cells = [_cell(looked, seeds, name, gain, averaged=after) for after in (False, True) for gain in GAINS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    if missing:
        lines += ["", f"Not run to their end: {'; '.join(missing)}."]
    lines += ["", "## Every trial as it was trained", "", *_trials(looked, recipes)]
    return "\n".join(lines) + "\n"


def lost(looked: Sequence[Looked], seed: int, name: str, gain: float, *, averaged: bool) -> float | None:
    """Return the English that one seed loses by a recipe, where its best trial has a share of fine-tuning's gain."""
    here = [found for found in looked if found.seed == seed]
    free = next((found for found in here if found.trial.recipe == RECIPES[0].name), None)
    mine = [found for found in here if found.trial.recipe == name]
    if free is None or not mine:
        return None
    wanted = gain * _gained(free, TRAINED)
    # Averages with the network before make a line for each trial; without them, the trials themselves are one.
    lines = [[(found, share) for share in found.after] for found in mine]
    if not averaged:
        lines = [[(found, TRAINED) for found in mine]]
    there = [tuple(_at(line, wanted, half, from_start=averaged) for half in HALVES) for line in lines]
    reached = [each for each in there if None not in each]
    if not reached:
        return None
    chosen = [(min(reached, key=lambda each: each[half]), 1 - half) for half in HALVES]
    return sum(each[other] for each, other in chosen) / len(HALVES)


def _at(line: Sequence[tuple[Looked, str]], gained: float, half: int, *, from_start: bool) -> float | None:
    points = [(_gained(found, share), _lost(found, share, half)) for found, share in line]
    return lost_at([(0.0, 0.0), *points] if from_start else points, gained)


def _gained(found: Looked, share: str) -> float:
    """Return the Python gained, on all of the text kept apart: at which gain to look is no choice of a recipe's."""
    return sum(found.before["python"][half] - found.after[share]["python"][half] for half in HALVES) / len(HALVES)


def _lost(found: Looked, share: str, half: int) -> float:
    return found.after[share]["english"][half] - found.before["english"][half]


def seeds_of(looked: Sequence[Looked], name: str, recipes: Sequence[Recipe] = RECIPES) -> list[int]:
    """Return the seeds that have all trials of a recipe, and fine-tuning to compare them with."""
    trials = {trial for recipe in recipes if recipe.name in (name, recipes[0].name) for trial in recipe.trials()}
    seeds = sorted({found.seed for found in looked})
    return [seed for seed in seeds if trials <= {found.trial for found in looked if found.seed == seed}]


def _by_networks(looked: Sequence[Looked], recipes: Sequence[Recipe]) -> dict[tuple[int, ...], list[str]]:
    """Return the recipes that have the same networks, by their seeds; fine-tuning is first of each."""
    first, *others = [recipe.name for recipe in recipes]
    found: dict[tuple[int, ...], list[str]] = {}
    for name in others:
        seeds = tuple(seeds_of(looked, name, recipes))
        if seeds:
            found.setdefault(seeds, [first]).append(name)
    return found or {tuple(seeds_of(looked, first, recipes)): [first]}


def _cell(looked: Sequence[Looked], seeds: Sequence[int], name: str, gain: float, *, averaged: bool) -> str:
    values = [lost(looked, seed, name, gain, averaged=averaged) for seed in seeds]
    reached = [value for value in values if value is not None]
    if not reached:
        return "–"
    return str(Mean.over(reached)) + (f" ({len(reached)} of {len(values)} seeds)" if len(reached) < len(values) else "")


def _trials(looked: Sequence[Looked], recipes: Sequence[Recipe]) -> list[str]:
    """Return a table of what was trained, before any averaging, on all of the text."""
    free = {found.seed: _gained(found, TRAINED) for found in looked if found.trial.recipe == RECIPES[0].name}
    lines = ["| recipe | s | old text | Python, of fine-tuning's | English lost | seeds |", "|---|---|---|---|---|---|"]
    for trial in dict.fromkeys(trial for recipe in recipes for trial in recipe.trials()):
        mine = [found for found in looked if found.trial == trial and found.seed in free]
        if mine and not any(recipe.merged_by for recipe in recipes if recipe.name == trial.recipe):
            share = Mean.over([_gained(found, TRAINED) / free[found.seed] for found in mine])
            gone = Mean.over([sum(_lost(found, TRAINED, half) for half in HALVES) / len(HALVES) for found in mine])
            cells = (trial.recipe, f"{trial.strength:g}", f"{trial.old:g}", share, gone, len(mine))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
