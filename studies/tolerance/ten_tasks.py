"""A tolerance over ten tasks: given at once, in equal parts, or counted anew for each task.

Permuted digits, the network and the digits of ``digits.py``. A set of digits is kept when its task has been learned, so
that each counts from its own beginning. ``python -m studies.tolerance.ten_tasks`` writes
results/tolerance-ten-tasks.md and .json.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import anchorhold
from studies.tolerance.digits import OPTIMISERS, Data, first_task, learn, mean
from studies.tolerance.small_studies import run_study

COMMAND = "python -m studies.tolerance.ten_tasks"
TASKS = 10
WAYS = ("at once", "in equal parts", "anew for each task")
TOLERANCES = (1.0, 0.3)
SEEDS = range(2)
STEPS = 300
"""Of each task."""
USED = 0.8
"""The part of a tolerance from which it is used up."""


class Course:
    """A network that learns one order of pixels after another."""

    def __init__(self, seed: int, form: str, way: str, nats: float, steps: int) -> None:
        self.data, self.way, self.nats, self.steps = Data.of(seed), way, nats, steps
        generator = torch.Generator().manual_seed(seed)
        self.orders = [torch.arange(64), *(torch.randperm(64, generator=generator) for _ in range(TASKS - 1))]
        self.generator = generator
        self.model = first_task(seed)
        self.guard = anchorhold.Guard(self.model, "EWC", form=form, tolerance=nats)
        self.judge = anchorhold.Guard(self.model, "fine-tune")
        self.optimizer = OPTIMISERS["Adam"](self.model)
        self.guard.attach(self.optimizer)

    def run(self) -> dict[str, Any]:
        """Learn all tasks, and return what was learned of each, what is left, and what each began with used up."""
        learned, used = [self._accuracy(0)], []
        self._take_in(0)
        for task in range(1, TASKS):
            self._allow(task)
            used.append(self.guard.retention().kl / float(self.guard.tolerance or 1.0))
            for _ in range(self.steps):
                learn(self.model, self.optimizer, self.data.train, self.generator, self.orders[task])
            self.guard.pull_back()
            learned.append(self._accuracy(task))
            self._take_in(task)
        ended = [self._accuracy(task) for task in range(TASKS)]
        return {
            "learned": mean(learned[1:]),
            "last": learned[-1],
            "average": mean(ended),
            "lost": self.judge.retention().kl,
            "used up before": next((task + 2 for task, part in enumerate(used) if part > USED), None),
        }

    def _allow(self, task: int) -> None:
        """Say how much this task may lose."""
        parts = {"at once": 1.0, "in equal parts": task / (TASKS - 1), "anew for each task": 1 / (TASKS - 1)}
        self.guard.tolerance = self.nats * parts[self.way]
        if self.way == "anew for each task":
            for old in range(task):
                self.guard.kept.drop(str(old))
                self.guard.keep([self._kept(old)], str(old))

    def _take_in(self, task: int) -> None:
        x, y = self.data.train
        self.guard.consolidate([(x[:500, self.orders[task]], y[:500])])
        self.guard.keep([self._kept(task)], str(task))
        self.judge.keep([self._kept(task)], str(task))

    def _kept(self, task: int) -> tuple[Tensor, Tensor]:
        x, y = self.data.kept
        return x[:, self.orders[task]], y

    @torch.no_grad()
    def _accuracy(self, task: int) -> float:
        x, y = self.data.fresh
        return float((self.model(x[:, self.orders[task]]).argmax(-1) == y).float().mean())


def rows(seeds: range = SEEDS, steps: int = STEPS) -> Iterator[dict[str, Any]]:
    """Yield what each form, tolerance and way comes to, over the seeds."""
    for nats, form, way in itertools.product(TOLERANCES, ("rotated", "diagonal"), WAYS):
        found = [Course(seed, form, way, nats, steps).run() for seed in seeds]
        numbers = {name: mean([each[name] for each in found]) for name in ("learned", "last", "average", "lost")}
        used = [each["used up before"] for each in found]
        yield {"form": form, "tolerance": nats, "way": way, **numbers, "used up before": used}


def page(found: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Return the page."""
    lines = ["# A tolerance over ten tasks", "", *(f"- {key}: {value}" for key, value in where.items()), ""]
    lines.append(
        "Permuted digits, Adam, two seeds, 300 steps a task. *Learned*: the accuracy on tasks 2 to 10 when each had "
        "been learned and pulled back, and on the tenth alone; *average*: on all ten at the end, in per cent. *Lost*: "
        "KL of the worst task at the end from when it was learned. *Used up*: the task that began with more than "
        f"{USED:.0%} of what was allowed lost already, by seed."
    )
    lines += ["", "| form | nats | given | learned | the tenth | average | lost | used up |", "|---" * 8 + "|"]
    for row in found:
        shares = " | ".join(f"{100 * row[name]:.1f}" for name in ("learned", "last", "average"))
        used = ", ".join("–" if each is None else str(each) for each in row["used up before"])
        lines.append(f"| {row['form']} | {row['tolerance']:g} | {row['way']} | {shares} | {row['lost']:.2f} | {used} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run all of it and write the page."""
    run_study(arguments, COMMAND, __doc__, "tolerance-ten-tasks", rows, lambda: rows(range(1), 3), page)


if __name__ == "__main__":
    main()
