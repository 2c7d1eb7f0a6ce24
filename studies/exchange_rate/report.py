"""The rows of the study, packed, and the page made of them."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorhold.whole_files import write_whole
from benchmarks.language.frontier import Mean, lost_at
from studies.exchange_rate.settings import FORMS, GRID, Run
from studies.exchange_rate.training import cost
from studies.pretrained.recipes import GUARDS, Recipe
from studies.pretrained.report import at_end, is_of_lesson, mean_loss, read
from studies.pretrained.texts import KEPT
from studies.pretrained.training import OWN_TEXT

ROWS = Path("results/exchange-rate.jsonl.zst")
PRETRAINED = Path("results/pretrained/rows.jsonl.zst")
GOALS = (1.10, 1.20)
"""Of the median setting and of the worst."""
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


@dataclass(frozen=True)
class Tried:
    """One training with a guard.

    Args:
        kappa: the exchange rate.
        new: the new text's loss after, in nats a token.
        gained: by how much it fell.
        lost: the nats that are lost per old token.
        predicted: what the importance says of the KL per old token.
        kl: the KL per old token as it was measured.
    """

    kappa: float
    new: float
    gained: float
    lost: float
    predicted: float
    kl: float

    @property
    def cost(self) -> float:
        """Return the objective at an exchange rate of 1."""
        return self.new + self.lost


@dataclass(frozen=True)
class Ratios:
    """What an exchange rate of 1 costs beside the best strength of one ladder.

    Args:
        objective: the objective's ratio.
        more: how many nats more the objective is.
        excess: the ratio of what is paid for both texts: the objective less the least loss of the new text in any run.
            ``None`` where nothing is paid at the best, because the old text gains.
        same_gain: the nats lost, by those lost at the same gain between the two nearest other strengths.
        same_loss: the gain that those have at the same nats lost, by the gain.
        best: the best exchange rate.
    """

    objective: float
    more: float
    excess: float | None
    same_gain: float | None
    same_loss: float | None
    best: float


def ratios(tried: Sequence[Tried], least_new: float) -> Ratios | None:
    """Return the ratios of a ladder; ``None`` if an exchange rate of 1 was not tried, or nothing else was.

    Args:
        tried: the ladder.
        least_new: the least loss of the new text in any run of the same network.
    """
    one = next((each for each in tried if each.kappa == 1.0), None)
    others = [each for each in tried if each.kappa != 1.0]
    if one is None or not others:
        return None
    best = min(tried, key=lambda each: each.cost)
    least = min(least_new, *(each.new for each in tried))
    there = lost_at([(0.0, 0.0), *((each.gained, each.lost) for each in others)], one.gained)
    gain = lost_at([(0.0, 0.0), *((each.lost, each.gained) for each in others)], one.lost)
    return Ratios(
        one.cost / best.cost,
        one.cost - best.cost,
        (one.cost - least) / (best.cost - least) if best.cost > least else None,
        one.lost / there if there is not None and there > 0 else None,
        gain / one.gained if gain is not None and one.gained > 0 else None,
        best.kappa,
    )


@dataclass(frozen=True)
class Setting:
    """A row of the page: the ladders of all seeds, and what each network's runs reach at least on the new text."""

    name: str
    ladders: tuple[tuple[Tried, ...], ...]
    least_new: tuple[float, ...]

    @property
    def ratios(self) -> list[Ratios]:
        """Return the ratios of each seed that has them."""
        found = [ratios(ladder, least) for ladder, least in zip(self.ladders, self.least_new, strict=True)]
        return [each for each in found if each is not None]

    @property
    def objective(self) -> float | None:
        """Return the objective's ratio, the mean over seeds, if any seed has it."""
        found = self.ratios
        return statistics.mean(each.objective for each in found) if found else None

    @property
    def excess(self) -> float | None:
        """Return the ratio of what is paid, the mean over seeds, if every seed that is compared has it."""
        found = [each.excess for each in self.ratios if each.excess is not None]
        return statistics.mean(found) if found and len(found) == len(self.ratios) else None


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
    said = []
    for name, settings in _parts(rows, pretrained):
        for what, values in (("objective", _objectives(settings)), ("cost", _excesses(settings))):
            if values:
                median, worst = statistics.median(values), max(values)
                said.append(
                    f"{name}: {what} {median:.3f} in the median of {len(values)} settings, {worst:.3f} in the worst"
                )
    return f"{ANSWER} At κ = 1, by that of the best strength of a grid: {'; '.join(said)}."


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
            f"compared with the best of {len(GRID)} exchange rates from {GRID[0]:g} to {GRID[-1]:g}, and of further "
            "ones where the best lay at an edge, found by searching on the same text that is reported: the search has "
            "an advantage. Losses are in nats a token (a byte for the GPTs), on text kept apart."
        ),
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


def _verdict(parts: Sequence[tuple[str, Sequence[Setting]]]) -> Iterator[str]:
    yield f"| settings | of | rows | median | worst | goal {GOALS[0]:.2f}, {GOALS[1]:.2f} |"
    yield "|---|---|---|---|---|---|"
    for name, settings in parts:
        for what, values in (("objective", _objectives(settings)), ("cost", _excesses(settings))):
            if values:
                median, worst = statistics.median(values), max(values)
                met = "met" if median <= GOALS[0] and worst <= GOALS[1] else "not met"
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
