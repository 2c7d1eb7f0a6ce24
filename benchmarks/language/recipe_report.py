"""What the recipes come to: old text lost at equal gain, chosen on one half of it and read off on the other."""

from collections.abc import Sequence
from pathlib import Path

from anchorhold.whole_files import write_whole
from benchmarks.language.corpus import corpora
from benchmarks.language.frontier import Mean, lost_at
from benchmarks.language.lines import named_networks, studies
from benchmarks.language.recipes import PIECES, RECIPES, SHARES, Looked, Recipe, Trial, gained
from benchmarks.language.settings import OWN

GAINS = (0.90, 0.95)
HALVES = (0, 1)
TRAINED = str(SHARES[-1])
"""The share of a network as it was trained."""


def write(path: Path, looked: Sequence[Looked], recipes: Sequence[Recipe] = RECIPES, flags: str = "") -> Path:
    """Write the page and return where."""
    write_whole(path, page(looked, recipes, flags).encode())
    return path


def page(looked: Sequence[Looked], recipes: Sequence[Recipe] = RECIPES, flags: str = "") -> str:
    """Return the page; ``flags`` are what the command was given besides the corpus."""
    whole = recipes[0].way == "full"
    tries = max(len(list(recipe.trials())) for recipe in recipes)
    fewer = any(len(found.after) < len(SHARES) for found in looked)
    shares = f"{len(SHARES)} shares" + (", down to the first that is below what is read off here" if fewer else "")
    lesson = lesson_of(looked)
    where = {
        "command": f"python -m benchmarks.language recipes {'' if whole else '--adapter '}{flags}CORPUS",
        "machine": "; ".join(sorted({found.machine for found in looked})),
        "corpus": corpora(looked),
    }
    lines = [
        f"# Everything that keeps, English and then {lesson}" + ("" if whole else ", by an adapter"),
        "",
        *(f"- {key}: {value}" for key, value in where.items()),
        "",
        (
            f"{old_of(looked)} lost in bits a byte where {lesson} has so much of what fine-tuning gains, ± the "
            f"standard error over seeds, each of which has {_of_a_seed(flags)} of its own. Every recipe with anything "
            f"to choose has {tries} trials, "
            f"and each trained network is averaged with the one before at {shares}. Which trial is best is "
            f"chosen on one half of {_apart(looked)} and read off on the other, both ways round, and the two are "
            "averaged. “–”: trials do not lie on both sides of that gain. Own text is what the model "
            f"wrote before it learned {lesson}, {PIECES} pieces; English is as many pieces of {_english(flags)}; "
            "distilled, the model's outputs then are the target. A guard is measured on 256 pieces. Each table "
            "is of networks of its own, and has their fine-tuning, whose average is averaging alone."
        ),
    ]
    every = studies(looked)
    for here in every:
        lines += [*_heading(here, "", several=len(every) > 1), *_whole_searches(here, recipes)]
        lines += [*_parts_of_searches(here, recipes), *_not_run(here, recipes)]
    lines += _together(every, recipes)
    for here in every:
        lines += _heading(here, "Every trial as it was trained", several=len(every) > 1)
        lines += ["", *_trials(here, recipes)]
    return "\n".join(lines) + "\n"


def lesson_of(looked: Sequence[Looked]) -> str:
    """Return what was learned after English."""
    *_, lesson = looked[-1].before
    return str(lesson).capitalize()


def old_of(looked: Sequence[Looked]) -> str:
    """Return the old text of which the loss is told."""
    old, *_ = looked[-1].before
    return str(old).capitalize()


def _apart(looked: Sequence[Looked]) -> str:
    if old_of(looked) == OWN.capitalize():
        return "own text that was written for this alone, where the loss rises by the divergence KL(before ‖ after),"
    return "the English kept apart"


def _of_a_seed(flags: str) -> str:
    """Say what differs between seeds: of another's network there is but one."""
    return "batches, own text and samples" if "--pretrained" in flags else "a network"


def _english(flags: str) -> str:
    """Say which English is at hand: nobody has what another's network learned from."""
    return "the corpus" if "--pretrained" in flags else "what it learned from"


def _heading(here: Sequence[Looked], what: str, *, several: bool) -> list[str]:
    """Return a heading that tells studies apart, where there are several."""
    if not several:
        return ["", f"## {what}"] if what else []
    which = f"networks {named_networks(here)}"
    return ["", f"## {what}: {which}" if what else f"## {which.capitalize()}"]


def lost(looked: Sequence[Looked], network: str, name: str, gain: float, *, averaged: bool) -> float | None:
    """Return the English that a network loses by a recipe, where its best trial has a share of fine-tuning's gain."""
    here = [found for found in looked if found.network == network]
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
    reached = [(one, other) for one, other in there if one is not None and other is not None]
    if not reached:
        return None
    chosen = [(min(reached, key=lambda each: each[half]), 1 - half) for half in HALVES]
    return sum(each[other] for each, other in chosen) / len(HALVES)


def _at(line: Sequence[tuple[Looked, str]], wanted: float, half: int, *, from_start: bool) -> float | None:
    points = [(_gained(found, share), _lost(found, share, half)) for found, share in line]
    # Where small shares were not looked at, nothing is known of the way from the start to the first that was.
    from_start = from_start and any(share == str(SHARES[0]) for _, share in line)
    return lost_at([(0.0, 0.0), *points] if from_start else points, wanted)


def _gained(found: Looked, share: str) -> float:
    return gained(found.before, found.after[share])


def _lost(found: Looked, share: str, half: int) -> float:
    old, *_ = found.before
    return rise(found, share, old, half)


def rise(found: Looked, share: str, text: str, half: int) -> float:
    """Return what a network has lost of a text."""
    return found.after[share][text][half] - found.before[text][half]


def networks_of(looked: Sequence[Looked], name: str, recipes: Sequence[Recipe] = RECIPES) -> list[str]:
    """Return the networks that have all trials of a recipe, and fine-tuning to compare them with, by their seeds."""
    searches = [set(trials) for recipe in recipes if recipe.name == name for trials in recipe.searches()]
    return [
        network
        for network, trials in _by_network(looked).items()
        if set(recipes[0].trials()) <= trials and any(search <= trials for search in searches)
    ]


def seeds_of(looked: Sequence[Looked], networks: Sequence[str]) -> list[int]:
    """Return the seeds of networks."""
    known = {found.network: found.seed for found in looked}
    return [known[network] for network in networks]


def _by_network(looked: Sequence[Looked]) -> dict[str, set[Trial]]:
    """Return the trials that each network has, by seed."""
    trials: dict[str, set[Trial]] = {}
    for found in sorted(looked, key=lambda found: found.seed):
        trials.setdefault(found.network, set()).add(found.trial)
    return trials


def _whole_searches(here: Sequence[Looked], recipes: Sequence[Recipe]) -> list[str]:
    """Return a table for each set of networks that have the same recipes whole; fine-tuning is first of each."""
    first, *others = [recipe.name for recipe in recipes]
    found: dict[tuple[str, ...], list[str]] = {}
    for name in others:
        if networks := tuple(networks_of(here, name, recipes)):
            found.setdefault(networks, [first]).append(name)
    lines: list[str] = []
    for networks, names in (found or {tuple(networks_of(here, first, recipes)): [first]}).items():
        lines += ["", f"Seeds {_said(seeds_of(here, networks))}:", "", *_header()]
        lines += [f"| {name} | {' | '.join(_cells(here, networks, name))} |" for name in names]
    return lines


def _together(every: Sequence[Sequence[Looked]], recipes: Sequence[Recipe]) -> list[str]:
    """Return a table of what was searched for on several networks of each study, all of them together."""
    first, *others = [recipe.name for recipe in recipes]
    names = [name for name in others if all(len(networks_of(here, name, recipes)) > 1 for here in every)]
    if len(every) == 1 or not names:
        return []
    lines = ["", "## All networks together, each with the tries of its own", "", *_header("networks")]
    for name in (first, *names):
        looked: list[Looked] = []
        networks: list[str] = []
        for here in every:
            looked += here
            networks += networks_of(here, names[0] if name == first else name, recipes)
        lines.append(f"| {name} | {len(networks)} | {' | '.join(_cells(looked, networks, name))} |")
    free = [found for here in every for found in here if found.trial.recipe == first]
    old, *_ = free[0].before
    gone = Mean.over([sum(rise(found, TRAINED, old, half) for half in HALVES) / len(HALVES) for found in free])
    return [*lines, "", f"As it was trained, {first} lost {gone}."]


def _parts_of_searches(here: Sequence[Looked], recipes: Sequence[Recipe]) -> list[str]:
    """Return a table of what was not tried as often as the others: what it has says at most what it can do so far."""
    trials, rows = _by_network(here), []
    for recipe in recipes[1:]:
        groups: dict[tuple[frozenset[Trial], int], list[str]] = {}
        for network in (each for each in trials if each not in networks_of(here, recipe.name, recipes)):
            parts = [(trials[network].intersection(search), len(search)) for search in recipe.searches()]
            tried, of = max(parts, key=lambda part: len(part[0]))
            if tried:
                groups.setdefault((frozenset(tried), of), []).append(network)
        for (those, of), networks in groups.items():
            cells = [f"{len(those)} of {of}", _said(seeds_of(here, networks)), *_cells(here, networks, recipe.name)]
            rows.append(f"| {recipe.name} | {' | '.join(cells)} |")
    if not rows:
        return []
    return ["", "Not run to their end, by the tries that there are:", "", *_header("tries", "seeds"), *rows]


def _not_run(here: Sequence[Looked], recipes: Sequence[Recipe]) -> list[str]:
    known = {found.trial.recipe for found in here}
    missing = [recipe.name for recipe in recipes if recipe.name not in known]
    return ["", f"Not run: {'; '.join(missing)}."] if missing else []


def _header(*more: str) -> list[str]:
    columns = [*more, *(f"{gain:.0%}{after}" for after in ("", ", then averaged") for gain in GAINS)]
    return [f"| recipe | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]


def _cells(looked: Sequence[Looked], networks: Sequence[str], name: str) -> list[str]:
    return [_cell(looked, networks, name, gain, averaged=after) for after in (False, True) for gain in GAINS]


def _cell(looked: Sequence[Looked], networks: Sequence[str], name: str, gain: float, *, averaged: bool) -> str:
    values = [lost(looked, network, name, gain, averaged=averaged) for network in networks]
    reached = [value for value in values if value is not None]
    if not reached:
        return "–"
    return str(Mean.over(reached)) + (f" ({len(reached)} of {len(values)} seeds)" if len(reached) < len(values) else "")


def _said(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _trials(here: Sequence[Looked], recipes: Sequence[Recipe]) -> list[str]:
    """Return a table of what was trained, before any averaging, on all of the text."""
    free = {found.network: _gained(found, TRAINED) for found in here if found.trial.recipe == RECIPES[0].name}
    *read, _ = here[-1].before
    heads = "recipe", "s", "old text", f"{lesson_of(here)}, of fine-tuning's"
    columns = [*heads, *(f"{text.capitalize()} lost" for text in read), "seeds"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    known = [recipe for recipe in recipes if recipe.merged_by is None]
    for trial in dict.fromkeys(trial for recipe in known for trials in recipe.searches() for trial in trials):
        mine = [found for found in here if found.trial == trial and found.network in free]
        if mine:
            share = Mean.over([_gained(found, TRAINED) / free[found.network] for found in mine])
            gone = [
                Mean.over([sum(rise(found, TRAINED, text, half) for half in HALVES) / len(HALVES) for found in mine])
                for text in read
            ]
            cells = (trial.recipe, f"{trial.strength:g}", f"{trial.old:g}", share, *gone, len(mine))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
