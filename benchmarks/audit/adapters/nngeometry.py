"""nngeometry: the diagonal of the Fisher information matrix of a loader."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import definition
from benchmarks.audit.path import Weights
from benchmarks.audit.problem import Problem
from benchmarks.stubs import stubbed

with stubbed("torchvision"):
    from nngeometry.metrics import FIM, FIM_MonteCarlo
    from nngeometry.object import PMatDiag

PACKAGE = "nngeometry"


def cases() -> list[Case]:
    return [
        Case(
            "FIM",
            ("Fisher",),
            _exact,
            "Not a number: the closed form has √(1 − Σq), which float32 rounds below 0 for a few samples that the"
            " network is certain of. Without those samples it is the definition.",
        ),
        Case("FIM, float64", ("Fisher",), _exact_in_float64, "The definition.", definition("Fisher")),
        Case(
            "FIM_MonteCarlo",
            ("Fisher",),
            _drawn,
            "The definition with one label drawn for each sample.",
            drawn=True,
        ),
    ]


def _exact(problem: Problem, batch: int) -> Found:
    network = problem.network()
    return Found(_named(network, FIM(network, problem.loader(batch), PMatDiag).get_diag()))


def _exact_in_float64(problem: Problem, batch: int) -> Found:
    network = problem.network().double()
    loader = DataLoader(TensorDataset(problem.inputs.double()), batch_size=batch)
    torch.set_default_dtype(torch.float64)  # it makes tensors of its own in the default type
    try:
        return Found(_named(network, FIM(network, loader, PMatDiag).get_diag()))
    finally:
        torch.set_default_dtype(torch.float32)


def _drawn(problem: Problem, batch: int) -> Found:
    network = problem.network()
    return Found(_named(network, FIM_MonteCarlo(network, problem.loader(batch), PMatDiag).get_diag()))


def _named(network: nn.Module, diagonal: Tensor) -> Weights:
    parts = diagonal.split([p.numel() for p in network.parameters()])
    return {name: part.view_as(p) for (name, p), part in zip(network.named_parameters(), parts, strict=True)}
