"""What the lines come to: where tolerances end, and what a search over strengths learns at the same loss."""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anchorhold.retention.diagnosis import NEARLY
from anchorhold_lab.analysis.repetitions import standard_error
from studies.tolerance.at_scale import choosing
from studies.tolerance.at_scale.trials import Setting, Study, Trial

COMMAND = "python -m studies.tolerance.at_scale"
NAME = "tolerance-at-scale"
ALLOWED = {"accuracy": 0.5, "bits": 0.01}
"""How much worse than the search a run with a tolerance may be, in points or bits a byte."""
Row = dict[str, Any]


def at_kl(searched: Iterable[tuple[float, float]], kl: float) -> float | None:
    """Return what a search learns where it loses so much, from pairs of what it loses and learns.

    Between two runs by a straight line over the logarithm of what is lost; beyond the least and the most, nothing.
    """
    points = sorted((math.log(lost), learned) for lost, learned in searched if lost > 0)
    wanted = math.log(kl) if kl > 0 else -math.inf
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= wanted <= high:
            return before if high == low else before + (after - before) * (wanted - low) / (high - low)
    return None


def compared(setting: Setting, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return an entry for each form, optimiser and tolerance: all its seeds, each beside the search of its own."""
    found = []
    for form in setting.strengths:
        for optimiser in setting.optimisers:
            named = {"form": form, "optimiser": optimiser, "damping": None, "start": None}
            own = [row for row in rows if all(row["trial"].get(key) == value for key, value in named.items())]
            for nats in setting.tolerances:
                runs = [beside(run, own) for run in own if _is(run, "tolerance") and run["trial"]["value"] == nats]
                if runs:
                    found.append({"form": form, "optimiser": optimiser, "tolerance": nats, "runs": runs})
    return found


def _is(row: Row, kind: str) -> bool:
    return row["trial"]["kind"] == kind and not row.get("diverged")


def beside(run: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a run with a tolerance, and what the search of its seed comes to at what it has lost."""
    searched = [row for row in rows if _is(row, "strength") and row["trial"]["seed"] == run["trial"]["seed"]]
    return {
        "seed": run["trial"]["seed"],
        "ended": run["back"]["kl"] / run["trial"]["value"],
        "kept": run["kept"] / run["trial"]["value"],
        "sure": run.get("sure"),
        "before": run["end"]["kl"] / run["trial"]["value"],
        "peak": run["peak"] / run["trial"]["value"],
        "new": run["back"]["new"],
        "old": run["back"]["old"],
        "searched": at_kl([(row["end"]["kl"], row["end"]["new"]) for row in searched], run["back"]["kl"]),
        "points": len(searched),
    }


def table(setting: Setting, entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return a setting's comparison; a difference above 0 says that the tolerance is better."""
    better = -1 if setting.language is not None else 1
    unit = "Python, bits a byte" if better < 0 else "accuracy on the second task, %"
    heads = [
        "form",
        "optimiser",
        "tolerance",
        "runs",
        "ended / asked, fresh",
        "within 20 %",
        "or said that they may not",
    ]
    heads += ["before going back"]
    heads += ["peak", unit, "the search there", "better by"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for entry in entries:
        runs = entry["runs"]
        pairs = [(run["new"], run["searched"]) for run in runs if run["searched"] is not None]
        gains = [better * (new - searched) for new, searched in pairs]
        digits = 3 if better < 0 else 2
        lacking = "" if len(pairs) == len(runs) else f" ({len(pairs)} of {len(runs)} runs)"
        there = f"{statistics.mean(s for _, s in pairs):.{digits}f}{lacking}" if pairs else "none ends there"
        cells = [entry["form"], entry["optimiser"], f"{entry['tolerance']:g}", str(len(runs))]
        cells += [_spread([run["ended"] for run in runs]), str(sum(map(_is_near, runs))), str(sum(map(_is_told, runs)))]
        cells += [f"{statistics.mean(run[name] for run in runs):.2f}" for name in ("before", "peak")]
        cells += [f"{statistics.mean(run['new'] for run in runs):.{digits}f}", there]
        cells += [_with_error(gains, digits)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _is_near(run: dict[str, Any]) -> bool:
    """Whether a run ended within 20 % of its tolerance, on fresh old data."""
    return bool(abs(run["ended"] - 1) <= 0.2)


def _is_told(run: dict[str, Any]) -> bool:
    """Whether a run did not, and ``guard.pull_back()`` says that less was lost, or that kept inputs differ too much."""
    return not _is_near(run) and bool(run["kept"] < NEARLY or run["sure"] is False)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _with_error(values: Sequence[float], digits: int) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):+.{digits}f}"
    if len(values) == 1:
        return mean  # one run has no error
    return f"{mean} ± {standard_error(values):.{digits}f}"


def verdict(setting: Setting, entries: Sequence[dict[str, Any]]) -> str:
    """Say in how many runs what was asked for came about."""
    runs = [run for entry in entries for run in entry["runs"]]
    better, allowed = (-1, ALLOWED["bits"]) if setting.language is not None else (1, ALLOWED["accuracy"])
    near, told = sum(map(_is_near, runs)), sum(map(_is_told, runs))
    with_search = [run for run in runs if run["searched"] is not None]
    good = sum(better * (run["new"] - run["searched"]) >= -allowed for run in with_search)
    unit = "bits a byte" if better < 0 else "points"
    why = "less is lost or kept inputs differ too much"
    if any(run["sure"] is None for run in runs):
        why = "less is lost (whether kept inputs tell enough was not asked yet)"
    return (
        f"{near} of {len(runs)} runs end within 20 % of their tolerance on fresh old data, and {told} more say "
        f"that they may not, since {why}. Of the {len(with_search)} at"
        f" whose loss the search has runs on both sides, {good} are no more than {allowed:g} {unit} worse than it."
    )


def cost_section(costs: Sequence[dict[str, Any]]) -> list[str]:
    """Return what looking costs, where it was measured."""
    if not costs:
        return ["", "What looking costs was not measured here: `python -m studies.tolerance.at_scale watching`."]
    lines = [
        "",
        "## What looking costs",
        "",
        "Runs turn by turn on one network, the fastest of each; Adam, a diagonal.",
    ]
    lines += ["", "| setting | seconds with a strength | with a tolerance | ratio |", "|---|---|---|---|"]
    for cost in costs:
        held, followed = min(cost["strength"]), min(cost["tolerance"])
        lines.append(f"| {cost['setting']} | {held:.2f} | {followed:.2f} | {followed / held:.2f} |")
    return lines


def page(study: Study, rows: Sequence[Row], where: dict[str, str], costs: Sequence[dict[str, Any]] = ()) -> str:
    """Return what was found."""
    lines = ["# Tolerances and searched strengths, at the size of the paper's networks", ""]
    lines += [f"- {key}: {value}" for key, value in where.items()]
    lines += [
        "",
        (
            "Two tasks each: the first is learned by Adam (English by AdamW), the second under EWC, once with each "
            "tolerance and once with each of ten constant strengths half a power of ten apart. The tolerance is "
            "measured on old inputs that were not trained on, ends with `guard.pull_back()`, and is judged by the KL "
            "of others. *The search there*: what the searched strengths of the same seed learn where they lose as "
            "much of those, between two of them by a straight line over the logarithm of the KL. Their rotated form "
            "is damped as the tolerance's is. SGD has momentum 0.9 and an implicit hold."
        ),
    ]
    for setting in study.settings:
        own = [row for row in rows if row["trial"]["setting"] == setting.name and not Trial(**row["trial"]).said]
        if not own:
            continue
        entries = compared(setting, own)
        diverged = sum(bool(row.get("diverged")) for row in own)
        kept = f"{setting.kept} old inputs kept, {setting.fresh} judge; importance from {setting.measured}"
        lost = f" {diverged} runs diverged, and are left out." if diverged else ""
        lines += ["", f"## {setting.name}", "", f"{setting.steps_said}; {kept}; {len(own)} runs.{lost}", ""]
        lines += [*table(setting, entries), "", verdict(setting, entries) if entries else "No tolerance was run yet."]
        lines += missing(study, setting, own)
    return "\n".join([*lines, *cost_section(costs), *choosing.section(rows)]) + "\n"


def missing(study: Study, setting: Setting, rows: Sequence[Row]) -> list[str]:
    """Say how many trials of a setting were not run."""
    known = {Trial(**row["trial"]).key for row in rows}
    left = [trial for of, trial in study.trials() if of == setting and trial.key not in known]
    if not left:
        return []
    kinds = sorted({f"{trial.form}, {trial.optimiser}, by {trial.kind}" for trial in left})
    return ["", f"Not run: {len(left)} trials ({'; '.join(kinds)}). `{COMMAND} run` makes them."]


def surroundings(rows: Sequence[Row], *, rehearsal: bool) -> dict[str, str]:
    """Return where and when this was."""
    found = {"command": COMMAND + (" --rehearse (its numbers mean nothing)" if rehearsal else "")}
    found["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found["machines"] = "; ".join(sorted({row["machine"] for row in rows if "machine" in row}))
    return found


def write(folder: Path, study: Study, rows: Sequence[Row], costs: Sequence[dict[str, Any]] = ()) -> Path:
    """Write the page, and all numbers beside it."""
    where = surroundings(rows, rehearsal=study.rehearsal)
    folder.mkdir(parents=True, exist_ok=True)
    document = {**where, "watching": list(costs), "rows": list(rows)}
    (folder / f"{NAME}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    path = folder / f"{NAME}.md"
    path.write_text(page(study, rows, where, costs), encoding="utf-8")
    return path
