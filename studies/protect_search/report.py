"""The lines of the study, packed, and the page made of them."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anchorhold.whole_files import write_whole
from studies.pretrained.report import is_of_lesson, read
from studies.pretrained.texts import KEPT
from studies.pretrained.training import OWN_TEXT
from studies.protect_search.settings import AVERAGES, DEFAULT, TRIED, Run, Setting

__all__ = ["ROWS", "pack", "read", "text", "write"]

ROWS = Path("results/protect-search.jsonl.zst")
GOAL = 1.15
ANSWER = "- **Answer:**"
NUMBERS = "- **Numbers:**"
FINISH = "finish"
Line = Mapping[str, Any]
Judge = Literal["own text", "real text"]
JUDGES: tuple[Judge, ...] = ("own text", "real text")


def pack(rows: Sequence[Path], to: Path) -> Path:
    """Write the lines of several files into one packed file, the first of each run and of each device."""
    import zstandard  # noqa: PLC0415 (the machine that trains need not have it)

    found: dict[str, Line] = {}
    for path in rows:
        for line in read(path):
            key = line["run"] if "run" in line else f"{line['device']}:{line['dtype']}"
            found.setdefault(key, line)
    content = "".join(json.dumps(found[key], separators=(",", ":")) + "\n" for key in sorted(found)).encode()
    to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(to, zstandard.ZstdCompressor(level=19).compress(content))
    return to


@dataclass(frozen=True)
class End:
    """What a training with one setting and one average came to, by one judge.

    Args:
        setting: the exchange rate and the share of distillation.
        average: how much of what was learned is left; ``"finish"`` where half of what was lost was given back.
        chosen_by, new, gained, lost: of the test part but for the first, which is the objective on the validation part.
        validation_gain, validation_loss: of the validation part.
    """

    setting: Setting
    average: str
    chosen_by: float
    validation_gain: float
    validation_loss: float
    new: float
    gained: float
    lost: float

    @property
    def objective(self) -> float:
        """Return the new text's loss and the nats lost per old token."""
        return self.new + self.lost


def ends_of(lines: Sequence[Line], judge: Judge) -> list[End]:
    """Return all ends of one search."""
    found = []
    for line in lines:
        lesson = line["recipe"]["lesson"]
        for average, parts in line["ends"].items():
            (seen, seen_gain, seen_lost), (new, gained, lost) = (
                _read(parts[part], lesson, judge) for part in ("validation", "test")
            )
            setting = Setting(**line["setting"])
            found.append(End(setting, average, seen + seen_lost, seen_gain, seen_lost, new, gained, lost))
    return found


def _read(texts: Mapping[str, Sequence[float]], lesson: str, judge: Judge) -> tuple[float, float, float]:
    """Return the new text's loss, by how much it fell, and the nats lost per old token."""
    new, change, _ = texts[lesson]
    kinds = [OWN_TEXT] if judge == "own text" else [kind for kind in KEPT if not is_of_lesson(kind, lesson)]
    return new, -change, statistics.mean(texts[kind][1] for kind in kinds)


@dataclass(frozen=True)
class Verdict:
    """``protect()`` beside what a hand chose on validation text, read on test text.

    Args:
        ours: the end of ``protect()`` with no option, and half of what was lost given back.
        weighed: the average of that training with the least new loss + nats lost of own text, on validation text: what
            ``finish(new)`` looks for.
        chosen: the end that a hand chose.
        averaged: the one that a hand chose among averages of the training with no option.
        same_gain: the one that lost least on validation text among those that gained as much there as ours.
        least_new: the least loss of the new text in any end.
        settings: how many trainings there were.
    """

    ours: End
    weighed: End
    chosen: End
    averaged: End
    same_gain: End
    least_new: float
    settings: int

    @property
    def objective(self) -> float:
        """Return the objective's ratio."""
        return self.ours.objective / self.chosen.objective

    @property
    def by_weighing(self) -> float:
        """Return the objective's ratio where the average is weighed."""
        return self.weighed.objective / self.chosen.objective

    @property
    def cost(self) -> float | None:
        """Return the same with the least new loss taken off; ``None`` where nothing is paid at the hand's choice."""
        paid = self.chosen.objective - self.least_new
        return (self.ours.objective - self.least_new) / paid if paid > 0 else None


def verdict(lines: Sequence[Line], judge: Judge) -> Verdict | None:
    """Return the verdict of one search; ``None`` without a training with no option, or with nothing else."""
    ends = ends_of(lines, judge)
    ours = next((end for end in ends if end.setting == DEFAULT and end.average == FINISH), None)
    if ours is None or len(lines) < 2:
        return None
    averages = [end for end in ends if end.setting == DEFAULT and end.average != FINISH]
    # finish(new) goes by own text, whoever judges.
    own = {end.average: end.chosen_by for end in ends_of(lines, "own text") if end.setting == DEFAULT}
    as_much = [end for end in ends if end.validation_gain >= ours.validation_gain]
    return Verdict(
        ours,
        min(averages, key=lambda end: own[end.average]),
        min(ends, key=lambda end: end.chosen_by),
        min(averages, key=lambda end: end.chosen_by),
        min(as_much, key=lambda end: end.validation_loss),
        min(end.new for end in ends),
        len(lines),
    )


def searches(rows: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines of each search, the settings in their order."""
    found: dict[str, list[Line]] = {}
    for line in sorted((row for row in rows if "run" in row), key=_place):
        recipe = Run.of({"recipe": line["recipe"], "setting": line["setting"]}).recipe
        which = f"LoRA r {recipe.rank}" if recipe.weights == "lora" else "all weights"
        seed = f", seed {recipe.seed}" if recipe.seed else ""
        found.setdefault(f"{which} | {recipe.lesson.removeprefix('lesson-')}{seed}", []).append(line)
    return found


def _place(line: Line) -> tuple[Any, ...]:
    recipe = line["recipe"]
    setting = Setting(**line["setting"])
    return recipe["weights"], recipe["lesson"], recipe["seed"], TRIED.index(setting)


def write(page: Path, readme: Path, rows: Sequence[Line]) -> Path:
    """Write the page, and the answer into the study's README, and return the page's path."""
    write_whole(page, text(rows).encode())
    lines = readme.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        if line.startswith(ANSWER):
            lines[number] = answer(rows)
        elif line.startswith(NUMBERS):
            lines[number] = f"{NUMBERS} [results/{page.name}](../../results/{page.name})"
    write_whole(readme, "\n".join(lines).encode())
    return page


def _verdicts(rows: Sequence[Line], judge: Judge) -> dict[str, Verdict]:
    found = {name: verdict(lines, judge) for name, lines in searches(rows).items()}
    return {name: each for name, each in found.items() if each is not None}


def answer(rows: Sequence[Line]) -> str:
    """Return the answer in one line."""
    told = []
    for judge in JUDGES:
        verdicts = _verdicts(rows, judge).values()
        ratios, weighed = [each.objective for each in verdicts], [each.by_weighing for each in verdicts]
        if ratios:
            told.append(
                f"by {judge} {_range(ratios)} times the best of a hand's search with half of the loss given back, "
                f"{_within(ratios)}, and {_range(weighed)} times as `finish(new)` averages now, {_within(weighed)}"
            )
    worst = [each.objective for judge in JUDGES for each in _verdicts(rows, judge).values()]
    start = "Not known yet" if not worst else "Yes" if max(worst) <= GOAL else "Not as it was run"
    seen = " The latter rule was chosen after these rows were seen: other lessons have to confirm it." if told else ""
    return f"{ANSWER} {start}{': ' if told else ''}{'; '.join(told)}.{seen}"


def _range(ratios: Sequence[float]) -> str:
    least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == most else f"{least} to {most}"


def _within(ratios: Sequence[float]) -> str:
    return f"in {sum(ratio <= GOAL for ratio in ratios)} of {len(ratios)} settings within {GOAL:.2f}"


def text(rows: Sequence[Line]) -> str:
    """Return the page."""
    trained = [row for row in rows if "run" in row]
    devices = [row for row in rows if "device" in row]
    dates = ", ".join(sorted({row["date"] for row in trained}))
    machines = "; ".join(sorted({row["machine"] for row in trained}))
    minutes = sum(row["seconds"] for row in trained) / 60
    parts = [
        "# protect() with no option, beside the same recipe searched by hand",
        "",
        "- command: python -m studies.protect_search train --cache CACHE",
        f"- date: {dates}",
        f"- machine: {machines}; {len(trained)} trainings, {minutes:.0f} minutes summed over processes side by side",
        f"- rows: {ROWS}",
        "",
        (
            "SmolLM2-135M-Instruct is protected by `protect(model, tokenizer)`, trained on a lesson and averaged as "
            "`finish()` did when this was run: κ = 1, 1/8 of each step distils, and half of what was lost is given "
            f"back. By hand κ, that share and the average ({', '.join(f'{share:g}' for share in AVERAGES)}, or half "
            "given back) are chosen on validation text, and both are read on test text. One seed. The hand does not "
            "choose form, own text or learning rate. Losses are in nats a token."
        ),
        "",
        (
            "- **objective**: new loss + nats lost per old token, of `protect()` by that of the hand's choice. "
            f"The goal is {GOAL:.2f} or less."
        ),
        "- **cost**: the same with the least new loss of the search taken off. It is the stricter of the two.",
        (
            "- **lost, at the same gain**: what `protect()` loses, then what is lost at the setting that loses least "
            "among those that gain as much, chosen on validation text."
        ),
        "- **averaged by hand**: the objective's ratio where a hand chooses the average alone.",
        "",
        (
            "What is lost is the rise of the loss on own text that nothing has read, and the mean rise over real kept "
            "texts, some of which may gain. Each is a judge of its own, by which the hand chooses too."
        ),
        "",
    ]
    parts += [*_as_weighed(rows), ""]
    for judge in JUDGES:
        parts += [f"## Judged by {judge}", "", *_table(_verdicts(rows, judge)), ""]
    for name, lines in searches(rows).items():
        parts += [f"## {name.replace(' | ', ', ')}", "", *_of_search(lines), ""]
    if devices:
        parts += [*_of_devices(devices), ""]
    return "\n".join(parts).rstrip() + "\n"


def _as_weighed(rows: Sequence[Line]) -> Iterator[str]:
    """Yield the objective's ratio as it was run and as averages are weighed now."""
    yield "## As `finish(new)` averages now"
    yield ""
    yield (
        f"`finish(new)` takes the average at which new loss + κ·KL of the samples kept aside is least. Of the averages "
        f"{', '.join(f'{share:g}' for share in AVERAGES)} of each training with no option, that is here the one with "
        "the least new loss + nats lost per token of own text on validation text, as no row has that KL. `finish()` "
        "with nothing averages nothing, which is the average 1. The rule was chosen after these rows were seen: they "
        "say why, and are no test of it. Other lessons have to be."
    )
    yield ""
    yield "| trained | lesson | judged by | objective, half given back | objective, weighed | at the average |"
    yield f"|{'---|' * 6}"
    for judge in JUDGES:
        for name, found in _verdicts(rows, judge).items():
            cells = [judge, f"{found.objective:.3f}", f"{found.by_weighing:.3f}", found.weighed.average]
            yield f"| {name} | {' | '.join(cells)} |"


def _table(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    yield (
        "| trained | lesson | settings | protect(): gained / lost | by hand: gained / lost | the hand's choice | "
        "objective | cost | lost, at the same gain | averaged by hand |"
    )
    yield f"|{'---|' * 10}"
    for name, found in verdicts.items():
        ours, chosen = found.ours, found.chosen
        cells = [
            str(found.settings),
            f"{ours.gained:.3f} / {ours.lost:+.3f}",
            f"{chosen.gained:.3f} / {chosen.lost:+.3f}",
            _setting(chosen),
            f"{found.objective:.3f}",
            "–" if found.cost is None else f"{found.cost:.3f}",
            f"{ours.lost:+.3f}, {found.same_gain.lost:+.3f} ({_setting(found.same_gain)})",
            f"{ours.objective / found.averaged.objective:.3f} (at {found.averaged.average})",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _setting(end: End) -> str:
    average = "half given back" if end.average == FINISH else f"average {end.average}"
    return f"κ {end.setting.exchange_rate:g}, share {end.setting.share:g}, {average}"


def _of_search(lines: Sequence[Line]) -> Iterator[str]:
    """Yield what every setting came to, without and with an average."""
    one = lines[0]
    recipe = one["recipe"]
    yield (
        f"{one['steps']} steps of {recipe['batch']} rows, learning rate {recipe['rate']:g}, form {one['form']}. "
        f"`protect()` took {one['protecting']:.0f} s, with own text there and other processes on the machine."
    )
    yield ""
    yield (
        "| κ | share | gained | own text lost | real text lost | objective, own / real | half given back: left | "
        "gained | own text lost | real text lost | objective, own / real |"
    )
    yield f"|{'---|' * 11}"
    ends = {judge: {(end.setting, end.average): end for end in ends_of(lines, judge)} for judge in JUDGES}
    for line in lines:
        setting = Setting(**line["setting"])
        cells = [f"{setting.exchange_rate:g}", f"{setting.share:g}"]
        for average in ("1.0", FINISH):
            own, real = (ends[judge][setting, average] for judge in JUDGES)
            cells += [f"{line['finish']['share']:.2f}"] if average == FINISH else []
            cells += [f"{own.gained:.3f}", f"{own.lost:+.3f}", f"{real.lost:+.3f}"]
            cells += [f"{own.objective:.3f} / {real.objective:.3f}"]
        yield f"| {' | '.join(cells)} |"


def _of_devices(devices: Sequence[Line]) -> Iterator[str]:
    """Yield how `anchorhold forgetting` agrees between devices."""
    ends = {(row["device"], row["dtype"]): row for row in devices}
    there = ends.get(("cpu", "float32"))
    yield "## `anchorhold forgetting` on CUDA"
    yield ""
    yield (
        "The same two folders, before and after the training of all weights with no option and no average, read by "
        "the command on each device. The difference is the largest one from the CPU's number over all rows."
    )
    yield ""
    yield "| device | type | seconds | KL(old‖new), kept | loss after, kept | gained, new | difference, nats a token |"
    yield "|---|---|---|---|---|---|---|"
    for (_, dtype), row in sorted(ends.items()):
        kept = [each for each in row["rows"] if each["part"] == "text"][-1]
        (new,) = [each for each in row["rows"] if each["part"] == "new"][-1:]
        gained = -new["change"]["value"]
        difference = "–" if there is None or row is there else f"{largest_difference(row, there):.1e}"
        cells = [f"{row['seconds']:.0f}", _told(kept["kl"]), _told(kept["loss_after"]), f"{gained:.4f}", difference]
        yield f"| {row['machine']} | {dtype} | {' | '.join(cells)} |"


def _told(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.4f} ± {estimate['error']:.4f}"


def largest_difference(one: Line, other: Line) -> float:
    """Return the largest difference of two reports' values, in nats a token."""
    assert [(row["part"], row["kind"]) for row in one["rows"]] == [(row["part"], row["kind"]) for row in other["rows"]]
    names = ("kl", "loss_before", "loss_after", "change")
    found: float = max(
        abs(mine[name]["value"] - theirs[name]["value"])
        for mine, theirs in zip(one["rows"], other["rows"], strict=True)
        for name in names
        if mine[name] is not None
    )
    return found
