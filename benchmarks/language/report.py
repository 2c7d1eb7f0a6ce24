"""The study's tables, as Markdown and as data."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import surroundings
from benchmarks.language.frontier import Mean, Point, lost_at_share, points
from benchmarks.language.python import FINE_TUNE, Learned
from benchmarks.language.settings import WAYS, Settings, methods

TITLE = "English, then Python: what is lost and what is gained"
COMMAND = "python -m benchmarks.language run english-python.npz"
SHARES = (0.5, 0.75, 0.9)
NAMES = {"full": "All weights trained", "lora": "A LoRA adapter trained"}


def write(folder: Path, learned: Sequence[Learned], settings: Settings, corpus: str, parameters: int) -> None:
    """Write ``language.md`` and ``language.json``."""
    where = {**surroundings("gpu-language"), "command": COMMAND, "corpus": f"sha256 {corpus}"}
    where["versions"] = ", ".join(where["versions"].split(", ")[:2])  # of the packages that took part
    found = points(learned)
    document = {**where, "title": TITLE, "settings": asdict(settings), "points": [asdict(point) for point in found]}
    (folder / "language.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "language.md").write_text(page(learned, settings, parameters, where), encoding="utf-8")


def page(learned: Sequence[Learned], settings: Settings, parameters: int, where: dict[str, str]) -> str:
    """Return the page of what was learned by networks of so many parameters."""
    found = points(learned)
    lines = [f"# {TITLE}", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    lines += [f"- {note}" for note in _notes(learned, settings, parameters)]
    for way in WAYS:
        here = [point for point in found if point.way == way]
        if here:
            lines += ["", f"## {NAMES[way]}", "", *_table(here), "", *_at_equal_gain(learned, way)]
    return "\n".join([*lines, ""])


def _notes(learned: Sequence[Learned], settings: Settings, parameters: int) -> list[str]:
    before = {
        language: Mean.over(list({found.lesson.seed: getattr(found, language)[0] for found in learned}.values()))
        for language in ("english", "python")
    }
    rates = ", ".join(f"{rate:g} ({way})" for way, rate in settings.python_rate.items())
    seeds = ", ".join(str(seed) for seed in sorted({found.lesson.seed for found in learned}))
    return [
        (
            f"A GPT over bytes, {settings.layers} layers of width {settings.width}, {parameters / 1e6:.1f} million "
            f"weights, context {settings.context}; English {settings.english_steps} steps of {settings.english_batch} "
            f"samples, then Python {settings.python_steps} of {settings.python_batch} at learning rate {rates}; LoRA "
            f"of rank {settings.rank}."
        ),
        f"Before Python: English {before['english']}, Python {before['python']} bits a byte, over seeds {seeds}.",
        (
            "Losses are bits a byte on text kept apart; ± is the standard error over seeds. s is the strength relative "
            "to the measure's mean importance, c = s / mean Ω; without a guard, the share of the steps (shorter), of "
            "the learning rate (slower), of the fine-tuned weights in the average with those before (averaged), or of "
            "English text in each batch (replay)."
        ),
        f"A lesson took {statistics.median(found.seconds for found in learned):.1f} s (median), with its evaluations.",
    ]


def _table(here: Sequence[Point]) -> list[str]:
    lines = ["| method | s | English lost | Python gained | of fine-tuning's | seeds |", "|---|---|---|---|---|---|"]
    for name in (FINE_TUNE, *methods(here[0].way)):
        for point in (point for point in here if point.measure == name):
            strength = "" if name == FINE_TUNE else f"{point.strength:g}"
            share = "–" if point.share is None else point.share
            lines.append(f"| {name} | {strength} | {point.lost} | {point.gained} | {share} | {len(point.seeds)} |")
    return lines


def _at_equal_gain(learned: Sequence[Learned], way: str) -> list[str]:
    """Return the English lost where each method has gained a share of what fine-tuning gains."""
    run = {found.lesson.measure for found in learned if found.lesson.way == way}
    names = [name for name in methods(way) if name in run]
    lost = {share: {name: lost_at_share(learned, way, name, share) for name in names} for share in SHARES}
    rows = [(f"{share:.0%}", [_cell(list(found[name].values())) for name in names]) for share, found in lost.items()]
    free = [point.lost for point in points(learned) if (point.way, point.measure) == (way, FINE_TUNE)]
    rows += [("fine-tuning: 100%", [str(each)] * len(names)) for each in free]
    lines = [
        "English lost at equal gain, read off each seed's straight lines between neighbouring points:",
        *_by_share(names, rows),
    ]
    others = [name for name in names if name != "L2"]
    if "L2" in names and others:
        less = [
            (f"{share:.0%}", [_cell(_less(found["L2"], found[name])) for name in others])
            for share, found in lost.items()
        ]
        lines += ["", "Lost with L2 less lost with the others there, seed by seed (above 0: they keep more):"]
        lines += _by_share(others, less)
    return lines


def _by_share(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    head = f"| Python gained, of fine-tuning's | {' | '.join(names)} |"
    return ["", head, "|---|" + "---|" * len(names), *(f"| {share} | {' | '.join(cells)} |" for share, cells in rows)]


def _less(a: dict[int, float], b: dict[int, float]) -> list[float]:
    return [a[seed] - b[seed] for seed in a if seed in b]


def _cell(values: Sequence[float]) -> str:
    return str(Mean.over(values)) if values else "–"
