"""CL-Gym: EWC is told that a task has ended, which is the call that its trainer makes.

The trainer itself cannot be used: it hands EWC's step a tensor of task numbers, and the step asks whether it is larger
than 1, which fails for more than one sample. EWC measures in batches of 32, whatever the trainer's.
"""

import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import definition
from benchmarks.audit.problem import Problem
from benchmarks.stubs import stubbed

with stubbed("PIL", "comet_ml", "matplotlib", "seaborn", "torchvision", "wandb"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cl_gym.algorithms import EWC
    from cl_gym.backbones import ContinualBackbone
    from cl_gym.benchmarks import Benchmark

PACKAGE = "cl-gym"


def cases() -> list[Case]:
    return [
        Case(
            "EWC",
            ("empirical Fisher", "Fisher"),
            _ewc,
            "Every sample's own gradient, with the data's own labels, of a number of samples to be chosen: right. In"
            " batches of 32 always; its trainer stops with an error at batches larger than 1.",
            definition("empirical Fisher"),
        )
    ]


class _Backbone(ContinualBackbone):
    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network

    def forward(self, inp: Tensor, head_ids: Tensor | None = None) -> Tensor:
        outputs: Tensor = self.network(inp)
        return outputs


class _OneTask(Benchmark):
    def __init__(self, problem: Problem) -> None:
        super().__init__(num_tasks=1)
        self.trains[1] = self.tests[1] = TensorDataset(problem.inputs, problem.labels, torch.ones_like(problem.labels))


def _ewc(problem: Problem, _: int) -> Found:
    network = problem.network()
    backbone = _Backbone(network)
    algorithm = EWC(backbone, _OneTask(problem), {"device": "cpu"}, fisher_sample_size=len(problem.labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it pins memory where there is no GPU
        algorithm.training_task_end()
    names = [name for name, _ in network.named_parameters()]
    return Found({name: getattr(backbone, f"network_{name.replace('.', '_')}_fisher") for name in names})
