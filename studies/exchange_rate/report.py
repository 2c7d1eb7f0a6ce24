"""The rows of the study, packed, and the page made of them."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorhold.whole_files import write_whole
from benchmarks.language.frontier import Mean
from studies.exchange_rate.outcomes import Setting, Tried
from studies.exchange_rate.rates import GOALS, at_each, judges, meets, objectives_at, why
from studies.exchange_rate.settings import FORMS, GRID, STUDIED, Run
from studies.exchange_rate.training import cost
from studies.pretrained.recipes import GUARDS, Recipe
from studies.pretrained.report import at_end, is_of_lesson, mean_loss, read
from studies.pretrained.texts import KEPT
from studies.pretrained.training import OWN_TEXT

ROWS = Path("results/exchange-rate.jsonl.zst")
PRETRAINED = Path("results/pretrained/rows.jsonl.zst")
ANSWER, NUMBERS = "- **Answer:**", "- **Numbers:**"
"""How two lines of the README begin."""
Line = Mapping[str, Any]


def pack(rows: Sequence[Path], to: Path) -> Path:
    """Write the rows of several files into one packed file, the last of each run and network."""
    import zstandard  # noqa: PLC0415 (the machine that trains need not have it)

    found = {(line["run"], line["network"]): line for path in rows for line in read(path)}
    content = "".join(json.dumps(found[key], separators=(",", ":")) + "\n" for key in sorted(found)).encode()
    to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(to, zstandard.ZstdCompressor(level=19).compress(content))
    return to


def small_settings(rows: Sequence[Line]) -> list[Setting]:
    """Return the settings of the networks that were trained here."""
    runs = [(Run.of(dict(line["of"])), line) for line in rows]
    names = dict.fromkeys((run.base.pair, run.base.size, run.way, run.form) for run, _ in runs if run.form != "none")
    found = []
    for pair, size, way, form in sorted(names, key=lambda name: (name[0], name[1], name[2], FORMS.index(name[3]))):
        of_network = [(run, line) for run, line in runs if (run.base.pair, run.base.size, run.way) == (pair, size, way)]
        seeds = sorted({run.base.seed for run, _ in of_network if run.form == form})
        ladders = [
            tuple(_tried(line) for run, line in of_network if (run.form, run.base.seed) == (form, seed))
            for seed in seeds
        ]
        least = [min(line["after"]["new"] for run, line in of_network if run.base.seed == seed) for seed in seeds]
        which = "LoRA" if way == "lora" else "all weights"
        found.append(Setting(f"GPT {size}, {pair} | {which} | {form}", tuple(map(_by_kappa, ladders)), tuple(least)))
    return found


def _tried(line: Line) -> Tried:
    before, after = line["before"], line["after"]
    lost = after["old"] - before["old"]
    found = Tried(line["of"]["kappa"], after["new"], before["new"] - after["new"], lost, line["predicted"], after["kl"])
    assert abs(found.cost - cost(line)) < 1e-9
    return found


def _by_kappa(tried: Sequence[Tried]) -> tuple[Tried, ...]:
    return tuple(sorted(tried, key=lambda each: each.kappa))


def pretrained_settings(rows: Sequence[Line], *, real: bool) -> list[Setting]:
    """Return the settings of pretrained models.

    Args:
        rows: those of the study of pretrained models.
        real: whether the loss is the mean over real kept texts, or else that on own text.
    """
    ends = [(Recipe.of(line["recipe"]), line) for line in at_end(rows).values()]
    guarded = [(recipe, line) for recipe, line in ends if recipe.keep in GUARDS]
    regimes = dict.fromkeys(_regime(recipe) for recipe, _ in guarded)
    found = []
    for regime in sorted(regimes):
        for form in GUARDS:
            mine = [(r, line) for r, line in guarded if _regime(r) == regime and r.keep == form]
            seeds = sorted({r.seed for r, _ in mine})
            ladders = tuple(
                _by_kappa([_of_pretrained(r, line, real=real) for r, line in mine if r.seed == seed]) for seed in seeds
            )
            same = [(r, line["texts"][r.lesson]["nats"]) for r, line in ends if _regime(r) == regime]
            least = tuple(min(nats for r, nats in same if r.seed == seed) for seed in seeds)
            model, lesson, weights, rate, epochs, rank = regime
            which = f"LoRA r {rank}" if weights == "lora" else "all weights"
            name = f"{model}, {lesson.removeprefix('lesson-')}, {rate:g}, {epochs} epochs | {which} | {form}"
            if mine:
                found.append(Setting(name, ladders, least))
    return found


def _regime(recipe: Recipe) -> tuple[str, str, str, float, int, int]:
    return recipe.model, recipe.lesson, recipe.weights, recipe.rate, recipe.epochs, recipe.rank


def _of_pretrained(recipe: Recipe, line: Line, *, real: bool) -> Tried:
    new, own = line["texts"][recipe.lesson], line["texts"][OWN_TEXT]
    kinds = [kind for kind in KEPT if not is_of_lesson(kind, recipe.lesson)]
    lost = mean_loss(line, kinds)[0] if real else own["change"]
    return Tried(recipe.strength, new["nats"], -new["change"], lost, line["guard"]["predicted"], own["change"])


def write(page: Path, readme: Path, rows: Sequence[Line], pretrained: Sequence[Line]) -> Path:
    """Write the page, and the answer into the study's README, and return the page's path."""
    write_whole(page, text(rows, pretrained).encode())
    lines = readme.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        if line.startswith(ANSWER):
            lines[number] = answer(rows, pretrained)
        elif line.startswith(NUMBERS):
            lines[number] = f"{NUMBERS} [results/{page.name}](../../results/{page.name})"
    write_whole(readme, "\n".join(lines).encode())
    return page


def answer(rows: Sequence[Line], pretrained: Sequence[Line]) -> str:
    """Return the answer in one line."""
    small, own, _ = (settings for _, settings in _parts(rows, pretrained))
    one = objectives_at(small, 1.0)
    others = {kappa: objectives_at(small, kappa) for kappa in GRID if kappa > 1.0}
    verdict = "Yes" if meets(one) else "In the median, not in the worst" if _is_median_met(one) else "No"
    said = [
        f"{verdict}. At κ = 1 the objective is {_beside(one)} times the best of a grid on {len(one)} settings of GPTs"
    ]
    said += [f"at κ = {kappa:g} {_beside(found)}" for kappa, found in others.items() if meets(found)]
    if found := _objectives(own):
        said.append(f"on SmolLM2 at most {max(found):.2f} at κ = 1 in {len(found)} settings")
    return f"{ANSWER} {'; '.join(said)}."


def _beside(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.3f} (at worst {max(found):.3f})"


def _is_median_met(found: Sequence[float]) -> bool:
    return statistics.median(found) <= GOALS[0]


def _objectives(settings: Sequence[Setting]) -> list[float]:
    return [value for setting in settings if (value := setting.objective) is not None]


def _excesses(settings: Sequence[Setting]) -> list[float]:
    return [value for setting in settings if (value := setting.excess) is not None]


def _parts(rows: Sequence[Line], pretrained: Sequence[Line]) -> list[tuple[str, list[Setting]]]:
    return [
        ("GPTs trained here", small_settings(rows)),
        ("SmolLM2, own text lost", pretrained_settings(pretrained, real=False)),
        ("SmolLM2, real text lost", pretrained_settings(pretrained, real=True)),
    ]


def text(rows: Sequence[Line], pretrained: Sequence[Line]) -> str:
    """Return the page."""
    parts_of_all = _parts(rows, pretrained)
    small, own, real = (settings for _, settings in parts_of_all)
    machines = "; ".join(sorted({line["machine"] for line in rows}))
    dates = ", ".join(sorted({line["date"] for line in rows}))
    minutes = sum(line["seconds"] + line["measuring"] for line in rows) / 60
    parts = [
        "# An exchange rate of 1, beside the best strength of a grid",
        "",
        "- command: python -m studies.exchange_rate train CORPUS",
        "- command: python -m studies.pretrained train SmolLM2-135M-Instruct --plans guards",
        f"- date: {dates}",
        f"- machine: {machines}; {len(rows)} runs, {minutes:.0f} minutes summed over processes side by side",
        f"- rows: {ROWS}, and those of guards in {PRETRAINED}",
        "",
        (
            "c = κ/(2T) makes the penalty κ × the nats lost per old token, by the Fisher information. κ = 1 is "
            "compared with the best exchange rate that was tried, found by searching on the same text that is "
            "reported: the search has an advantage. Losses are in nats a token (a byte for the GPTs), on text that "
            "was kept apart."
        ),
        "",
        *_what_was_tried(small, own),
        "",
        "- **objective**: (new loss + nats lost per old token) at κ = 1, by the least of it in the ladder.",
        "- **nats more**: how much larger the objective is.",
        (
            "- **cost**: the same with the least new loss of any run taken off: what the old text loses and what the "
            "new text lacks. It is the stricter of the two; “–” where nothing is paid at the best, since the old "
            "text gains."
        ),
        (
            "- **at the same gain**: the nats lost at κ = 1, by those that the two nearest other strengths lose on a "
            "line between them at the same gain. Below 1, κ = 1 lies better than its neighbours' line."
        ),
        "- **at the same loss**: the gain that this line has where as much is lost, by the gain at κ = 1.",
        "- **predicted / KL**: what the importance says of the KL per old token at κ = 1, by the KL that was measured.",
        "",
        "Each value is the mean over seeds, each with its own best, ± the standard error.",
        "",
        "## Verdict",
        "",
        *_verdict(parts_of_all),
        "",
        "## Each exchange rate",
        "",
        *at_each(small, own),
        "",
        "## Why larger ones are often better",
        "",
        *why(small),
        "",
        "## Other judges",
        "",
        *judges(small),
        "",
        "## GPTs trained here",
        "",
        *_table(small),
        "",
        *_ladders(small),
    ]
    if own:
        parts += [
            "## Pretrained models",
            "",
            (
                "The guard measured the model's own text. What is lost is first that of own text kept apart, whose "
                "loss rises by KL(old‖new), then the mean over real kept texts, some of which may gain."
            ),
            "",
            "### Own text lost",
            "",
            *_table(own),
            "",
            *_ladders(own),
            "### Real text lost",
            "",
            *_table(real),
            "",
            *_ladders(real),
        ]
    return "\n".join(parts).rstrip() + "\n"


def _what_was_tried(small: Sequence[Setting], own: Sequence[Setting]) -> Iterator[str]:
    """Yield how much was tried of what was planned."""
    planned = {f"GPT {size}, {pair}": seeds for pair, size, seeds in STUDIED}
    reached = {
        name: sorted({len(each.ladders) for each in small if each.name.startswith(f"{name} |")}) for name in planned
    }
    seeds = "; ".join(
        f"{name}: {' to '.join(map(str, some))} of {planned[name]}" for name, some in reached.items() if some
    )
    ladders = [ladder for setting in small for ladder in setting.ladders]
    short = [len(ladder) for ladder in ladders if len(ladder) < len(GRID)]
    yield (
        f"- **GPTs**: {len(GRID)} exchange rates from {GRID[0]:g} to {GRID[-1]:g}, and further ones where the best "
        f"lies at an edge; {len(short)} of {len(ladders)} ladders have fewer{_list(short)}. "
        f"Seeds of those planned: {seeds}."
    )
    if own:
        yield _tried_of_pretrained(own)


def _tried_of_pretrained(own: Sequence[Setting]) -> str:
    """Return how much was tried on the pretrained model."""
    compared = [setting for setting in own if setting.compared]
    counts = [len(ladder) for setting in compared for ladder, _ in setting.compared]
    edges = sum(
        any(
            each.best in {min(tried), max(tried)}
            for each, (ladder, _) in zip(setting.ratios, setting.compared, strict=True)
            for tried in [[one.kappa for one in ladder]]
        )
        for setting in compared
    )
    alone = len(own) - len(compared)
    said = [
        f"- **SmolLM2**: {len(compared)} settings with {min(counts)} to {max(counts)} exchange rates a seed"
    ] * bool(counts)
    seeds = sorted({len(setting.compared) for setting in compared})
    said += [f"of {' to '.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"] * bool(seeds)
    said += [f"in {edges} of them the best of a seed lies at an edge, so that its ratio is the least that it can be"]
    said += [f"{alone} more with an exchange rate of 1 alone, which compares nothing"] * bool(alone)
    return "; ".join(said) + "."


def _list(counts: Sequence[int]) -> str:
    return f" ({', '.join(map(str, sorted(counts)))})" if counts else ""


def _verdict(parts: Sequence[tuple[str, Sequence[Setting]]]) -> Iterator[str]:
    yield f"| settings | of | rows | median | worst | goal {GOALS[0]:.2f}, {GOALS[1]:.2f} |"
    yield "|---|---|---|---|---|---|"
    for name, settings in parts:
        for what, values in (("objective", _objectives(settings)), ("cost", _excesses(settings))):
            if values:
                median, worst = statistics.median(values), max(values)
                met = "met" if meets(values) else "not met"
                yield f"| {name} | {what} | {len(values)} | {median:.3f} | {worst:.3f} | {met} |"


def _table(settings: Sequence[Setting]) -> Iterator[str]:
    yield (
        "| setting | trained | form | seeds | best κ | objective | nats more | cost | at the same gain | "
        "at the same loss | predicted / KL |"
    )
    yield f"|{'---|' * 11}"
    for setting in settings:
        found = setting.ratios
        if not found:
            continue
        best = sorted(each.best for each in found)
        span = f"{best[0]:g}" if best[0] == best[-1] else f"{best[0]:g} to {best[-1]:g}"
        ones = [each for ladder in setting.ladders for each in ladder if each.kappa == 1.0]
        cells = [
            str(len(found)),
            span,
            str(Mean.over([each.objective for each in found])),
            str(Mean.over([each.more for each in found])),
            _mean([each.excess for each in found]),
            _mean([each.same_gain for each in found]),
            _mean([each.same_loss for each in found]),
            str(Mean.over([each.predicted / each.kl for each in ones])),
        ]
        yield f"| {setting.name} | {' | '.join(cells)} |"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return str(Mean.over(known)) if len(known) == len(values) else "–"


def _ladders(settings: Sequence[Setting]) -> Iterator[str]:
    """Yield what each exchange rate gains and loses."""
    kappas = sorted({each.kappa for setting in settings for ladder in setting.ladders for each in ladder})
    yield "Gained / lost at each κ, in nats, the mean over the seeds that tried it:"
    yield ""
    yield f"| setting | trained | form | {' | '.join(f'{kappa:g}' for kappa in kappas)} |"
    yield f"|---|---|---|{'---|' * len(kappas)}"
    for setting in settings:
        cells = []
        for kappa in kappas:
            there = [each for ladder in setting.ladders for each in ladder if each.kappa == kappa]
            gained, lost = ([getattr(each, what) for each in there] for what in ("gained", "lost"))
            cells.append(f"{statistics.mean(gained):.3f} / {statistics.mean(lost):+.3f}" if there else "")
        yield f"| {setting.name} | {' | '.join(cells)} |"
    yield ""
