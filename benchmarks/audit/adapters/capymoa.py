"""CapyMOA: its own loop trains two tasks, the second one only because the first is consolidated when it begins.

With a learning rate of 0 the network that is measured after training is the same at every batch size. Needs a Java
machine, which CapyMOA starts when it is imported.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Subset

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import absolute_batch_means, squared_batch_means
from benchmarks.audit.path import Follower, FollowRWalk, FollowSI, Recorder, Weights
from benchmarks.audit.problem import EPOCHS, LEARNING_RATE, Problem
from benchmarks.stubs import stubbed

with stubbed("torchvision"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from capymoa.ocl.evaluation import ocl_train_eval_loop
    from capymoa.ocl.strategy import EWC, MAS, SI, RWalk
    from capymoa.stream import Schema

PACKAGE = "capymoa"
DAMPING = 0.1
EPSILON = torch.finfo(torch.float32).eps
Learner = TypeVar("Learner")


def cases() -> list[Case]:
    return [
        Case(
            "EWC",
            ("empirical Fisher", "Fisher"),
            _ewc,
            "Squares the mean gradient of each batch, with the data's own labels; in eval mode.",
            squared_batch_means,
        ),
        Case(
            "MAS",
            ("MAS on logits",),
            _mas,
            "Takes the absolute value of the mean gradient of each batch, in train mode; the running average starts"
            " from 0, so the first task counts half.",
            absolute_batch_means(0.5),
        ),
        Case("SI", ("SI",), _si, "The definition."),
        Case(
            "RWalk",
            ("RWalk",),
            _rwalk,
            "The Fisher part squares the mean gradient of each batch; the path part is the definition.",
        ),
    ]


def _ewc(problem: Problem, batch: int) -> Found:
    samples = len(problem.labels)

    def learner(schema: Schema, network: nn.Module, optimizer: optim.Optimizer) -> EWC:
        return EWC(schema, network, optimizer, lambda_=1.0, fim_buffer=samples, fim_batch_size=batch)

    network = problem.network()
    trained = _train(problem, network, learner, batch, learning_rate=0.0, epochs=1)
    return Found(_named(network, trained._fisher_diags))


def _mas(problem: Problem, batch: int) -> Found:
    samples = len(problem.labels)

    def learner(schema: Schema, network: nn.Module, optimizer: optim.Optimizer) -> MAS:
        return MAS(schema, network, optimizer, lambda_=1.0, buffer_capacity=samples, importance_batch_size=batch)

    network = problem.network()
    trained = _train(problem, network, learner, batch, learning_rate=0.0, epochs=1)
    return Found(_named(network, trained._importance))


def _si(problem: Problem, batch: int) -> Found:
    network, definition = problem.network(trained=False), FollowSI(DAMPING)

    def learner(schema: Schema, network: nn.Module, optimizer: optim.Optimizer) -> SI:
        return SI(schema, network, optimizer, lambda_=1.0, damping=DAMPING)

    trained = _train(problem, network, learner, batch, definition)
    found = _named(network, trained._buf_importance)
    return Found(found, {"SI": definition.importance(), "explained": definition.importance()})


def _rwalk(problem: Problem, batch: int) -> Found:
    network = problem.network(trained=False)
    definition = FollowRWalk(network, alpha=0.9, every=10, epsilon=EPSILON)
    explanation = FollowRWalk(network, alpha=0.9, every=10, epsilon=EPSILON, square_of_mean=True)

    def learner(schema: Schema, network: nn.Module, optimizer: optim.Optimizer) -> RWalk:
        return RWalk(schema, network, optimizer, lambda_=1.0)

    trained = _train(problem, network, learner, batch, definition, explanation)
    found = _named(network, trained._penalties)
    return Found(found, {"RWalk": definition.importance(), "explained": explanation.importance()})


def _train(
    problem: Problem,
    network: nn.Module,
    make: Callable[[Schema, nn.Module, optim.Optimizer], Learner],
    batch: int,
    *followers: Follower,
    learning_rate: float = LEARNING_RATE,
    epochs: int = EPOCHS,
) -> Learner:
    optimizer = optim.Adam(network.parameters(), lr=learning_rate)
    task = problem.loader(batch)
    Recorder(problem, network, optimizer, *followers, steps=epochs * len(task))
    learner = make(_schema(problem), network, optimizer)
    next_task = DataLoader(Subset(problem.dataset(), range(batch)), batch_size=batch)
    ocl_train_eval_loop(learner, [task, next_task], [next_task, next_task], epochs=epochs)
    return learner


def _schema(problem: Problem) -> Schema:
    pixels = [f"pixel{n}" for n in range(problem.inputs.shape[1])]
    classes = {"digit": [str(n) for n in range(problem.classes)]}
    return Schema.from_custom([*pixels, "digit"], target="digit", categories=classes)


def _named(network: nn.Module, values: Iterable[Tensor]) -> Weights:
    return {name: value.detach() for (name, _), value in zip(network.named_parameters(), values, strict=True)}
