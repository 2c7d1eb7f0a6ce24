"""SequeL: an algorithm fits a benchmark of one task.

With a learning rate of 0 the network that is measured after training is the same at every batch size. Its JAX half and
its loggers, which are not used here, are stood in for.
"""

import dataclasses
import warnings

import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import absolute_batch_means, mean_gradient
from benchmarks.audit.path import Follower, FollowSI, Recorder, Weights
from benchmarks.audit.problem import EPOCHS, LEARNING_RATE, Problem
from benchmarks.stubs import stubbed

UNUSED = (
    *("PIL", "beautifultable", "chex", "coloredlogs", "comet_ml", "flax", "functorch", "gpustat", "hydra", "jax"),
    *("jax_resnet", "matplotlib", "omegaconf", "optax", "torch.utils.tensorboard", "torchmetrics", "torchvision"),
    "wandb",
)
with stubbed(*UNUSED), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sequel.algos import base_algo
    from sequel.algos.pytorch import EWC, MAS, SI
    from sequel.algos.pytorch.pytorch_base_algo import PytorchRegularizationBaseAlgorithm
    from sequel.benchmarks.base_benchmark import Benchmark
    from sequel.utils.callbacks.metrics.metric_callback import MetricCallback

base_algo.install_logging = lambda: None  # it paints the log of the whole process

PACKAGE = "sequel-core"
DAMPING = 0.1


def cases() -> list[Case]:
    return [
        Case(
            "EWC",
            ("empirical Fisher", "Fisher"),
            _ewc,
            "Never clears the gradient and overwrites the importance at each batch, so what is left is the square of"
            " the sum of all batches' gradients and of the last training step's, divided by the number of batches.",
        ),
        Case(
            "MAS",
            ("MAS on logits",),
            _mas,
            "Absolute value of the mean gradient of each batch, of the mean over the classes in place of the sum, added"
            " up during training rather than after it (here at rest, for one epoch).",
        ),
        Case(
            "SI",
            ("SI",),
            _si,
            "Adds the path integral times the step, in place of the gradient times the step: it starts from 0 and stays"
            " 0.",
        ),
    ]


def _ewc(problem: Problem, batch: int) -> Found:
    found, recorder = _fit(problem, problem.network(), EWC, batch, learning_rate=0.0, epochs=1)
    batches = len(problem.loader(batch))
    mean = mean_gradient(problem)
    explained = {n: (g + batches * mean[n]).square() / batches for n, g in recorder.gradient.items()}
    return Found(found, {"explained": explained})


def _mas(problem: Problem, batch: int) -> Found:
    explanation = _MeansWhileTraining(problem, len(problem.loader(batch)))
    found, _ = _fit(problem, problem.network(), MAS, batch, explanation, learning_rate=0.0, epochs=1)
    return Found(found, {"explained": explanation.importance()})


def _si(problem: Problem, batch: int) -> Found:
    network, definition = problem.network(trained=False), FollowSI(DAMPING)
    found, _ = _fit(problem, network, SI, batch, definition, xi=DAMPING)
    nothing = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    return Found(found, {"SI": definition.importance(), "explained": nothing})


class _MeansWhileTraining:
    """The sum over steps of the absolute mean gradient of the mean squared logit, divided by the steps of an epoch."""

    def __init__(self, problem: Problem, batches: int) -> None:
        self.problem, self.batches = problem, batches
        self.total = {name: torch.zeros_like(p).double() for name, p in problem.trained.named_parameters()}

    def step(self, batch: tuple[Tensor, Tensor], gradient: Weights, before: Weights, after: Weights) -> None:
        drawn = dataclasses.replace(self.problem, inputs=batch[0], labels=batch[1])
        of_batch = absolute_batch_means(1 / self.problem.classes)(drawn, len(batch[0]))
        for name, value in of_batch.items():
            self.total[name] += value / self.batches

    def importance(self) -> Weights:
        return self.total


class _OneTask(Benchmark):
    """The digits as a benchmark of a single task."""

    dimensions = (64,)
    num_classes = classes_per_task = 10

    def __init__(self, problem: Problem, batch: int) -> None:
        self.problem = problem
        super().__init__(num_tasks=1, batch_size=batch, pin_memory=False)

    def prepare_datasets(self) -> tuple[dict[int, TensorDataset], dict[int, TensorDataset]]:
        first = torch.ones_like(self.problem.labels)
        data = {1: TensorDataset(self.problem.inputs, self.problem.labels, first)}
        return data, data


class _NoMetrics(MetricCallback):
    """The one that it insists on, doing nothing."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> object:
        return (
            (lambda *_, **__: None) if name.startswith("on_") or name == "connect" else super().__getattribute__(name)
        )


def _fit(
    problem: Problem,
    network: nn.Module,
    algorithm: type[PytorchRegularizationBaseAlgorithm],
    batch: int,
    *followers: Follower,
    learning_rate: float = LEARNING_RATE,
    epochs: int = EPOCHS,
    **settings: float,
) -> tuple[Weights, Recorder]:
    names = [name for name, _ in network.named_parameters()]
    optimizer = optim.Adam(network.parameters(), lr=learning_rate)
    recorder = Recorder(problem, network, optimizer, *followers)
    fitting = algorithm(
        backbone=network,
        benchmark=_OneTask(problem, batch),
        optimizer=optimizer,
        callbacks=[_NoMetrics()],
        device="cpu",
        **settings,
    )
    fitting.fit(epochs=epochs)
    torch.autograd.set_detect_anomaly(mode=False)  # its MAS turns this on for the whole process
    found = {name: getattr(fitting.backbone, f"model_{name.replace('.', '_')}_importance").detach() for name in names}
    return found, recorder
