"""Avalanche: a strategy with one plugin trains one experience.

With a learning rate of 0 the network that is measured after training is the same at every batch size.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn, optim

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import absolute_batch_means, squared_batch_means
from benchmarks.audit.path import Follower, FollowRWalk, FollowSI, Recorder, Weights
from benchmarks.audit.problem import EPOCHS, LEARNING_RATE, Problem
from benchmarks.avalanche_steps import UNUSED
from benchmarks.stubs import stubbed

with stubbed(*UNUSED), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from avalanche.benchmarks.scenarios import benchmark_from_datasets
    from avalanche.benchmarks.utils.classification_dataset import _make_taskaware_tensor_classification_dataset
    from avalanche.training.plugins import (
        EWCPlugin,
        MASPlugin,
        RWalkPlugin,
        SupervisedPlugin,
        SynapticIntelligencePlugin,
    )
    from avalanche.training.supervised import Naive

PACKAGE = "avalanche-lib"
DAMPING = 0.1
EPSILON = torch.finfo(torch.float32).eps


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
            "Takes the absolute value of the mean gradient of each batch; in train mode, so dropout is on.",
            absolute_batch_means(),
        ),
        Case(
            "SI",
            ("SI",),
            _si,
            "Keeps views of the live weights as their old values, so on a CPU every step is 0.",
        ),
        Case(
            "SI, old weights copied",
            ("SI",),
            _si_with_copies,
            "What it computes where `.cpu()` makes a copy, on a GPU: values above 0.001 are cut off there, and those"
            " below 0 are kept.",
        ),
        Case(
            "RWalk",
            ("RWalk",),
            _rwalk,
            "The Fisher part squares the mean gradient of each batch; the path part is the definition.",
        ),
    ]


def _ewc(problem: Problem, batch: int) -> Found:
    plugin = EWCPlugin(ewc_lambda=1.0)
    _train(problem, problem.network(), plugin, batch, learning_rate=0.0, epochs=1)
    return Found({name: value.data for name, value in plugin.importances[0].items()})


def _mas(problem: Problem, batch: int) -> Found:
    plugin = MASPlugin()
    _train(problem, problem.network(), plugin, batch, learning_rate=0.0, epochs=1)
    return Found({name: value.data for name, value in plugin.importance.items()})


def _si(problem: Problem, batch: int) -> Found:
    plugin, network = SynapticIntelligencePlugin(1.0, eps=DAMPING), problem.network(trained=False)
    definition = FollowSI(DAMPING)
    _train(problem, network, plugin, batch, definition)
    nothing = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    return Found(_si_importance(plugin, network), {"SI": definition.importance(), "explained": nothing})


def _si_with_copies(problem: Problem, batch: int) -> Found:
    plugin, network = SynapticIntelligencePlugin(1.0, eps=DAMPING), problem.network(trained=False)
    definition = FollowSI(DAMPING)
    with _copied_weights():
        _train(problem, network, plugin, batch, definition)
    cut = {name: value.clamp(max=0.001) for name, value in definition.unclamped().items()}
    return Found(_si_importance(plugin, network), {"SI": definition.importance(), "explained": cut})


def _rwalk(problem: Problem, batch: int) -> Found:
    plugin, network = RWalkPlugin(), problem.network(trained=False)
    settings = {"alpha": plugin.ewc_alpha, "every": plugin.delta_t, "epsilon": EPSILON}
    definition, explanation = FollowRWalk(network, **settings), FollowRWalk(network, **settings, square_of_mean=True)
    _train(problem, network, plugin, batch, definition, explanation)
    found = {name: value.data for name, value in plugin.exp_penalties.items()}
    return Found(found, {"RWalk": definition.importance(), "explained": explanation.importance()})


def _train(
    problem: Problem,
    network: nn.Module,
    plugin: SupervisedPlugin,
    batch: int,
    *followers: Follower,
    learning_rate: float = LEARNING_RATE,
    epochs: int = EPOCHS,
) -> None:
    optimizer = optim.Adam(network.parameters(), lr=learning_rate)
    Recorder(problem, network, optimizer, *followers)
    data = _make_taskaware_tensor_classification_dataset(problem.inputs, problem.labels, task_labels=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no loggers
        strategy = Naive(
            model=network,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=batch,
            train_epochs=epochs,
            plugins=[plugin],
            evaluator=None,
        )
    strategy.train(benchmark_from_datasets(train=[data]).train_stream[0])


def _si_importance(plugin: SynapticIntelligencePlugin, network: nn.Module) -> Weights:
    return {name: plugin.ewc_data[1][name].data.view_as(p) for name, p in network.named_parameters()}


@contextmanager
def _copied_weights() -> Iterator[None]:
    """Have it keep copies of the weights, as it does when they come from a GPU."""
    original = SynapticIntelligencePlugin.extract_weights

    def extract_weights(model: nn.Module, target: dict[str, Any], excluded_parameters: set[str]) -> None:
        original(model, target, excluded_parameters)
        for kept in target.values():
            kept.data = kept.data.clone()

    SynapticIntelligencePlugin.extract_weights = staticmethod(extract_weights)
    try:
        yield
    finally:
        SynapticIntelligencePlugin.extract_weights = staticmethod(original)
