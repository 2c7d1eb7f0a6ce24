"""What is left of a format when another has been learned."""

from collections.abc import Sequence
from pathlib import Path

from anchorhold.whole_files import write_whole
from benchmarks.language.corpus import corpora
from benchmarks.language.formats.study import GAIN
from benchmarks.language.frontier import Mean
from benchmarks.language.lines import studies
from benchmarks.language.sequence.course import Went
from benchmarks.language.sequence.keeping import KEEPINGS, Keeping
from benchmarks.language.sequence.kinds import REPORTED
from benchmarks.language.sequence.report import chosen, needs


def write(path: Path, went: Sequence[Went]) -> Path:
    """Write the page and return where."""
    write_whole(path, page(went).encode())
    return path


def page(went: Sequence[Went], keepings: Sequence[Keeping] = KEEPINGS) -> str:
    """Return the page."""
    here, *_ = studies(went)
    header = ("first, just learned", "**first, after the second**", "second", "English lost, bits a byte")
    lines = [
        "# An invented format, overwritten by another",
        "",
        "- command: python -m benchmarks.language formats CORPUS",
        f"- machine: {'; '.join(sorted({each.machine for each in here}))}",
        f"- corpus: {corpora(here)}",
        "",
        (
            "A network that knows English learns to write records in a format that is drawn by chance (keys, their "
            "order, capitals, punctuation), and then in another. Each question tells a record in plain words and names "
            "the format. Told is the share of new records, none of them trained on, whose answer is right to the "
            "last byte, written greedily; ± the standard error over seeds, each a network and two formats of its own. "
            "“Averaged”: after each lesson weights go back towards those before it, as far as "
            f"{GAIN:.0%} of what fine-tuning gets right of the new format is left. Every recipe with anything to "
            "choose has two tries; the better one on one half of the records kept apart is read off on the other. Old "
            "text or records: whether training reads any, or the guard alone is measured on some."
        ),
        "",
        f"| recipe | old text or records | {' | '.join(header)} | seeds |",
        f"|---|---{'|---' * len(header)}|---|",
    ]
    for keeping in keepings:
        found = chosen(here, keeping)
        if found:
            rows = [_row(each) for each in found.values()]
            cells = [_percent(Mean.over([row[place] for row in rows])) for place in range(len(header) - 1)]
            cells.append(str(Mean.over([row[-1] for row in rows])))
            seeds = ", ".join(map(str, found))
            lines.append(f"| {keeping.name} | {needs(keeping)} | {' | '.join(cells)} | {seeds} |")
    missing = [keeping.name for keeping in keepings if not chosen(here, keeping)]
    lines += ["", f"Not run to their end: {'; '.join(missing)}."] if missing else []
    return "\n".join(lines) + "\n"


def _row(went: Went) -> list[float]:
    """Return how many are right, and the English lost."""
    english, first, second = went.before
    right = [went.learned[first], went.left[first], went.left[second]]
    return [*(1.0 - wrong[REPORTED] for wrong in right), went.left[english][REPORTED] - went.before[english][REPORTED]]


def _percent(mean: Mean) -> str:
    return f"{mean.value:.1%}" + (f" ± {100 * mean.error:.1f}" if mean.error is not None else "")
