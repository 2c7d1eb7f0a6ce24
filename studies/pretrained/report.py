"""The rows of the study, packed, and the page made of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorhold.whole_files import write_whole
from studies.pretrained.models import MODELS
from studies.pretrained.recipes import GUARDS, REGIMES, Recipe, screening
from studies.pretrained.texts import KEPT, LESSONS
from studies.pretrained.training import SHARES

ROWS = Path("results/pretrained/rows.jsonl.zst")
LOST = 0.01
"""Nats a token: a loss that is less than this, or than three standard errors, is not counted as one."""
ERRORS = 3.0
OPTIMAL = 20
"""Tokens a parameter of compute-optimal training (Hoffmann et al. 2022, arXiv 2203.15556)."""
Line = Mapping[str, Any]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, packed or not; what a killed process has left of a line is left out."""
    content = path.read_bytes()
    if path.suffix == ".zst":
        import zstandard  # noqa: PLC0415 (the machine that runs recipes need not have it)

        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    found = []
    for line in content.decode().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: left out what is no whole line: {line[:60]!r}", flush=True)
    return found


def pack(rows: Sequence[Path], to: Path) -> Path:
    """Write the rows of finished runs of several files into one packed file, each run once."""
    import zstandard  # noqa: PLC0415 (likewise)

    finished: dict[str, list[dict[str, Any]]] = {}
    for path in rows:
        lines = read(path)
        ended = {line["run"] for line in lines if line.get("end")} - set(finished)
        for run in ended:
            # A run that was killed and run again has lines of both; the last evaluation of each place counts.
            places = {_place(line): line for line in lines if line["run"] == run}
            finished[run] = list(places.values())
    lines = [line for run in sorted(finished) for line in finished[run]]
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(to, zstandard.ZstdCompressor(level=19).compress(content))
    return to


def _place(line: Line) -> tuple[Any, ...]:
    return (line.get("step"), line.get("part"), line.get("share"), line.get("end"))


def at_end(rows: Sequence[Line], part: str = "test", share: float = 1.0) -> dict[str, Line]:
    """Return the evaluations at the end of finished runs, by the run's name."""
    finished = {line["run"] for line in rows if line.get("end")}
    return {
        line["run"]: line
        for line in rows
        if line["run"] in finished
        and (line.get("part"), line.get("share")) == (part, share)
        and line["step"] == line["steps"]
    }


def is_lost(told: Line) -> bool:
    """Whether a kept text's loss has grown by more than chance and by enough to matter."""
    return bool(told["change"] > max(LOST, ERRORS * told["change_error"]))


def write(page: Path, rows: Sequence[Line]) -> Path:
    """Write the page and return its path."""
    write_whole(page, text(rows).encode())
    return page


def text(rows: Sequence[Line]) -> str:
    """Return the page."""
    ends = at_end(rows)
    dates = ", ".join(sorted({line["date"] for line in ends.values()}))
    machines = "; ".join(sorted({line["machine"] for line in ends.values()}))
    minutes = sum(line["seconds"] for line in rows if line.get("end")) / 60
    parts = [
        "# Fine-tuning pretrained models: what is learned and what is lost",
        "",
        (
            "Stage 1 of the study: which pairs of a model and a lesson lose real kept text under plain fine-tuning, "
            "and first frontiers. [The study's folder](../studies/pretrained/README.md) says how it is made."
        ),
        "",
        "- command: python -m studies.pretrained train MODEL --plans screening rates own-text guards",
        f"- date: {dates}",
        f"- machine: {machines}; {len(ends)} runs, {minutes:.0f} minutes summed over processes side by side",
        f"- rows: {ROWS}, a line for each evaluation, with the recipe, the digests and, at a run's end, each document",
        "",
        (
            "All numbers are on test text. A change is the loss after minus before in nats a token, below 0 where it "
            "fell, ± the standard error over documents, each its own control; there is one seed. **Bold**: a kept text "
            f"that lost more than {LOST} nats a token and more than {ERRORS:.0f} standard errors."
        ),
        "",
        "## The models",
        "",
        *_models(ends),
        "",
        "## Screening: plain fine-tuning in three regimes",
        "",
        *_screening(rows, ends),
        "",
        "## Frontiers",
        "",
        *_frontiers(rows),
    ]
    return "\n".join(parts) + "\n"


def _models(ends: Mapping[str, Line]) -> list[str]:
    lines = [
        f"| model | weights | tokens a parameter | beside {OPTIMAL} | {' | '.join(KEPT)} |",
        f"|---|---|---|---|{'---|' * len(KEPT)}",
    ]
    for name, model in MODELS.items():
        found = next((line for line in ends.values() if line["recipe"]["model"] == name), None)
        if found is None:
            continue
        before = [found["texts"][kind]["nats"] - found["texts"][kind]["change"] for kind in KEPT]
        cells = [f"{model.parameters / 1e6:.0f}M", f"{model.tokens_per_parameter:,.0f}"]
        cells.append(f"{model.tokens_per_parameter / OPTIMAL:,.0f} ×")
        lines.append(f"| {name} | {' | '.join([*cells, *(f'{each:.3f}' for each in before)])} |")
    return [*lines, "", "Kept texts: the model's loss before any training, in nats a token."]


def _screening(rows: Sequence[Line], ends: Mapping[str, Line]) -> list[str]:
    lines: list[str] = []
    for name in MODELS:
        found = [recipe for recipe in screening(name) if recipe.name in ends]
        if not found:
            continue
        lines += [
            f"### {name}",
            "",
            f"| lesson | regime | the lesson | {' | '.join(KEPT)} | mean | lost kinds | half way |",
            f"|---|---|---|{'---|' * len(KEPT)}---|---|---|",
        ]
        for lesson in LESSONS:
            for regime in REGIMES.values():
                recipe = regime.recipe(name, lesson)
                if recipe.name in ends:
                    lines.append(_row(rows, ends[recipe.name], f"{lesson.removeprefix('lesson-')} | {regime.name}"))
        lines.append("")
    return [
        *lines,
        (
            "A kept text of what is learned (German, or GSM8K's questions) is left out of the mean and of the count. "
            "“Half way”: the largest change of a kept text's validation loss after half of the steps, which says how "
            "fast it is lost."
        ),
    ]


def _row(rows: Sequence[Line], line: Line, what: str) -> str:
    told = line["texts"]
    cells = [_change(told[line["recipe"]["lesson"]], bold=False), *(_change(told[kind]) for kind in KEPT)]
    kinds = [kind for kind in KEPT if not is_of_lesson(kind, line["recipe"]["lesson"])]
    mean, error = mean_loss(line, kinds)
    lost = [kind for kind in kinds if is_lost(told[kind])]
    half = [
        each
        for each in rows
        if each["run"] == line["run"] and "texts" in each and each["step"] == round(each["steps"] / 2)
    ]
    worst = max((half[-1]["texts"][kind]["change"], kind) for kind in kinds) if half else None
    early = f"{worst[1]} {worst[0]:+.3f}" if worst else ""
    return f"| {what} | {' | '.join(cells)} | {mean:+.3f} ± {error:.3f} | {len(lost)} of {len(kinds)} | {early} |"


def _change(told: Line, *, bold: bool = True) -> str:
    said = f"{told['change']:+.3f} ± {told['change_error']:.3f}"
    return f"**{said}**" if bold and is_lost(told) else said


def mean_loss(line: Line, kinds: Sequence[str]) -> tuple[float, float]:
    """Return the mean change of some kept texts in nats a token, and its standard error: their documents are others."""
    found = [line["texts"][kind] for kind in kinds]
    error = sum(each["change_error"] ** 2 for each in found) ** 0.5 / len(found)
    return sum(each["change"] for each in found) / len(found), error


@dataclass(frozen=True)
class Point:
    """One end of a run, or an average of it with the model before, on one part of the text."""

    recipe: Recipe
    share: float
    gain: float
    loss: float
    error: float


@dataclass(frozen=True)
class Way:
    """A way of keeping, with all its tried settings.

    Args:
        name: what it is called.
        takes: whether a recipe is one of its settings.
        is_averaged: whether its ends are averaged with the model before, as far as the gain allows.
    """

    name: str
    takes: Callable[[Recipe], bool]
    is_averaged: bool = False


def _guarded(weights: str, form: str) -> Callable[[Recipe], bool]:
    return lambda recipe: (recipe.weights, recipe.keep, recipe.seed) == (weights, form, 0)


WAYS = (
    Way("LoRA r 16, by its rate", lambda recipe: recipe.weights == "lora" and not recipe.strength),
    Way("all weights, by their rate", lambda recipe: recipe.weights == "all" and not recipe.strength),
    Way("all weights, averaged", lambda recipe: recipe.weights == "all" and not recipe.strength, is_averaged=True),
    Way("KL on own text", lambda recipe: recipe.keep == "own text"),
    Way("KL on own text, averaged", lambda recipe: recipe.keep == "own text", is_averaged=True),
    *(
        Way(f"{which}, {form} guard{', averaged' if averaged else ''}", _guarded(weights, form), averaged)
        for which, weights in (("LoRA r 16", "lora"), ("all weights", "all"))
        for form in GUARDS
        for averaged in (False, True)
    ),
)


def points(rows: Sequence[Line], model: str, lesson: str, part: str) -> list[Point]:
    """Return all ends and averages of a pair on one part of the text."""
    kinds = [kind for kind in KEPT if not is_of_lesson(kind, lesson)]
    found = []
    for share in (*SHARES, 1.0):
        for line in at_end(rows, part, share).values():
            recipe = Recipe.of(line["recipe"])
            if (recipe.model, recipe.lesson) == (model, lesson):
                loss, error = mean_loss(line, kinds)
                found.append(Point(recipe, share, -line["texts"][lesson]["change"], loss, error))
    return found


def at_gain(given: Sequence[Point], gain: float) -> Point | None:
    """Return where the averages of one run reach a gain, between two shares on a line; None if none does."""
    curve = sorted(given, key=lambda point: point.share)
    before = Point(curve[0].recipe, 0.0, 0.0, 0.0, 0.0)
    for point in curve:
        if point.gain >= gain:
            part = (gain - before.gain) / (point.gain - before.gain)
            share, loss, error = (
                then + part * (now - then)
                for then, now in (
                    (before.share, point.share),
                    (before.loss, point.loss),
                    (before.error, point.error),
                )
            )
            return Point(point.recipe, share, gain, loss, error)
        before = point
    return None


def chosen(given: Sequence[Point], way: Way, gain: float) -> Point | None:
    """Return the setting of a way that loses least of those that reach a gain."""
    mine = [point for point in given if way.takes(point.recipe)]
    if way.is_averaged:
        runs = {point.recipe: [each for each in mine if each.recipe == point.recipe] for point in mine}
        reached = [at_gain(some, gain) for some in runs.values() if len(some) > 1]
    else:
        reached = [point for point in mine if point.share == 1.0 and point.gain >= gain]
    return min((point for point in reached if point is not None), key=lambda point: point.loss, default=None)


def _at_gains(rows: Sequence[Line], model: str, lesson: str) -> list[str]:
    """Return a table of what each way loses where it has gained as much as the others."""
    validation, test = (points(rows, model, lesson, part) for part in ("validation", "test"))
    hard = REGIMES["hard"].recipe(model, lesson)
    whole = next((point.gain for point in validation if point.recipe == hard and point.share == 1.0), None)
    if whole is None:
        return []
    gains = (0.5, 0.75, 0.9)
    header = " | ".join(f"loss at {gain:.0%} of the gain" for gain in gains)
    lines = [
        f"| way | tried | {header} | chosen for {gains[-1]:.0%} |",
        f"|---|---|{'---|' * len(gains)}---|",
    ]
    for way in WAYS:
        tried = len({point.recipe for point in validation if way.takes(point.recipe)})
        cells, last = [], ""
        for gain in gains:
            best = chosen(validation, way, gain * whole)
            if best is None:
                cells.append("not reached")
                last = ""
                continue
            told = _on_test(test, best)
            cells.append(f"{told.loss:+.4f} ± {told.error:.4f}")
            last = method_of(best.recipe) + (f", {best.share:.2f} of the change" if way.is_averaged else "")
        if tried:
            lines.append(f"| {way.name} | {tried} | {' | '.join(cells)} | {last} |")
    return lines


def _on_test(test: Sequence[Point], best: Point) -> Point:
    """Return what the test text says of a setting that was chosen on validation text: between two shares on a line."""
    curve = sorted((point for point in test if point.recipe == best.recipe), key=lambda point: point.share)
    before = Point(best.recipe, 0.0, 0.0, 0.0, 0.0)
    for point in curve:
        if point.share >= best.share - 1e-9:
            part = (best.share - before.share) / (point.share - before.share)
            loss, error = (
                before.loss + part * (point.loss - before.loss),
                before.error + part * (point.error - before.error),
            )
            return Point(best.recipe, best.share, before.gain + part * (point.gain - before.gain), loss, error)
        before = point
    raise ValueError(f"{best.recipe.name} was not evaluated on test text; expected a finished run.")


def _frontiers(rows: Sequence[Line]) -> list[str]:
    """Return tables for each pair that more was tried on than screening."""
    ends = {share: at_end(rows, share=share) for share in (*SHARES, 1.0)}
    screened = {recipe.name for name in MODELS for recipe in screening(name)}
    pairs = {
        (line["recipe"]["model"], line["recipe"]["lesson"]) for run, line in ends[1.0].items() if run not in screened
    }
    lines: list[str] = []
    for model, lesson in sorted(pairs):
        kinds = [kind for kind in KEPT if not is_of_lesson(kind, lesson)]
        lines += [
            f"### {model}, {lesson.removeprefix('lesson-')}",
            "",
            (
                f"Loss: the mean change of {', '.join(kinds)}. Of the hard regime's gain, how much each way reaches "
                "and what it loses there. The setting is chosen on validation text and read off on test text. An "
                "average's share is as large as the gain needs."
            ),
            "",
            *_at_gains(rows, model, lesson),
            "",
            "All ends and averages, on test text:",
            "",
            "| method | share of the change | gain | bits a byte gained | loss | worst kind |",
            "|---|---|---|---|---|---|",
        ]
        found = [
            (method_of(Recipe.of(line["recipe"])), share, line)
            for share, some in ends.items()
            for line in some.values()
            if (line["recipe"]["model"], line["recipe"]["lesson"]) == (model, lesson)
        ]
        for method, share, line in sorted(found, key=lambda each: (each[0], each[1])):
            new = line["texts"][lesson]
            loss, error = mean_loss(line, kinds)
            worst, kind = max((line["texts"][kind]["change"], kind) for kind in kinds)
            cells = [f"{-new['change']:.3f} ± {new['change_error']:.3f}", f"{-new['bits_change']:.3f}"]
            cells += [f"{loss:+.4f} ± {error:.4f}", f"{kind} {worst:+.3f}"]
            lines.append(f"| {method} | {share:g} | {' | '.join(cells)} |")
        lines.append("")
    return lines or ["None yet."]


def is_of_lesson(kind: str, lesson: str) -> bool:
    """Whether a kept text is of what is learned: the same language, or the same questions."""
    return (kind, lesson) in {("german", "lesson-german"), ("math", "lesson-gsm8k")}


def method_of(recipe: Recipe) -> str:
    """Return a recipe in words."""
    which = f"LoRA r {recipe.rank}" if recipe.weights == "lora" else "all weights"
    said = f"{which}, {recipe.rate:g}, {recipe.epochs} epochs"
    if recipe.keep == "own text":
        said += f", KL on own text × {recipe.strength:g}"
    elif recipe.keep in GUARDS:
        said += f", {recipe.keep} guard, exchange rate {recipe.strength:g}"
    return said + (f", seed {recipe.seed}" if recipe.seed else "")
