"""A training step of Avalanche's own loop, with one of its plugins, in the second of two experiences."""

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn, optim

from benchmarks.stubs import stubbed

# What Avalanche imports for its datasets, loggers and other methods, and a training step never touches.
UNUSED = (
    *("GPUtil", "PIL", "gdown", "matplotlib", "mpl_toolkits", "psutil", "pytorchcv", "qpsolvers"),
    *("torch.utils.tensorboard", "torchmetrics", "torchvision", "wandb"),
)
with stubbed(*UNUSED), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from avalanche.benchmarks.scenarios import benchmark_from_datasets
    from avalanche.benchmarks.utils.classification_dataset import _make_taskaware_tensor_classification_dataset
    from avalanche.training.plugins import EWCPlugin, MASPlugin, SynapticIntelligencePlugin
    from avalanche.training.supervised import Naive

PLUGINS: dict[str, Callable[[], list[Any]]] = {
    "Avalanche, no plugin": list,
    "Avalanche SI": lambda: [SynapticIntelligencePlugin(si_lambda=1.0)],
    "Avalanche EWC": lambda: [EWCPlugin(ewc_lambda=1.0)],
    "Avalanche MAS": lambda: [MASPlugin(lambda_reg=1.0, alpha=0.5)],
}


BATCH = 256


class Training:
    """A strategy that has one experience behind it and is about to train the second."""

    def __init__(self, plugins: list[Any], model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        data = [_make_taskaware_tensor_classification_dataset(inputs, labels, task_labels=0) for _ in range(2)]
        first, self.second = benchmark_from_datasets(train=data).train_stream
        self.plugins = plugins
        self.batch = [inputs[:BATCH], labels[:BATCH], labels.new_zeros(BATCH)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are no loggers
            self.strategy = Naive(
                model=model,
                optimizer=optim.Adam(model.parameters(), lr=1e-4, fused=True),
                criterion=nn.CrossEntropyLoss(),
                train_mb_size=BATCH,
                plugins=plugins,
                evaluator=None,
            )
        self.strategy.train(first)

    def step(self) -> Callable[[], None]:
        """Return its own step on a batch that is loaded already: an epoch over a single one."""
        strategy = self.strategy
        strategy.experience = self.second
        for plugin in self.plugins:
            plugin.before_training_exp(strategy)
        strategy.model.train()
        strategy.dataloader = [self.batch]
        one: Callable[[], None] = strategy.training_epoch
        return one

    def experience(self) -> Callable[[], None]:
        """Return its own training of a whole experience, data loading included."""
        return lambda: self.strategy.train(self.second)
