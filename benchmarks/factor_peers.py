"""Kronecker factors and diagonals in their eigenbases by other libraries: curvlinops and kronfluence.

Both are asked for what anchorhold finds: [W b] of a layer as one matrix, convolutions by *expand*, single precision.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import torch
from curvlinops import EKFACLinearOperator, KFACLinearOperator
from kronfluence.arguments import FactorArguments
from kronfluence.factor.covariance import fit_covariance_matrices_with_loader
from kronfluence.factor.eigen import fit_lambda_matrices_with_loader, perform_eigendecomposition
from kronfluence.module.utils import wrap_tracked_modules
from kronfluence.task import Task
from kronfluence.utils.state import State
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Data(NamedTuple):
    """A network, and what it is measured on."""

    model: nn.Module
    images: Tensor
    targets: Tensor

    def batches(self, size: int) -> list[tuple[Tensor, Tensor]]:
        """Return the data in batches."""
        return list(zip(self.images.split(size), self.targets.split(size), strict=True))


class Factors(NamedTuple):
    """G and A of a layer."""

    g: Tensor
    a: Tensor


class Turned(NamedTuple):
    """S of a layer in the eigenbases of its factors."""

    s: Tensor
    u_g: Tensor
    u_a: Tensor


class Eigen(NamedTuple):
    """What ``torch.linalg.eigh`` returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@contextmanager
def _eigenvectors_as_ours() -> Iterator[None]:
    """Take eigenvectors in double where single precision fails to converge, as anchorhold does."""
    eigh = torch.linalg.eigh

    def converging(matrix: Tensor) -> Eigen:
        try:
            return Eigen(*eigh(matrix))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch imports it without exporting it
            return Eigen(*(found.to(matrix.dtype) for found in eigh(matrix.double())))

    with mock.patch.object(torch.linalg, "eigh", converging), mock.patch("curvlinops.ekfac.eigh", converging):
        yield


CURVLINOPS = {"exact": "type-2", "sampled": "mc", "true": "empirical"}
"""What it calls the labels."""


def by_curvlinops(data: Data, batch: int, labels: str, *, rotated: bool) -> Callable[[], dict[str, Factors | Turned]]:
    """Return its factors, or S of its EKFAC; told the number of samples, which it would count itself otherwise."""
    kind = EKFACLinearOperator if rotated else KFACLinearOperator
    model, batches = copy.deepcopy(data.model), data.batches(batch)

    def measure() -> dict[str, Factors | Turned]:
        operator = kind(
            model,
            nn.CrossEntropyLoss(),
            list(model.parameters()),
            batches,
            check_deterministic=False,
            fisher_type=CURVLINOPS[labels],
            num_per_example_loss_terms=1,
            separate_weight_and_bias=False,
            num_data=len(data.images),
        )
        operator.compute_kronecker_factors()
        if not rotated:
            g, a = operator._gradient_covariances, operator._input_covariances
            return {name: Factors(g[name], a[name]) for name in g}
        with _eigenvectors_as_ours():
            operator.compute_eigenvalue_correction()
        s, u_g, u_a = (
            operator._corrected_eigenvalues,
            operator._gradient_covariances_eigenvectors,
            operator._input_covariances_eigenvectors,
        )
        return {name: Turned(s[name], u_g[name], u_a[name]) for name in s}

    return measure


class Classification(Task):
    """Cross-entropy of given labels, or of labels drawn from the model, as kronfluence's examples write it."""

    def compute_train_loss(self, batch: tuple[Tensor, Tensor], model: nn.Module, sample: bool = False) -> Tensor:
        inputs, targets = batch
        logits = model(inputs)
        if sample:
            with torch.no_grad():
                targets = torch.multinomial(logits.detach().softmax(-1), 1).flatten()
        return nn.functional.cross_entropy(logits, targets, reduction="sum")

    def compute_measurement(self, batch: tuple[Tensor, Tensor], model: nn.Module) -> Tensor:
        return self.compute_train_loss(batch, model)


def by_kronfluence(data: Data, batch: int, labels: str, *, rotated: bool) -> Callable[[], dict[str, Factors | Turned]]:
    """Return its factors, or its Λ, by the functions below its ``Analyzer``, which would write all of it to files.

    Eigenvectors are in single precision, as everyone's here; left to itself it takes double.
    """
    arguments = FactorArguments(
        strategy="ekfac", use_empirical_fisher=labels == "true", eigendecomposition_dtype=torch.float32
    )
    task, state = Classification(), State(cpu=True)
    model = copy.deepcopy(data.model).requires_grad_(False)
    model = wrap_tracked_modules(model=model, task=task)
    loader = DataLoader(TensorDataset(data.images, data.targets), batch_size=None, sampler=_slices(data, batch))

    def measure() -> dict[str, Factors | Turned]:
        samples, found = fit_covariance_matrices_with_loader(model, state, task, loader, arguments, disable_tqdm=True)
        gradients, inputs = found["gradient_covariance"], found["activation_covariance"]
        if not rotated:
            # Its G is the mean over positions, where the others' is the sum.
            seen = found["num_activation_covariance_processed"]
            return {n: Factors(gradients[n] / samples, inputs[n] / seen[n]) for n in gradients}
        with _eigenvectors_as_ours():
            eigen = perform_eigendecomposition(found, model, state, arguments, disable_tqdm=True)
        samples, fitted = fit_lambda_matrices_with_loader(
            model, state, task, loader, arguments, eigen, disable_tqdm=True
        )
        return {
            name: Turned(s / samples, eigen["gradient_eigenvectors"][name], eigen["activation_eigenvectors"][name])
            for name, s in fitted["lambda_matrix"].items()
        }

    return measure


def _slices(data: Data, batch: int) -> list[slice]:
    """Return which samples make each batch, so that a loader takes it in one piece, as fast as a list of batches."""
    return [slice(first, first + batch) for first in range(0, len(data.images), batch)]
