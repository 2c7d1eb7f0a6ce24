"""BackPACK: its extensions of the backward pass, batch after batch, and the mean over batches."""

import warnings

import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact, DiagGGNMC, SumGradSquared
from torch import nn

from benchmarks.audit.cases import Case, Found, Measure
from benchmarks.audit.formulas import definition
from benchmarks.audit.problem import Problem

PACKAGE = "backpack-for-pytorch"


def cases() -> list[Case]:
    return [
        Case("DiagGGNExact", ("Fisher",), _of(DiagGGNExact), "The definition.", definition("Fisher")),
        Case(
            "DiagGGNMC",
            ("Fisher",),
            _of(DiagGGNMC),
            "The definition with one label drawn for each sample.",
            drawn=True,
        ),
        Case(
            "SumGradSquared, mean loss",
            ("empirical Fisher",),
            _of(SumGradSquared),
            "The mean loss divides every sample's gradient by the batch size before it is squared, as documented: the"
            " sum of squares is 1/b of the mean.",
            definition("empirical Fisher", batch_size=-1),
        ),
        Case(
            "SumGradSquared, summed loss",
            ("empirical Fisher",),
            _of(SumGradSquared, reduction="sum"),
            "The definition, as a sum over the samples of a batch.",
            definition("empirical Fisher", batch_size=1),
        ),
    ]


def _of(extension: type, reduction: str = "mean") -> Measure:
    def measure(problem: Problem, batch: int) -> Found:
        network = extend(problem.network())
        loss_function = extend(nn.CrossEntropyLoss(reduction=reduction))
        wanted = extension()
        total = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        loader = problem.loader(batch)
        for inputs, labels in loader:
            network.zero_grad()
            loss = loss_function(network(inputs), labels)
            with backpack(wanted), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss.backward()
            for name, parameter in network.named_parameters():
                total[name] += getattr(parameter, wanted.savefield)
        return Found({name: value / len(loader) for name, value in total.items()})

    return measure
