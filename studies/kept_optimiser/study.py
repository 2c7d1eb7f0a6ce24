"""One Adam for all tasks, or a new one for each: what fine-tuning loses by it where every task has a head of its own.

Split MNIST, task-incremental, in the protocol of van de Ven et al. 2022 (784-400-400, batches of 128, rate 0.001), from
Glorot's weights and from torch's. A laboratory's run makes its optimiser anew for every task; here one goes on. It
brings the small squares of a task that it has learned to one that has just begun, and no correction for first steps:
where gradients are much larger than before, its steps are up to six times as long as a new one's.

``python -m studies.kept_optimiser [--data-dir FOLDER]`` writes results/kept-optimiser.md; 15 minutes on one core.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anchorhold_lab.data.locations import load
from anchorhold_lab.experiments import Spec, paper_spec
from anchorhold_lab.experiments.running.engines import make_learner
from anchorhold_lab.training.plain_run import PlainRun
from benchmarks.harness import surroundings

NETWORKS = {"mlp": "Glorot's, biases of 0.1", "mlp-torch-init": "torch's"}
EPOCHS, SEEDS = 21, (0, 1)


class OneOptimiser(PlainRun):
    """A run whose optimiser goes on from task to task."""

    def _make_optimizer(self) -> None:
        if self.task == 0:
            super()._make_optimizer()


def spec_of(network: str, seed: int, **changes: Any) -> Spec:
    """Return the run of the relatives' table that fine-tuning stands in, with one of the two networks."""
    protocol = {
        "hidden": (400, 400),
        "epochs": EPOCHS,
        "batch_size": 128,
        "learning_rate": 0.001,
        "incremental": "task",
    }
    made = paper_spec("split-mnist", "fine-tune", seed=seed, **{**protocol, **changes})
    return dataclasses.replace(made, network=network)


def accuracies(spec: Spec, datasets: Mapping[str, Any], *, kept: bool) -> list[float]:
    """Return what a run knows of every task after the last, in per cent."""
    learner = make_learner(spec, spec.make_scenario(dict(datasets)), torch.device("cpu"))
    run = (OneOptimiser if kept else PlainRun)(learner)
    for _ in run.learn():
        pass
    return [100 * each for each in run.outcomes[0].matrix[-1]]


def page(rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# One Adam for all tasks, or a new one for each",
        "",
        *(f"- {name}: {said}" for name, said in where.items()),
        "",
        f"Fine-tuning on Split MNIST, a head for each task, {EPOCHS} epochs each: accuracy after the last one, in %.",
        "",
        "| first weights | Adam | seed | average | task by task |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        found = row["accuracies"]
        each = ", ".join(f"{accuracy:.1f}" for accuracy in found)
        adam = "one for all" if row["kept"] else "a new one each task"
        lines.append(
            f"| {NETWORKS[row['network']]} | {adam} | {row['seed']} | **{sum(found) / len(found):.1f}** | {each} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run both networks in both ways, and write what came out."""
    parser = argparse.ArgumentParser(prog="python -m studies.kept_optimiser", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="the folder of data sets (default: as anchorhold finds it)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    datasets, rows = {"MNIST": load("MNIST", options.data_dir)}, []
    for network, kept, seed in itertools.product(NETWORKS, (True, False), SEEDS):
        found = accuracies(spec_of(network, seed), datasets, kept=kept)
        rows.append({"network": network, "kept": kept, "seed": seed, "accuracies": found})
        print(json.dumps(rows[-1]), flush=True)
    where = {**surroundings("kept-optimiser"), "command": "python -m studies.kept_optimiser"}
    (options.results / "kept-optimiser.md").write_text(page(rows, where), encoding="utf-8")
    (options.results / "kept-optimiser.json").write_text(json.dumps({**where, "rows": rows}, indent=1) + "\n", "utf-8")
