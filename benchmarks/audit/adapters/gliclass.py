"""GLiClass: the EWC that its Trainer makes, given a network that answers with logits and their loss."""

import contextlib
import io
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.checkouts import Checkout, importable
from benchmarks.audit.comparison import Importance
from benchmarks.audit.formulas import squared_batch_means
from benchmarks.audit.problem import Problem

CHECKOUT = Checkout(
    "Knowledgator/GLiClass",
    "40baa67cdea577449bc3f6a251646377b2cb0a6c",
    "gliclass/training.py",
    "2a5e26d5ad4f4165f88d0af1ef4e1c60d85b1650865f66b0736c3be23cd37153",
)
with importable(CHECKOUT.folder()), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    warnings.simplefilter("ignore")
    from gliclass.training import EWC

PACKAGE = "GLiClass"
VERSION = CHECKOUT.version


def cases() -> list[Case]:
    return [
        Case(
            "EWC",
            ("empirical Fisher", "Fisher"),
            _of(),
            "Squares the mean gradient of each batch, with the data's own labels, and divides all by the largest value,"
            " so that the size says nothing; in eval mode. Its Trainer measures in batches of 8, whatever its own, and"
            " divides the penalty by the batch size of the new task.",
            _largest_is_one,
        ),
        Case(
            "EWC, not normalized",
            ("empirical Fisher", "Fisher"),
            _of(normalize_fisher=False),
            "Squares the mean gradient of each batch, with the data's own labels; in eval mode.",
            squared_batch_means,
        ),
        Case(
            "EWC, labels drawn, not normalized",
            ("Fisher",),
            _of(normalize_fisher=False, fisher_estimation_method="diagonal"),
            "Squares the mean gradient of each batch, with one label drawn for each sample: on average 1/b of the"
            " definition, with the noise of as many draws as there are batches. Its Trainer has no argument for it.",
            drawn=True,
        ),
    ]


def _largest_is_one(problem: Problem, batch: int) -> Importance:
    found = squared_batch_means(problem, batch)
    largest = max(float(value.max()) for value in found.values())
    return {name: value / largest for name, value in found.items()}


class _Answering(nn.Module):
    """The network, called by keywords as a model of transformers."""

    config = SimpleNamespace(problem_type="single_label_classification")

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.network(inputs)
        return SimpleNamespace(logits=logits, loss=cross_entropy(logits, labels))


def _collated(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    inputs, labels = default_collate(samples)
    return {"inputs": inputs, "labels": labels}


def _of(**options: object) -> Callable[[Problem, int], Found]:
    def measure(problem: Problem, batch: int) -> Found:
        model = _Answering(problem.network())
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ewc = EWC(model, problem.dataset(), data_collator=_collated, batch_size=batch, **options)
        return Found({name.removeprefix("network."): torch.as_tensor(v) for name, v in ewc.fisher_info.items()})

    return measure
