"""LLM_EWC: its program, from its command's arguments to the file that it writes.

It takes a language model, a tokenizer, and questions with four answers, by name and from the network. Here they are
the network, digits in the place of questions, and ten answers. It computes on a GPU; here on the CPU.
"""

import contextlib
import io
import pickle
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.checkouts import Checkout, importable
from benchmarks.audit.comparison import Importance
from benchmarks.audit.path import Weights
from benchmarks.audit.problem import Problem
from benchmarks.stubs import stubbed

CHECKOUT = Checkout(
    "Neurotechnology/LLM_EWC",
    "a15e91a6a2f5927664e4d387d5e90c413e325b2b",
    "compute_ewc_params.py",
    "8edf2a65b04b6f1fb4be595bd6d9beb5eb6668bd495d3d8ae097de4e57f41227",
)
with stubbed("datasets", "transformers"), importable(CHECKOUT.folder()):
    import compute_ewc_params as program

PACKAGE = "LLM_EWC"
VERSION = CHECKOUT.version
CAP = 100.0
"""Its own default of what takes the place of an infinite square."""


def cases() -> list[Case]:
    return [
        Case(
            "compute_ewc_params.py",
            ("empirical Fisher", "Fisher"),
            _measured,
            "Squares the mean gradient of each batch in float16, where the square of what is below 0.00017 is 0, with"
            " the data's own labels; of the answers, not of the questions' text; in eval mode. It takes batches of 4,"
            " and its page says that training with batches above 1 ruins a benchmark.",
        ),
        Case(
            "compute_ewc_params.py, in float32",
            ("empirical Fisher", "Fisher"),
            _measured_in_float32,
            "Squares the mean gradient of each batch, with the data's own labels; in eval mode.",
        ),
    ]


class _Model(nn.Module):
    """The network as a causal language model that is asked for its last position's logits."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor, num_logits_to_keep: int) -> SimpleNamespace:
        self.seen.append(images)
        return SimpleNamespace(logits=self.network(images.to(next(self.parameters()).dtype))[:, None])

    def to(self, *_: object) -> "_Model":
        return self  # it stays on the CPU


class _Tokens(dict[str, Tensor]):
    def to(self, _: str) -> "_Tokens":
        return self


def _measured(problem: Problem, batch: int) -> Found:
    return _run(problem, batch, lambda network, dtype: network.to(dtype))


def _measured_in_float32(problem: Problem, batch: int) -> Found:
    return _run(problem, batch, lambda network, _: network, explained=True)


def _run(
    problem: Problem,
    batch: int,
    loaded: Callable[[nn.Sequential, torch.dtype], nn.Sequential],
    *,
    explained: bool = False,
) -> Found:
    models: list[_Model] = []

    def model(*_: object, torch_dtype: torch.dtype, **__: object) -> _Model:
        models.append(_Model(loaded(problem.network(), torch_dtype)))
        return models[0]

    def tokens(texts: list[str], **_: object) -> _Tokens:
        asked = [re.search(r"^image (\d+)$", text, re.MULTILINE) for text in texts]
        if all(asked):
            return _Tokens(images=problem.inputs[[int(found[1]) for found in asked if found]])
        return _Tokens(input_ids=torch.tensor([[0, int(text)] for text in texts]))  # a first token, as Gemma's has

    questions: list[dict[str, object]] = [
        {"subject": "digits", "question": f"image {at}", "choices": [""] * 4, "answer": int(label)}
        for at, label in enumerate(problem.labels)
    ]
    with _in_place_of_names(program, model, tokens, questions, problem.classes), tempfile.TemporaryDirectory() as place:
        output = Path(place) / "parameters.pkl"
        arguments = Namespace(pretrained_model_dir="", cache="", batch_size=batch, output=str(output), inf_cap=CAP)
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            program.main(arguments)
        _, found = pickle.loads(output.read_bytes())
    importance = {name.removeprefix("network."): value.detach() for name, value in found.items()}
    return Found(importance, {"explained": _squares(problem, models[0].seen)} if explained else {})


@contextmanager
def _in_place_of_names(
    module: object,
    model: Callable[..., _Model],
    tokens: Callable[..., _Tokens],
    questions: list[dict[str, object]],
    classes: int,
) -> Iterator[None]:
    """Give the program what it would load by name, and as many answers as there are classes."""
    with (
        mock.patch.multiple(
            module,
            AutoConfig=SimpleNamespace(from_pretrained=lambda *_, **__: None),
            AutoModelForCausalLM=SimpleNamespace(from_pretrained=model),
            AutoTokenizer=SimpleNamespace(from_pretrained=lambda *_: tokens),
            datasets=SimpleNamespace(load_dataset=lambda *_, **__: questions),
            MMLU_question_keys=[f"{answer}. " for answer in range(classes)],
        ),
        mock.patch.object(Tensor, "to", _staying(Tensor.to)),
    ):
        yield


def _staying(to: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda tensor, *given, **named: tensor if given == ("cuda",) else to(tensor, *given, **named)


def _squares(problem: Problem, batches: list[Tensor]) -> Importance:
    """The mean over the batches that the program drew of the square of the batch's mean gradient."""
    network = problem.network().double()
    total: Weights = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for inputs in batches:
        loss = nn.functional.cross_entropy(network(inputs.double()), problem.labels_of(inputs))
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += gradient.square() / len(batches)
    return {name: value.detach() for name, value in total.items()}
