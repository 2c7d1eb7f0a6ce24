"""posteriors: diagonal Laplace approximations, updated batch by batch."""

from typing import Any

import torch
from posteriors.laplace import diag_fisher, diag_ggn
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import definition
from benchmarks.audit.problem import Problem

PACKAGE = "posteriors"
SUM = "The definition, as a sum over the samples, as a posterior needs it."


def cases() -> list[Case]:
    return [
        Case("laplace.diag_ggn", ("Fisher",), _ggn, SUM, definition("Fisher", samples=1)),
        Case("laplace.diag_fisher", ("empirical Fisher",), _fisher, SUM, definition("empirical Fisher", samples=1)),
    ]


def _ggn(problem: Problem, batch: int) -> Found:
    network = problem.network()

    def forward(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return functional_call(network, parameters, batch[0]), torch.tensor([])

    def log_likelihood(logits: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return -cross_entropy(logits, batch[1], reduction="sum")

    return _updated(diag_ggn.build(forward, log_likelihood), problem, batch)


def _fisher(problem: Problem, batch: int) -> Found:
    network = problem.network()

    def log_posterior(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        logits = functional_call(network, parameters, batch[0])
        return -cross_entropy(logits, batch[1], reduction="none"), torch.tensor([])

    return _updated(diag_fisher.build(log_posterior, per_sample=True), problem, batch)


def _updated(transform: Any, problem: Problem, batch: int) -> Found:
    state = transform.init(dict(problem.network().named_parameters()))
    for data in problem.loader(batch):
        state, _ = transform.update(state, data)
    return Found({name: value.detach() for name, value in state.prec_diag.items()})
