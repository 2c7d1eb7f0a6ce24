"""What forms that take less keep, in a network so small that a CPU can tell: the order among them, and no more."""

from collections.abc import Sequence
from pathlib import Path

from anchorhold.whole_files import write_whole
from benchmarks.language.corpus import corpora
from benchmarks.language.frontier import Mean
from benchmarks.language.recipe_report import lost, networks_of, seeds_of
from benchmarks.language.recipes import ROTATED, Looked, Recipe
from benchmarks.language.settings import TINY

STRENGTHS = (0.016, 0.08, 0.4, 2.0)
GAINS = (0.95, 0.98)

SMALL_RECIPES = (
    Recipe("fine-tuning"),
    Recipe("rotated", STRENGTHS, guard=ROTATED),
    *(
        Recipe(name, STRENGTHS, guard=name)
        for name in (
            "rotated16",
            "rotated16, blocks of 65",
            "rotated16, blocks of 22",
            "rotated16, rank 16",
            "rotated16, inputs alone",
            "Kronecker",
            "Kronecker16",
            "Kronecker16, blocks of 22",
        )
    ),
    Recipe("EWC", (0.08, 0.4, 2.0, 10.0), guard="EWC"),
)


def write(folder: Path, looked: Sequence[Looked]) -> Path:
    """Write the page and return where."""
    path = folder / "small-forms.md"
    write_whole(path, page(looked).encode())
    return path


def page(looked: Sequence[Looked]) -> str:
    """Return the page."""
    lines = [
        "# Forms that take less, in a small network",
        "",
        "- command: python -m benchmarks.language recipes --size tiny CORPUS",
        f"- machine: {'; '.join(sorted({found.machine for found in looked}))}",
        f"- corpus: {corpora(looked)}",
        "",
        (
            f"A GPT over bytes, {TINY.width} wide, {TINY.layers} layers, taught English in {TINY.english_steps} "
            f"steps and Python in {TINY.python_steps}. English lost in bits a byte where Python has so much of what "
            "fine-tuning gains, as trained, with four strengths for each form; chosen on one half of the English and "
            "read off on the other, both ways round. Blocks of 65 leave the network's width whole and take its layers "
            "of three and four widths in parts, blocks of 22 take all in parts; rank 16 is a quarter of the width."
        ),
        "",
        f"| form | {' | '.join(f'{gain:.0%}' for gain in GAINS)} | seeds |",
        f"|---{'|---' * len(GAINS)}|---|",
    ]
    for recipe in SMALL_RECIPES[1:]:
        networks = networks_of(looked, recipe.name, SMALL_RECIPES)
        if networks:
            cells = [_cell(looked, recipe.name, gain, networks) for gain in GAINS]
            seeds = ", ".join(map(str, seeds_of(looked, networks)))
            lines.append(f"| {recipe.name} | {' | '.join(cells)} | {seeds} |")
    return "\n".join(lines) + "\n"


def _cell(looked: Sequence[Looked], name: str, gain: float, networks: Sequence[str]) -> str:
    found = [lost(looked, network, name, gain, averaged=False) for network in networks]
    reached = [value for value in found if value is not None]
    return str(Mean.over(reached)) if len(reached) == len(networks) else "–"
