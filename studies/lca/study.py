"""Which weights lower the loss, and do SI, SIU and SIB know?

Loss change allocation (Lan et al. 2019, arXiv 1909.01440) integrates the full gradient along every step, so that what
it gives to the weights adds up to the decrease of the loss. Beside it, from the same training: the full gradient at the
left end of every step alone, SI, SIU, and SI's bias SIB. Small networks on the digits, and on some images of MNIST
where it is there; two tasks of permuted pixels, the second under SI's penalty.

``python -m studies.lca [--data-dir FOLDER]`` writes results/lca.md.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import anchorhold
from anchorhold.errors import DataError
from anchorhold_lab.analysis import make_probe
from anchorhold_lab.data.images import Dataset
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.networks import mlp
from anchorhold_lab.scenarios import permuted
from anchorhold_lab.training import Learner, PlainRun, Settings
from benchmarks.harness import surroundings

TASKS, TOLERANCE = 2, 1e-4
MEASURES = ("SI", "SIU", "SIB")


@dataclass(frozen=True)
class Case:
    """One training that is looked at."""

    name: str
    data: str
    hidden: tuple[int, ...]
    settings: Settings
    strength: float
    seeds: tuple[int, ...]
    samples: int | None = None
    """Of the training images, where not all."""


CASES = [
    Case(
        "digits, Adam 0.001",
        "digits",
        (100, 100),
        Settings(epochs=10, batch_size=64, learning_rate=0.001),
        20.0,
        (0, 1),
    ),
    Case(
        "digits, Adam 0.003, batch 16",
        "digits",
        (100, 100),
        Settings(epochs=3, batch_size=16, learning_rate=0.003),
        20.0,
        (0, 1),
    ),
    Case(
        "digits, SGD 0.02",
        "digits",
        (100, 100),
        Settings(epochs=10, batch_size=64, learning_rate=0.02, optimizer="sgd"),
        20.0,
        (0, 1),
    ),
    Case(
        "digits, 600-600, Adam 0.003",
        "digits",
        (600, 600),
        Settings(epochs=3, batch_size=64, learning_rate=0.003),
        20.0,
        (0, 1),
    ),
    Case(
        "5,000 images of MNIST, Adam 0.001",
        "MNIST",
        (100, 100),
        Settings(epochs=6, batch_size=256, learning_rate=0.001),
        0.2,
        (0, 1),
        5000,
    ),
]


def observed(case: Case, data: Dataset, seed: int) -> list[dict[str, Any]]:
    """Learn the tasks, and return what was seen of each."""
    if case.samples is not None:
        part = slice(case.samples)
        train = replace(data.train, pixels=data.train.pixels[part], labels=data.train.labels[part])
        data = Dataset(data.name, train, data.test)
    scenario = permuted(data, TASKS, seed=seed)
    learner = Learner(
        scenario,
        mlp(scenario.input_shape[0], case.hidden, scenario.classes),
        anchorhold.SI(),
        case.strength,
        case.settings,
        seed=seed,
        watch=(anchorhold.SIU(), anchorhold.SIB()),
        observers=dict(make_probe(text, seed=seed) for text in (f"lca:{TOLERANCE:g}", "importances")),
    )
    run, started = PlainRun(learner), time.perf_counter()
    for _ in run.learn():
        pass
    seconds = time.perf_counter() - started
    seen = learner.observations
    return [
        {
            "case": case.name,
            "seed": seed,
            "task": task + 1,
            "weights": seen["importances"]["tasks"][task]["weights"],
            "between_measures": seen["importances"]["tasks"][task]["correlations"]["before"],
            "seconds_of_the_run": seconds,
            **entry,
        }
        for task, entry in enumerate(seen["lca"]["tasks"])
    ]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the pages' tables, a line for each task of each case, means over its seeds."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["task"]), []).append(row)

    def mean(group: list[dict[str, Any]], value: Any) -> float:
        found: float = sum(value(row) for row in group) / len(group)
        return found

    shares = [
        (
            "| training | task | steps | decrease | LCA's sum − decrease | help | hurt | neither | help, of those that "
            "do either | splits | steps that were split | most splits of a step |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    sums = [
        "| training | task | left end, full gradient | SI | SIU | SIB |",
        "|---|---|---|---|---|---|",
    ]
    correlations = [
        "| training | task | left end, full gradient | SI | SIU | SIB | SI with SIB |",
        "|---|---|---|---|---|---|---|",
    ]
    for (case, task), group in groups.items():
        either = mean(group, lambda r: r["helps"] / (r["helps"] + r["hurts"]))
        help_, hurt, zero = (
            100 * mean(group, lambda r, which=which: r[which]) for which in ("helps", "hurts", "zeros")
        )
        shares.append(
            f"| {case} | {task} | {group[0]['steps']} | {mean(group, lambda r: r['decrease']):.3f} | "
            f"{mean(group, lambda r: r['error']):+.1e} | {help_:.1f} % | {hurt:.1f} % | {zero:.1f} % | "
            f"{100 * either:.1f} % | {mean(group, lambda r: r['splits']):.0f} | "
            f"{mean(group, lambda r: r['split_steps']):.0f} | {max(r['most_splits'] for r in group)} |"
        )
        of = [mean(group, lambda r: r["left_end"] / r["decrease"])]
        of += [mean(group, lambda r, m=m: r["raw_sums"][m] / r["decrease"]) for m in MEASURES]
        sums.append(f"| {case} | {task} | " + " | ".join(f"{value:.2f}" for value in of) + " |")
        with_lca = [mean(group, lambda r: r["left_end_correlation"])]
        with_lca += [mean(group, lambda r, m=m: r["correlations"][m]) for m in MEASURES]
        with_lca.append(mean(group, lambda r: r["between_measures"]["SI|SIB"]))
        correlations.append(f"| {case} | {task} | " + " | ".join(f"{value:.2f}" for value in with_lca) + " |")
    return [
        *("## The share of (weight, step) pairs that help", "", *shares, ""),
        *("## Sums over all weights, of the decrease of the loss", "", *sums, ""),
        *("## Correlations over weights with LCA's parts, before rescaling", "", *correlations, ""),
    ]


def page(rows: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return what is written."""
    return "\n".join(
        [
            "# Which weights lower the loss",
            "",
            *(f"- {key}: {value}" for key, value in where.items()),
            "",
            (
                f"Fully connected networks with ReLU, two hidden layers of 100 unless named, {TASKS} tasks of permuted "
                "pixels, the second under SI's penalty; means over two seeds. The loss is that of all training images "
                f"of the task. Each step's sum over weights is its decrease to within {TOLERANCE:g}, and steps are "
                "split where that takes it."
            ),
            "",
            *table(rows),
            (
                "Lan et al. 2019 are remembered to have found that 50.7 % of pairs help: other networks, other data, "
                "longer trainings, so that it is no target here. Pixels that are always black leave weights with "
                "neither gradient nor move, which are counted as neither."
            ),
            "",
        ]
    )


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.lca", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="the folder of data sets (default: as anchorhold finds it)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    datasets, rows = Datasets(options.data_dir), []
    for case in CASES:
        try:
            data = datasets[case.data]
        except DataError as error:
            print(f"{case.name} is left out: {error}")
            continue
        for seed in case.seeds:
            rows += observed(case, data, seed)
            print(
                json.dumps({key: rows[-1][key] for key in ("case", "seed", "helps", "seconds_of_the_run")}), flush=True
            )
    where = {**surroundings("lca"), "command": "python -m studies.lca"}
    (options.results / "lca.md").write_text(page(rows, where), encoding="utf-8")
    cases = [asdict(case) for case in CASES]
    (options.results / "lca.json").write_text(json.dumps({**where, "cases": cases, "rows": rows}, indent=1) + "\n")
