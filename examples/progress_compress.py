"""Progress & Compress (Schwarz et al. 2018, arXiv 1805.06370) on permuted digits, in a loop of one's own.

Two columns: the *active* one learns a new task freely, with the features of the *knowledge base* beside its own; then
what it has learned is distilled into the knowledge base, which online EWC holds to all tasks before. A guard needs
nothing for that but its two lines, since to distil is only another loss, KL(active ‖ knowledge base), and the guard
adds the rest to whatever loss there is:

    python examples/progress_compress.py
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold.digits import load_digits
from anchorhold.tensors.divergence import divergence

Task = tuple[Tensor, Tensor]


class Column(nn.Module):
    """A network of one hidden layer; its output may look at the hidden layer of another column, through an adaptor."""

    def __init__(self, beside: "Column | None" = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 100)
        self.output = nn.Linear(100, 10)
        self.adaptor = None if beside is None else nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
        self._beside = [beside]  # in a list, so that its parameters are not this column's

    def features(self, x: Tensor) -> Tensor:
        """Return the hidden layer."""
        return self.hidden(x).relu()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.output(self.features(x))
        if self.adaptor is not None and self._beside[0] is not None:
            logits = logits + self.adaptor(self._beside[0].features(x).detach())
        return logits


def batches(task: Task, epochs: int) -> Iterator[Task]:
    """Yield a task's samples in batches, in another order in each epoch."""
    x, y = task
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(64):
            yield x[chosen], y[chosen]


def progress(active: Column, task: Task, epochs: int) -> None:
    """Learn a task in the active column; the knowledge base only lends its features."""
    optimizer = torch.optim.Adam(active.parameters(), lr=0.003)
    for x, y in batches(task, epochs):
        optimizer.zero_grad()
        cross_entropy(active(x), y).backward()
        optimizer.step()


def compress(guard: anchorhold.Guard, base: Column, active: Column, task: Task, epochs: int) -> None:
    """Distil it into the knowledge base, which the guard holds, and take the task in."""
    optimizer = torch.optim.Adam(base.parameters(), lr=0.003)
    guard.attach(optimizer)  # anchorhold
    for x, _ in batches(task, epochs):
        with torch.no_grad():
            told = active(x)
        optimizer.zero_grad()
        divergence(told, base(x)).backward()
        optimizer.step()
    guard.detach()
    guard.consolidate([task[0]])  # anchorhold


def make_tasks(number: int) -> list[tuple[Task, Task]]:
    """Return tasks, to train and to test, each with an order of the pixels of its own."""
    images, labels = load_digits()
    x = images.flatten(1)
    orders = [torch.randperm(64, generator=torch.Generator().manual_seed(seed)) for seed in range(number)]
    return [((x[400:, order], labels[400:]), (x[:400, order], labels[:400])) for order in orders]


def accuracy(model: nn.Module, task: Task) -> float:
    """Return the part of a task's inputs that a model classifies right."""
    with torch.no_grad():
        return float((model(task[0]).argmax(1) == task[1]).float().mean())


def learn(strength: float, tasks: int = 4, epochs: int = 8) -> float:
    """Learn one task after the other, and return what the knowledge base knows of all of them."""
    torch.manual_seed(0)
    base = Column()
    guard = anchorhold.Guard(base, "online-EWC", strength=strength, from_scratch=True)  # anchorhold
    every = make_tasks(tasks)
    active = Column(beside=base)
    for train, _ in every:
        progress(active, train, epochs)
        compress(guard, base, active, train, epochs)
    return sum(accuracy(base, test) for _, test in every) / tasks


def main() -> None:
    """Tell what is left of all tasks, with and without the hold."""
    for strength in (0.0, 0.1):  # 0.01 and 1 leave 54 %
        print(f"strength {strength:g}: {100 * learn(strength):.1f} % on average over all tasks")


if __name__ == "__main__":
    main()
