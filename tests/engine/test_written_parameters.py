"""A forward pass that writes to parameters is refused, and they are put back."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.engine.tracing.uses import Writes
from anchorhold.errors import ModelError
from tests.engine.agreement import MEASURES, assert_agrees


class Writing(nn.Module):
    """Writes to the weight of one of its layers before it uses it."""

    def __init__(self, write):
        super().__init__()
        self.write, self.body, self.head = write, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        self.write(self.body.weight)
        return self.head(self.body(x).relu_())


def _assigned(weight):
    weight.data = F.normalize(weight.data)


WRITES = {
    "clamped data": lambda w: w.data.clamp_(-0.1, 0.1),
    "other data": _assigned,
    "a part": lambda w: w.detach().view(-1)[1:3].zero_(),
    "init": nn.init.zeros_,
    "mul_": torch.no_grad()(lambda w: w.mul_(0.9)),
    "+=": torch.no_grad()(lambda w: w.__iadd__(1.0)),
    "item": torch.no_grad()(lambda w: w.__setitem__(0, 1.0)),
    "out": torch.no_grad()(lambda w: torch.mul(w, 0.5, out=w)),
    "inplace": torch.no_grad()(lambda w: F.relu(w, inplace=True)),
    "several": torch.no_grad()(lambda w: torch._foreach_mul_([w], 0.5)),
    "operator": torch.no_grad()(lambda w: torch.ops.aten.mul_.Tensor(w, w)),
}


@pytest.mark.daily
@pytest.mark.parametrize("measured", ["all", "head only"])
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_refused_and_undone(write, samples, measured):
    model = Writing(WRITES[write])
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    chosen = None if measured == "all" else dict(model.head.named_parameters())
    with pytest.raises(ModelError, match=r"writes to its parameter 'body.weight' \(by .*They were put back"):
        sample_importance(model, [torch.randn(samples, 4)], LogLikelihood(), SQUARE, parameters=chosen)
    for name, parameter in model.named_parameters():
        address, values = before[name]
        assert parameter.data_ptr() == address
        assert torch.equal(parameter, values)


def test_undone_after_an_error_too():
    def write(weight):
        weight.data.zero_()
        raise KeyError("midway")

    model = Writing(write)
    before = model.body.weight.detach().clone()
    with pytest.raises(KeyError, match="midway"):
        sample_importance(model, [torch.randn(4, 4)], LogLikelihood(), SQUARE)
    assert torch.equal(model.body.weight, before)


def test_a_write_that_changes_nothing():
    model = Writing(lambda w: w.data.clamp_(-10, 10)).double()
    assert_agrees(model, torch.randn(4, 4).double(), None, MEASURES["Fisher"])


def test_what_cannot_be_undone_is_refused():
    model = nn.Linear(4, 3)
    writes = Writes(model)
    with torch.no_grad():
        model.weight.zero_()  # unseen
    with pytest.raises(ModelError, match="'weight' in a way that cannot be undone"):
        writes.check()


def test_parameters_that_share_memory():
    """As those of a recurrent layer do on a GPU."""
    flat = torch.randn(15)
    model = nn.Linear(4, 3)
    model.weight.data, model.bias.data = flat[:12].view(3, 4), flat[12:]
    writes, before = Writes(model), flat.clone()
    writes.before(torch.Tensor.zero_, (model.weight,), {})
    with torch.no_grad():
        model.weight.zero_()
    with pytest.raises(ModelError, match=r"'weight' \(by 'zero_'\)"):
        writes.check()
    assert torch.equal(flat, before)


def test_a_parameter_that_the_forward_pass_replaces_is_named():
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))

        def forward(self, x):
            self.weight = nn.Parameter(self.weight.detach().clamp(-1, 1))
            return x @ self.weight.T

    with pytest.raises(ModelError, match="puts another parameter in the place of 'weight'"):
        sample_importance(Replacing(), [torch.randn(4, 3)], LogLikelihood(), SQUARE)
