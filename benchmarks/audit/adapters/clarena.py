"""clarena: a Lightning trainer fits its EWC on one task, for two epochs at rest.

With a learning rate of 0 the network that is measured after training is the same at every batch size. Its command line,
data sets and attribution methods, which are not used here, are stood in for.
"""

import logging
import warnings
from functools import partial

from lightning import LightningDataModule, Trainer
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.comparison import Importance
from benchmarks.audit.formulas import squared_batch_means
from benchmarks.audit.problem import Problem
from benchmarks.stubs import stubbed

UNUSED = (
    *("PIL", "captum", "gdown", "hydra", "hydra_colorlog", "matplotlib", "omegaconf", "pandas", "pyrootutils"),
    *("rarfile", "tinyimagenet", "torchvision", "wandb"),
)
with stubbed(*UNUSED), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from clarena.backbones import CLBackbone
    from clarena.cl_algorithms.ewc import EWC
    from clarena.heads import HeadsCIL

PACKAGE = "clarena"
EPOCHS = 2


def cases() -> list[Case]:
    return [
        Case(
            "EWC",
            ("empirical Fisher", "Fisher"),
            _ewc,
            "Squares the mean gradient of each batch, with the data's own labels, and weights it with the batch size;"
            " divides the sum over one pass by the samples seen in all epochs, two here; in eval mode, without heads.",
            _explained,
        )
    ]


def _explained(problem: Problem, batch: int) -> Importance:
    return {name: value / EPOCHS for name, value in squared_batch_means(problem, batch).items()}


class _Body(CLBackbone):
    """All but the last layer."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__(output_dim=layers[-2].out_features)
        self.layers = layers

    def forward(self, input: Tensor, stage: str, task_id: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.layers(input), {}


class _Digits(LightningDataModule):
    def __init__(self, problem: Problem, batch: int) -> None:
        super().__init__()
        self.problem, self.batch = problem, batch

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self.problem.loader(self.batch)


def _ewc(problem: Problem, batch: int) -> Found:
    network = problem.network()
    without_head, head = network[:-1], network[-1]
    assert isinstance(without_head, nn.Sequential)
    assert isinstance(head, nn.Linear)
    body, heads = _Body(without_head), HeadsCIL(input_dim=head.in_features)
    algorithm = EWC(body, heads, parameter_change_reg_factor=1.0, when_calculate_fisher_information="train_end")
    algorithm.setup_task_id(1, problem.classes, partial(optim.SGD, lr=0.0), lr_scheduler=None)
    heads.heads["1"].load_state_dict(network[-1].state_dict())
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(algorithm, datamodule=_Digits(problem, batch))
    return Found({name.removeprefix("layers."): v.detach() for name, v in algorithm.parameter_importance[1].items()})
