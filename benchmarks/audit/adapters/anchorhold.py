"""anchorhold itself, in float32 and in batches, as everyone else."""

from torch import optim
from torch.nn.functional import cross_entropy

import anchorhold
from benchmarks.audit.cases import Case, Found, Measure
from benchmarks.audit.formulas import definition
from benchmarks.audit.path import FollowSI, Recorder
from benchmarks.audit.problem import EPOCHS, LEARNING_RATE, Problem

PACKAGE = "anchorhold"
DAMPING = 0.1
RIGHT = "The definition."
DRAWN = "The definition with one label drawn for each sample."


def cases() -> list[Case]:
    return [
        Case("EWC", ("Fisher",), _of(anchorhold.Fisher()), RIGHT, definition("Fisher")),
        Case("EWC, labels drawn", ("Fisher",), _of(anchorhold.Fisher(labels="sampled")), DRAWN, drawn=True),
        Case(
            "EWC, true labels",
            ("empirical Fisher",),
            _of(anchorhold.Fisher(labels="true")),
            RIGHT,
            definition("empirical Fisher"),
        ),
        Case("MAS", ("MAS on logits",), _of(anchorhold.MAS(output="logits")), RIGHT, definition("MAS on logits")),
        Case("SI", ("SI",), _si, RIGHT),
    ]


def _of(measure: anchorhold.measures.SampleMeasure) -> Measure:
    return lambda problem, batch: Found(measure.measure(problem.network(), problem.loader(batch)))


def _si(problem: Problem, batch: int) -> Found:
    network = problem.network(trained=False)
    optimizer = optim.Adam(network.parameters(), lr=LEARNING_RATE)
    follower = FollowSI(DAMPING)
    Recorder(problem, network, optimizer, follower)
    guard = anchorhold.Guard(network, anchorhold.SI(damping=DAMPING), strength=1.0)
    guard.attach(optimizer)
    for _ in range(EPOCHS):
        for inputs, labels in problem.loader(batch, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(network(inputs), labels).backward()
            optimizer.step()
    guard.consolidate()
    return Found(dict(guard.importance), {"SI": follower.importance(), "explained": follower.importance()})
