"""A training step with a hold that runs the model on old samples, against the step without it and its floor."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import anchorhold
from benchmarks import networks
from benchmarks.harness import Report, interleaved

PLAIN = "unprotected"
EIGHTH = 8
"""A hold's batch is so many times smaller than the step's."""
FLOORS = {"Replay": "forward and backward", "Distillation": "and a forward of the old model", "DER++": "of two batches"}

NOTES = [
    (
        f"Each hold draws 1/{EIGHTH} as many old samples at each step as the step has new ones, out of a reservoir of "
        "as many as a batch; DER++ draws twice."
    ),
    (
        "The floor is what the method itself needs: one forward and backward pass of the drawn samples, for "
        "distillation one forward pass more, for DER++ those of two draws. It is timed by itself, on weights of its "
        "own, with samples that lie ready."
    ),
    "Over the floor: the step with the hold, divided by the sum of the unprotected step and the floor.",
    "Random inputs and labels. The machine was busy with other work, which the turns spread over all cases alike.",
]


class Problem(NamedTuple):
    """A network and a batch for it."""

    title: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    labels: Tensor

    def loss(self, model: nn.Module, samples: int | None = None) -> Tensor:
        outputs = model(self.inputs[:samples])
        return F.cross_entropy(outputs.flatten(0, -2), self.labels[:samples].flatten())


class Transformer(nn.Module):
    """A small language model: four blocks of 256, over 1000 tokens."""

    def __init__(self, width: int = 256, layers: int = 4, tokens: int = 1000) -> None:
        super().__init__()
        self.words = nn.Embedding(tokens, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        out: Tensor = self.out(self.blocks(self.words(ids), mask=mask, is_causal=True))
        return out


def problems(quick: bool) -> list[Problem]:
    batch, sequences, length = (32, 8, 16) if quick else (256, 16, 128)
    ids = torch.randint(1000, (sequences, length + 1))
    name = f"784-2000-2000-10 at batch {batch}"
    text = f"a transformer of 4 × 256 at {sequences} × {length} tokens"
    return [
        Problem(name, networks.mlp, networks.digits(batch), torch.randint(10, (batch,))),
        Problem(text, Transformer, ids[:, :-1], ids[:, 1:]),
    ]


def run(quick: bool) -> Iterator[Report]:
    torch.manual_seed(0)
    seconds: dict[str, list[float]] = {}
    given = problems(quick)
    for problem in given:
        cases = {f"{name}, {problem.title}": case for name, case in cases_of(problem).items()}
        for case in cases.values():
            for _ in range(2):
                case()
        seconds |= interleaved(cases, 1 if quick else 25)
    report = Report("holds", "A training step with replay, distillation and dark experience", NOTES, seconds)
    for problem in given:
        for name, more in FLOORS.items():
            plain, held, floor = (f"{case}, {problem.title}" for case in (PLAIN, name, f"floor of {name}: {more}"))
            report.ratio(f"{name} / unprotected, {problem.title}", held, plain)
            together = [one + other for one, other in zip(seconds[plain], seconds[floor], strict=True)]
            report.seconds["sum"] = together
            report.ratio(f"{name} over the floor, {problem.title}", held, "sum", 1.1)
            del report.seconds["sum"]
    yield report


def cases_of(problem: Problem) -> dict[str, Callable[[], object]]:
    """Return a step without a hold, one with each, and what each hold needs at least."""
    drawn = len(problem.inputs) // EIGHTH
    holds = {
        "Replay": anchorhold.Replay(len(problem.inputs), share=1 / EIGHTH, size=drawn),
        "Distillation": anchorhold.Distillation(len(problem.inputs), size=drawn),
        "DER++": anchorhold.DarkExperience(len(problem.inputs), size=drawn),
    }
    cases: dict[str, Callable[[], object]] = {PLAIN: Loop(problem, None).step}
    cases |= {name: Loop(problem, hold).step for name, hold in holds.items()}
    floors = {"Replay": (1, 0), "Distillation": (1, 1), "DER++": (2, 0)}
    for name, (passes, forwards) in floors.items():
        cases[f"floor of {name}: {FLOORS[name]}"] = floor(problem, drawn, passes, forwards)
    return cases


def floor(problem: Problem, drawn: int, passes: int, forwards: int) -> Callable[[], None]:
    """Return what a hold needs: so many passes forward and backward, and so many forward alone."""
    model = problem.make().train()

    def once() -> None:
        with torch.no_grad():
            for _ in range(forwards):
                model(problem.inputs[:drawn])
        loss = torch.stack([problem.loss(model, drawn) for _ in range(passes)]).sum()
        torch.autograd.grad(loss, list(model.parameters()))

    return once


class Loop:
    """A plain training loop in its second task."""

    def __init__(self, problem: Problem, hold: anchorhold.holds.Hold | None) -> None:
        self.problem = problem
        self.model = problem.make().train()
        self.optimizer = optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        if hold is not None:
            self.guard = anchorhold.Guard(self.model, "fine-tune", strength=0.0, holds=[hold])
            self.guard.consolidate([(problem.inputs, problem.labels)])
            self.guard.attach(self.optimizer)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.problem.loss(self.model).backward()
        self.optimizer.step()
