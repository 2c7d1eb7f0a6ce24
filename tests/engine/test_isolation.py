"""Measuring leaves no trace, also when it fails midway."""

import copy
import dataclasses
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from tests import oracles


class Counting(nn.Module):
    """Writes to a buffer, replaces another and draws random numbers in every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        self.replaced = self.replaced + torch.randn(2)
        return x


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = 10**9

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise KeyError("midway")
        return x


def _model():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), Counting(), Failing(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
    )
    model.train()
    model[1].eval()  # a frozen norm in a model that is being trained
    model[0].weight.requires_grad_(False)
    model(torch.randn(4, 2, 3, 3)).sum().backward()
    return model


def _trace(model):
    return {
        "modes": [module.training for module in model.modules()],
        "values": {name: value.clone() for name, value in model.state_dict().items()},
        "buffers": {name: id(buffer) for name, buffer in model.named_buffers()},
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()],
        "random": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def _assert_same(a, b):
    assert a.keys() == b.keys()
    for key in ("modes", "buffers", "requires_grad", "grad mode"):
        assert a[key] == b[key], key
    torch.testing.assert_close(a["values"], b["values"], rtol=0, atol=0)
    assert torch.equal(a["random"], b["random"])
    for x, y in zip(a["gradients"], b["gradients"], strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert x[0] == y[0]
            assert torch.equal(x[1], y[1])


@pytest.mark.parametrize("labels", ["exact", "sampled"])
@pytest.mark.parametrize("samples", [1, 5])
def test_no_trace(samples, labels):
    model, inputs = _model(), [torch.randn(samples, 2, 3, 3) for _ in range(2)]
    before = _trace(model)
    with torch.no_grad():
        found = sample_importance(model, inputs, LogLikelihood(labels), SQUARE)
    assert all(value.any() for value in found.values.values())
    _assert_same(before, _trace(model))


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4])
def test_no_trace_after_an_error(calls):
    model, inputs = _model(), [torch.randn(5, 2, 3, 3) for _ in range(3)]
    model[3].left = calls
    before = _trace(model)
    with pytest.raises(KeyError, match="midway"):
        sample_importance(model, inputs, LogLikelihood(), SQUARE)
    _assert_same(before, _trace(model))


def test_a_backward_pass_that_is_still_to_come():
    """Restoring a batch norm's statistics must not look like a change of them to autograd."""
    model, inputs = _model(), torch.randn(4, 2, 3, 3)
    loss = model(inputs).square().sum()
    sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    loss.backward()


def test_inside_inference_mode():
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    expected = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    with torch.inference_mode():
        found = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    torch.testing.assert_close(found.values, expected.values)


def test_buffer_made_in_inference_mode():
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    expected = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    with torch.inference_mode():
        model.register_buffer("seen", torch.zeros(3))
    found = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    torch.testing.assert_close(found.values, expected.values)


def test_the_mode_the_model_is_in_makes_no_difference():
    model, inputs = _model(), torch.randn(5, 2, 3, 3)
    trained = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    evaluated = sample_importance(copy.deepcopy(model).eval(), [inputs], LogLikelihood(), SQUARE)
    torch.testing.assert_close(trained.values, evaluated.values, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_layer_that_is_used_twice_keeps_its_parameters(dtype):
    """Replacing a tied module's parameters for one call is where torch itself may leave the wrong ones behind."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.PReLU())
    model = nn.Sequential(layer, layer, nn.Linear(4, 3)).to(dtype)
    with torch.no_grad():
        model[2].weight.mul_(200)  # certain enough for outputs in float64
    before = dict(model.named_parameters(remove_duplicate=False))
    found = sample_importance(model, [torch.randn(5, 4, dtype=dtype)], LogLikelihood(), SQUARE)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert found.fallback
    assert before.keys() == after.keys()
    assert all(after[name] is parameter for name, parameter in before.items())


def test_caches_for_generation_are_not_filled():
    class Config:
        use_cache = True

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.layer, self.cached = Config(), nn.Linear(3, 2), []

        def forward(self, x):
            if self.config.use_cache and not self.training:
                self.cached.append(x)
            return self.layer(x)

    model = Writer()
    sample_importance(model, [torch.randn(4, 3)], LogLikelihood(), SQUARE)
    assert not model.cached
    assert model.config.use_cache is True


def test_configs_of_other_kinds_are_left_alone():
    @dataclasses.dataclass(frozen=True)
    class Fixed:
        use_cache: bool = True

    class MeanKey(nn.Linear):
        @property
        def config(self):
            raise RuntimeError

    model = nn.Sequential(nn.Linear(3, 3), MeanKey(3, 2))
    model.config = Fixed()
    sample_importance(model, [torch.randn(4, 3)], LogLikelihood(), SQUARE)


def test_what_holds_for_the_whole_process_is_put_back_when_the_last_thread_has_measured():
    began, may_end = threading.Event(), threading.Event()
    kept = torch.utils.checkpoint.CheckpointFunction

    class Slow(nn.Linear):
        def forward(self, x):
            began.set()
            assert may_end.wait(60)
            return super().forward(x)

    thread = threading.Thread(target=sample_importance, args=(Slow(3, 2), [torch.randn(4, 3)], LogLikelihood(), SQUARE))
    thread.start()
    assert began.wait(60)
    sample_importance(nn.Linear(3, 2), [torch.randn(4, 3)], LogLikelihood(), SQUARE)
    assert torch.utils.checkpoint.CheckpointFunction is not kept  # the other one still measures
    may_end.set()
    thread.join()
    assert torch.utils.checkpoint.CheckpointFunction is kept


def test_recurrent_layers_list_their_own_weights_afterwards():
    class Flattening(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    model = Flattening()
    sample_importance(model, [torch.randn(4, 5, 3)], LogLikelihood(), SQUARE)
    own = dict(model.rnn.named_parameters())
    assert all(weight is own[name] for weight, name in zip(model.rnn._flat_weights, own, strict=True))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("covered", [True, False])
def test_a_model_that_writes_to_its_inputs_sees_them_as_they_were_each_time(size, covered):
    class Scaling(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = nn.Linear(3, 4), nn.Identity() if covered else nn.PReLU()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.act(self.layer(x.div_(2.0))))

    model, inputs = Scaling().double(), torch.randn(size, 3).double()
    before = inputs.clone()
    found = sample_importance(model, [inputs], LogLikelihood(), SQUARE).values
    assert torch.equal(inputs, before)
    expected = oracles.importance(
        model, oracles.one_by_one(inputs), oracles.every_label, torch.square, lambda net, x: net(x.clone())
    )
    for name, value in expected.items():
        assert oracles.relative_error(found[name], value) < 1e-10


def test_models_that_draw_from_python_and_numpy_leave_both_where_they_were():
    class Drawing(nn.Linear):
        def forward(self, x):
            random.random()
            np.random.rand()  # noqa: NPY002
            return super().forward(x)

    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    sample_importance(Drawing(3, 2), [torch.randn(4, 3)], LogLikelihood(), SQUARE)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # noqa: NPY002
