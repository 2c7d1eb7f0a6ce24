"""The factors' benchmark: what its differences from the other libraries are taken of."""

import pytest
import torch
from torch import nn

from benchmarks.stubs import stubbed

pytest.importorskip("curvlinops")
with stubbed("kronfluence"):  # which nothing here calls
    from benchmarks.factor_peers import Data, by_curvlinops
    from benchmarks.factors import _factors_off, _rotated_off


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    return Data(model, torch.randn(12, 6), torch.randint(3, (12,)))


@pytest.mark.parametrize("rotated", [False, True])
def test_its_factors_are_those_of_curvlinops(data, rotated):
    theirs = by_curvlinops(data, 4, "exact", rotated=rotated)()
    off = (_rotated_off if rotated else _factors_off)(data, "exact", theirs)
    assert 0 < off < 1e-3
    wrong = {name: found._replace(**{found._fields[0]: 1.1 * found[0]}) for name, found in theirs.items()}
    assert (_rotated_off if rotated else _factors_off)(data, "exact", wrong) > 0.05
