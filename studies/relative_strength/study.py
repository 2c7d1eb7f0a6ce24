"""What of a strength carries over, from one measure to another and from one form to another.

The strength c that is best on permuted digits is searched for, for measures in the diagonal, in rotated coordinates and
as Kronecker products: first by powers of ten with one seed, then more closely with three others, by validation data.
Each best c is then expressed in units of the importance that the first task was found to have, with λ the
eigenvalues of Q (for the diagonal, the importances themselves):

- times their mean, which is the relative strength s = c·trace/p;
- times the root of their mean square;
- times the mean of λ weighted by λ, tr Q²/tr Q;
- times their largest;
- times the median of those that are not 0;

and as the share of directions with c·λ above 1. The unit in which the best values lie closest together carries over
best. The strengths of the paper's tables are set beside it, at the mean importances that probes saw in the first task
of published runs (results/paper/store), which have no more than sums.

``python -m studies.relative_strength`` writes results/relative-strength.md; ``--page`` writes the page alone, from
the json that is there. Forms have no damping there, as when it was first run; ``--add EWC:rotated L2:diagonal``
searches for those alone, with the damping that forms have by default, and adds them in a table of their own.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorhold.forms import KroneckerMatrix, Matrix, RotatedMatrix, form
from anchorhold_lab.analysis.repetitions import standard_error
from anchorhold_lab.experiments import SCENARIOS, Store
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.undamped import undamped
from studies.permuted_digits import BATCH, RATE, STEPS, WIDTH, Data

SCOUT, SEEDS = 0, (1, 2, 3)
POWERS = range(-4, 2)
FINER = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Around the best power of ten, in powers of ten."""
HALF = 0.5
FLAT = 1.0
"""Within how many points of the best strength another one is as good."""


class Way(NamedTuple):
    """A measure in a form."""

    measure: str
    form: str
    damped: bool = False
    """Whether the form has the damping of its defaults."""


WAYS = [
    *(Way(measure, "diagonal") for measure in ("EWC", "sqrtFisher", "MAS", "SOS", "SI")),
    *(Way(measure, "rotated") for measure in ("EWC", "sqrtFisher", "MAS")),
    Way("EWC", "kronecker"),
]

UNITS = {
    "mean": "s = c·trace/p",
    "rms": "c·√(mean λ²)",
    "weighted": "c·tr Q²/tr Q",
    "largest": "c·λmax",
    "median": "c·median λ > 0",
    "above": "share with c·λ > 1",
}


def eigenvalues(matrix: Matrix) -> Tensor:
    """Return the eigenvalues of Q of one block."""
    if isinstance(matrix, RotatedMatrix):
        return matrix.s.flatten()
    if isinstance(matrix, KroneckerMatrix):
        assert matrix.g is not None and matrix.a is not None
        return torch.outer(torch.linalg.eigvalsh(matrix.g), torch.linalg.eigvalsh(matrix.a)).flatten()
    return torch.cat([omega.flatten() for omega in matrix.diagonal().values()])


def units_of(strength: float, matrices: dict[str, Matrix]) -> dict[str, float]:
    """Return a strength in all units."""
    values = torch.cat([eigenvalues(matrix) for matrix in matrices.values()]).double().clamp(min=0)
    return {
        "mean": strength * float(values.mean()),
        "rms": strength * float(values.square().mean().sqrt()),
        "weighted": strength * float(values.square().sum() / values.sum()),
        "largest": strength * float(values.max()),
        "median": strength * float(values[values > 0].median()),
        "above": float((strength * values > 1).double().mean()),
    }


def run(way: Way, relative: float, seed: int) -> dict[str, Any]:
    """Learn all tasks, and return how well they are known at the end, and the strength in all units."""
    data = Data(seed)
    torch.manual_seed(seed)
    pixels = data.train[0].shape[1]
    layers = (nn.Linear(pixels, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = nn.Sequential(*layers)
    held_in = form(way.form) if way.damped else undamped(way.form)
    guard = RelativeGuard(model, way.measure, relative_strength=relative, form=held_in, from_scratch=True)
    found: dict[str, Any] = {}
    for task, permutation in enumerate(data.permutations):
        x, y = data.train[0][:, permutation], data.train[1]
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        guard.attach(optimizer)
        generator = torch.Generator().manual_seed(1000 * seed + task)
        for step in range(STEPS):
            chosen = torch.randint(len(x), (BATCH,), generator=generator)
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            if way.measure in ("SIU", "SIB"):
                other = torch.randint(len(x), (BATCH,), generator=generator)
                guard.gradients.independent(F.cross_entropy(model(x[other]), y[other]), samples=BATCH)
            elif way.measure == "RWalk" and step % 10 == 0:
                guard.gradients.samples([(x[chosen], y[chosen])])
            optimizer.step()
        guard.detach()
        guard.consolidate([x])
        if not found:
            assert isinstance(guard.strength, float)
            found = {"strength": guard.strength, "units": units_of(guard.strength, guard.held.matrices)}
    with torch.no_grad():
        for what, (x, y) in (("validation", data.validation), ("test", data.test)):
            right = [float((model(x[:, p]).argmax(1) == y).float().mean()) for p in data.permutations]
            found[what] = 100 * statistics.mean(right)
    return found


def searched(way: Way) -> dict[str, Any]:
    """Return what the best relative strength of a measure in a form comes to."""
    scouted = {power: run(way, 10.0**power, SCOUT)["validation"] for power in POWERS}
    around = max(scouted, key=scouted.__getitem__)
    runs: dict[float, list[dict[str, Any]]] = {}
    judged: dict[float, float] = {}
    asked = [around + step for step in FINER]
    while asked:
        for power in asked:
            runs[power] = [run(way, 10.0**power, seed) for seed in SEEDS]
            judged[power] = statistics.mean(one["validation"] for one in runs[power])
        best = max(judged, key=judged.__getitem__)
        asked = [power for power in (best - HALF, best + HALF) if power not in judged]  # it may lie at an end
    judged = dict(sorted(judged.items()))
    flat = [power for power, value in judged.items() if value >= judged[best] - FLAT]
    chosen = runs[best]
    tests = [one["test"] for one in chosen]
    return {
        "measure": way.measure,
        "form": way.form,
        "relative": 10.0**best,
        "flat": [10.0 ** min(flat), 10.0 ** max(flat)],
        "strength": statistics.geometric_mean(one["strength"] for one in chosen),
        "average": statistics.mean(tests),
        "error": standard_error(tests),
        "units": {unit: statistics.fmean(one["units"][unit] for one in chosen) for unit in UNITS},
        "scouted": {f"{10.0**power:g}": value for power, value in scouted.items()},
        "judged": {f"{10.0**power:g}": value for power, value in judged.items()},
    }


def apart(rows: list[dict[str, Any]], unit: str) -> float:
    """Return how many times the largest of the best strengths in a unit is the smallest."""
    values = [row["strength"] if unit == "strength" else row["units"][unit] for row in rows]
    return max(values) / min(values) if min(values) > 0 else math.inf


def published(store: Store) -> list[dict[str, Any]]:
    """Return the strengths of the paper's tables beside the importances that probes saw in published runs."""
    means: dict[tuple[str, str], list[float]] = {}
    for spec in map(store.spec, store.ids()):
        if "importances" in spec.probes and store.has_observations(spec):
            first = store.observations(spec)["importances"]["tasks"][0]
            for measure, total in first["sums"].items():
                means.setdefault((spec.scenario, measure), []).append(total / first["weights"])
    rows = []
    for (scenario, measure), each in sorted(means.items()):
        chosen = SCENARIOS[scenario].protocol.chosen
        if measure in chosen:
            c, mean = chosen[measure][0], statistics.median(each)
            row = {"scenario": scenario, "measure": measure, "strength": c, "mean": mean, "relative": c * mean}
            rows.append({**row, "runs": len(each)})
    return rows


def published_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of them."""
    lines = [
        "",
        "## The paper's strengths in that unit",
        "",
        (
            "The paper's c beside the mean importance that published runs saw after their first task (the median over "
            "runs, which SI held). Of other units only sums are known there."
        ),
        "",
        "| benchmark | measure | c | mean importance | s | runs |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['scenario']} | {row['measure']} | {row['strength']:g} | {row['mean']:.2g} | "
        f"{row['relative']:.2g} | {row['runs']} |"
        for row in sorted(rows, key=lambda row: (row["scenario"], row["relative"]))
    ]
    lines.append("")
    for scenario in sorted({row["scenario"] for row in rows}):
        own = [row for row in rows if row["scenario"] == scenario]
        factors = {unit: max(r[unit] for r in own) / min(r[unit] for r in own) for unit in ("strength", "relative")}
        lines.append(
            f"- {scenario}: the largest c is {factors['strength']:.2g} times the smallest, the largest s "
            f"{factors['relative']:.2g} times."
        )
    return lines


def table(rows: list[dict[str, Any]], seconds: float) -> str:
    """Return the rows as a page."""
    diagonal = [row for row in rows if row["form"] == "diagonal"]
    rotated = [row for row in rows if row["form"] == "rotated"]
    fisher = [row for row in rows if row["measure"] == "EWC"]
    groups = {
        "measures, diagonal": diagonal,
        "of these, roots and absolute values": [
            row for row in diagonal if row["measure"] in ("sqrtFisher", "MAS", "SOS")
        ],
        "measures, rotated": rotated,
        "forms of EWC": fisher,
        "all": rows,
    }
    lines = [
        "# A strength in units of the importance",
        "",
        (
            f"`python -m studies.relative_strength`, torch {torch.__version__}, {seconds / 60:.0f} minutes on one "
            f"busy core. Permuted digits, five tasks of {STEPS} steps of {BATCH} with Adam, one head. The best "
            "relative strength on validation data: powers of ten with one seed, then half powers around the best with "
            f"{len(SEEDS)} others. Accuracy on test data over all tasks after the last, with its standard error; "
            f"*as good* are the strengths within {FLAT:g} point of the best on validation data. Units are of the "
            "importance that the first task was found to have."
        ),
        "",
        f"| measure | form | average | best c | {' | '.join(UNITS.values())} | as good: s |",
        "|---" * (len(UNITS) + 5) + "|",
    ]
    for row in rows:
        units = " | ".join(f"{row['units'][unit]:.2g}" for unit in UNITS)
        lines.append(
            f"| {row['measure']} | {row['form']} | {row['average']:.1f} ± {row['error']:.1f} | {row['strength']:.2g} | "
            f"{units} | {row['flat'][0]:.2g} to {row['flat'][1]:.2g} |"
        )
    lines += ["", "How many times the largest of the best is the smallest, in each unit:", ""]
    lines += [f"| over | c | {' | '.join(UNITS.values())} |", "|---" * (len(UNITS) + 2) + "|"]
    for name, group in groups.items():
        factors = " | ".join(f"{apart(group, unit):.2g}" for unit in ("strength", *UNITS))
        lines.append(f"| {name} | {factors} |")
    return "\n".join(lines) + "\n"


def added_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of those that were added, in forms with the damping of their defaults."""
    if not rows:
        return []
    lines = [
        "",
        "## Further measures, and forms with their default damping",
        "",
        (
            "`--add MEASURE:FORM`, the same tasks, seeds and search. Rotated, Kronecker and low-rank forms are as they "
            "are by default, the first two damped by 0.001. SIU and SIB have a second batch a step."
        ),
        "",
        "| measure | form | average | best c | s | as good: s |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['measure']} | {row['form']} | {row['average']:.1f} ± {row['error']:.1f} | {row['strength']:.2g} | "
        f"{row['relative']:.2g} | {row['flat'][0]:.2g} to {row['flat'][1]:.2g} |"
        for row in rows
    ]


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.relative_strength", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--add", nargs="+", metavar="MEASURE:FORM", help="search for these, and add them")
    parser.add_argument("--store", type=Path, default=Path("results/paper/store"), help="published runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.results / "relative-strength.json"
    if options.page or options.add:
        found = json.loads(kept.read_text(encoding="utf-8"))
        for asked in options.add or ():
            measure, _, of_form = asked.partition(":")
            row = searched(Way(measure, of_form, damped=True))
            del row["units"]  # of eigenvalues, which not every form has
            others = [each for each in found.get("added", []) if (each["measure"], each["form"]) != (measure, of_form)]
            found["added"] = [*others, row]
            kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)
    else:
        started, rows = time.perf_counter(), []
        for way in WAYS:
            rows.append(searched(way))
            print(json.dumps(rows[-1]), flush=True)
        found = {
            "seconds": time.perf_counter() - started,
            "searched": rows,
            "published": published(Store(options.store)),
        }
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (options.results / "relative-strength.md").write_text(page(found), encoding="utf-8")


def page(found: dict[str, Any]) -> str:
    """Return the page of what was found."""
    more = [*added_table(found.get("added", [])), *published_table(found["published"])]
    return table(found["searched"], found["seconds"]) + "\n".join(more) + "\n"
