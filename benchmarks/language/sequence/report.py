"""What is left of each kind: one table of distances to the best known, one of what was forgotten on the way."""

from collections.abc import Sequence
from pathlib import Path

from anchorhold.whole_files import write_whole
from benchmarks.language.corpus import corpora
from benchmarks.language.frontier import Mean
from benchmarks.language.lines import named_networks, studies
from benchmarks.language.sequence.course import Went
from benchmarks.language.sequence.keeping import FREE, KEEPINGS, Keeping
from benchmarks.language.sequence.kinds import CHOOSES, REPORTED


def needs(keeping: Keeping) -> str:
    """Say what a recipe needs of text from before: some in every step, some to measure its guard on, or none."""
    if keeping.reads_old_text:
        return "while training"
    return "to measure on" if keeping.guard is not None and keeping.measured_on == "kind" else "no"


def write(path: Path, went: Sequence[Went], gain: float) -> Path:
    """Write the page and return where."""
    write_whole(path, page(went, gain).encode())
    return path


def page(went: Sequence[Went], gain: float, keepings: Sequence[Keeping] = KEEPINGS) -> str:
    """Return the page of all courses with one gain."""
    every = studies([each for each in went if each.gain in (gain, 1.0)])
    here, *earlier = every
    kinds = list(here[0].before)
    order = " → ".join(map(str.capitalize, kinds))
    lines = [
        f"# One kind of text after another: {order}",
        "",
        "- command: python -m benchmarks.language sequence CORPUS",
        f"- machine: {'; '.join(sorted({each.machine for each in went}))}",
        f"- corpus: {corpora(went)}",
        "",
        (
            "How many bits a byte each kind is worse after all lessons than at its best: English before the first "
            "lesson, the others as fine-tuning had just learned them in its own course; ± the standard error over "
            "seeds, each of which is a network of its own. “Averaged”: after each lesson weights go back towards those "
            f"before it, as far as {gain:.0%} of what fine-tuning learns of that kind is left, on the half of the text "
            "kept apart that chooses. So all averaged recipes have learned as much, and the last kind is as far from "
            "its best as that leaves it. Every recipe with anything to choose has two tries, those that did best where "
            "Python alone was learned; the better one, by the mean over all kinds on the half that chooses, is read "
            "off on the other half. Old text: whether training reads any, or the guard alone is measured on 256 pieces "
            "of each kind. Old: the mean over all kinds but the last. Forgotten on the way: less what each recipe "
            "itself had wrong of a kind when it had just learned it. Learned: how much of what fine-tuning learns each "
            "lesson left, the mean over lessons."
        ),
        *_of_networks(here, keepings, kinds),
    ]
    for others in earlier:
        lines += [
            "",
            f"# Other networks, before these: {named_networks(others)}",
            *_of_networks(others, keepings, kinds),
        ]
    return "\n".join(lines) + "\n"


def _of_networks(here: Sequence[Went], keepings: Sequence[Keeping], kinds: Sequence[str]) -> list[str]:
    """Return the tables of a study, which has a network for each seed."""
    tables = {
        "What is left after all": _table(here, keepings, kinds, forgotten=False),
        "Forgotten on the way": _table(here, keepings, kinds, forgotten=True),
        "Every course": _courses(here, kinds),
    }
    return [line for title, table in tables.items() for line in ("", f"## {title}", "", *table)]


def chosen(went: Sequence[Went], keeping: Keeping) -> dict[int, Went]:
    """Return each seed's better try, of the seeds that have all tries and fine-tuning."""
    free = _free(went)
    found = {}
    for seed in sorted(free):
        mine = [each for each in went if each.seed == seed and each.trial in set(keeping.trials())]
        if {each.trial for each in mine} == set(keeping.trials()):
            found[seed] = min(mine, key=lambda each: sum(above(each, free[seed], CHOOSES).values()))
    return found


def above(went: Went, free: Went, half: int) -> dict[str, float]:
    """Return how much worse each kind is after all than at its best."""
    return {kind: wrong[half] - free.learned[kind][half] for kind, wrong in went.left.items()}


def _forgotten(went: Went, half: int) -> dict[str, float]:
    """Return how much worse each kind is after all than when it had just been learned."""
    return {kind: wrong[half] - went.learned[kind][half] for kind, wrong in went.left.items()}


def share_learned(went: Went, free: Went, half: int) -> float:
    """Return how much of what fine-tuning learns the lessons left, on average."""

    def gained(each: Went, kind: str) -> float:
        return each.before[kind][half] - each.learned[kind][half]

    shares = [gained(went, stage.kind) / gained(free, stage.kind) for stage in went.stages]
    return sum(shares) / len(shares)


def _free(went: Sequence[Went]) -> dict[int, Went]:
    return {each.seed: each for each in went if each.trial.recipe == FREE}


def _table(went: Sequence[Went], keepings: Sequence[Keeping], kinds: Sequence[str], *, forgotten: bool) -> list[str]:
    free = _free(went)
    named = [kind.capitalize() for kind in kinds]
    columns = [*named[:-1], "old", "learned"] if forgotten else [*named, "old"]
    lines = [f"| recipe | old text | {' | '.join(columns)} | seeds |", f"|---|---{'|---' * len(columns)}|---|"]
    for keeping in keepings:
        found = chosen(went, keeping)
        if not found:
            continue
        rows = [_row(each, free[seed], forgotten=forgotten) for seed, each in found.items()]
        cells = [str(Mean.over([row[place] for row in rows])) for place in range(len(columns))]
        seeds = ", ".join(map(str, found))
        lines.append(f"| {keeping.name} | {needs(keeping)} | {' | '.join(cells)} | {seeds} |")
    missing = [keeping.name for keeping in keepings if not chosen(went, keeping)]
    return [*lines, *(["", f"Not run to their end: {'; '.join(missing)}."] if missing else [])]


def _row(went: Went, free: Went, *, forgotten: bool) -> list[float]:
    if not forgotten:
        worse = list(above(went, free, REPORTED).values())
        return [*worse, sum(worse[:-1]) / len(worse[:-1])]
    lost = list(_forgotten(went, REPORTED).values())[:-1]
    return [*lost, sum(lost) / len(lost), share_learned(went, free, REPORTED)]


def _courses(went: Sequence[Went], kinds: Sequence[str]) -> list[str]:
    """Return a table of every course, on the half that is reported."""
    free = _free(went)
    named = [kind.capitalize() for kind in kinds]
    lines = [
        f"| recipe | s | old text | seed | {' | '.join(named)} | shares |",
        f"|---|---|---|---{'|---' * len(named)}|---|",
    ]
    for each in went:
        if each.seed in free:
            worse = [f"{value:.3f}" for value in above(each, free[each.seed], REPORTED).values()]
            shares = ", ".join(f"{stage.share:.2f}" for stage in each.stages)
            cells = (each.trial.recipe, f"{each.trial.strength:g}", f"{each.trial.old:g}", each.seed, *worse, shares)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
