"""curvlinops: linear operators, whose exact diagonal is read off by multiplying with the unit vectors."""

import torch
from curvlinops import EFLinearOperator, GGNLinearOperator
from torch import nn

from benchmarks.audit.cases import Case, Found, Measure
from benchmarks.audit.formulas import definition
from benchmarks.audit.problem import Problem

PACKAGE = "curvlinops-for-pytorch"
BATCHES = (128, 512)  # one unit vector after the other takes too long with smaller ones
AT_ONCE = 2**17  # unit vectors times samples, which bounds the memory of a product


def cases() -> list[Case]:
    return [
        Case(
            "GGNLinearOperator",
            ("Fisher",),
            _of(GGNLinearOperator),
            "The definition.",
            definition("Fisher"),
            batches=BATCHES,
        ),
        Case(
            "EFLinearOperator",
            ("empirical Fisher",),
            _of(EFLinearOperator),
            "The definition.",
            definition("empirical Fisher"),
            batches=BATCHES,
        ),
    ]


def _of(operator_type: type) -> Measure:
    def measure(problem: Problem, batch: int) -> Found:
        network = problem.network()
        parameters = list(network.parameters())
        operator = operator_type(
            network, nn.CrossEntropyLoss(), parameters, problem.loader(batch), check_deterministic=False
        )
        size = sum(p.numel() for p in parameters)
        diagonal = torch.empty(size)
        for columns in torch.arange(size).split(AT_ONCE // batch):
            units = torch.zeros(size, len(columns))
            units[columns, torch.arange(len(columns))] = 1
            diagonal[columns] = (operator @ units)[columns, torch.arange(len(columns))]
        parts = diagonal.split([p.numel() for p in parameters])
        return Found({n: part.view_as(p) for (n, p), part in zip(network.named_parameters(), parts, strict=True)})

    return measure
