"""Layer, group, RMS and batch norm."""

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import ModelError
from tests.engine.agreement import MEASURES, assert_agrees
from tests.engine.networks import randomise


def _batch_norm(norm: nn.Module) -> nn.Module:
    nn.init.uniform_(norm.running_mean, -1, 1)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


CASES = {
    "layer norm": (lambda: nn.LayerNorm(4), (4,)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), (4,)),
    "layer norm along a sequence": (lambda: nn.LayerNorm(4), (3, 4)),
    "layer norm of two dimensions": (lambda: nn.LayerNorm((3, 4), eps=1e-2), (2, 3, 4)),
    "RMS norm": (lambda: nn.RMSNorm(4), (3, 4)),
    "RMS norm with eps": (lambda: nn.RMSNorm((3, 4), eps=0.1), (3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "group norm of features": (lambda: nn.GroupNorm(2, 4), (4,)),
    "batch norm of features": (lambda: _batch_norm(nn.BatchNorm1d(4)), (4,)),
    "batch norm along a sequence": (lambda: _batch_norm(nn.BatchNorm1d(4)), (4, 3)),
    "batch norm of images": (lambda: _batch_norm(nn.BatchNorm2d(4, eps=0.1)), (4, 2, 3)),
    "no parameters": (lambda: nn.LayerNorm(4, elementwise_affine=False), (4,)),
}


@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_norm(case, samples, measure):
    make, shape = CASES[case]
    numel = torch.Size(shape).numel()
    model = nn.Sequential(make(), nn.Tanh(), nn.Flatten(), nn.Linear(numel, 3))
    randomise(model).double()
    assert_agrees(model, torch.randn(samples, *shape).double(), None, MEASURES[measure])


class SequenceFirst(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(x.transpose(0, 1)).square().sum(0))


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.RMSNorm(4)], ids=["layer norm", "RMS norm"])
def test_sequence_first(norm):
    model = randomise(SequenceFirst(norm)).double()
    assert_agrees(model, torch.randn(3, 3, 4).double(), None, MEASURES["Fisher"])


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_without_running_statistics_is_refused(affine, samples):
    model = nn.Sequential(nn.BatchNorm2d(2, affine=affine, track_running_stats=False), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match="mixes samples"):
        sample_importance(model, [torch.randn(samples, 2, 2, 2)], LogLikelihood(), SQUARE)
