"""Importances have the digits of the parameters, whoever enters autocast, and autocast is as before afterwards."""

import _thread
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.isolation import autocast_off
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood

SET_ENABLED = torch.set_autocast_enabled


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Inside(Plain):
    """Enters autocast in its forward pass, as it is written."""

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return super().forward(x)


class Converting(Plain):
    """Works under autocast only."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.body(x).bfloat16())


def fisher(model, inputs):
    return sample_importance(model, [inputs], LogLikelihood(), SQUARE).values


def assert_autocast_works():
    assert torch.set_autocast_enabled is SET_ENABLED
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def wrapped():
    """A model whose forward pass was replaced by one under autocast, long before."""
    model = Plain()
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return model


@pytest.mark.parametrize("build", [Inside, wrapped])
def test_autocast_in_the_model_makes_no_difference(build):
    model, inputs = build(), torch.randn(6, 8)
    torch.testing.assert_close(fisher(model, inputs), fisher(Plain(), inputs), rtol=0, atol=0)
    assert model(inputs).dtype == torch.bfloat16
    assert_autocast_works()


def test_a_model_of_two_precisions_keeps_its_autocast():
    model, inputs = Inside(), torch.randn(6, 8)
    expected = fisher(Plain(), inputs)
    model.head.bfloat16()
    for name, value in fisher(model, inputs).items():
        assert (value - expected[name]).norm() < 0.05 * expected[name].norm()


def test_a_model_that_needs_autocast_is_told_why_it_fails():
    with pytest.raises(RuntimeError, match="same dtype") as raised:
        fisher(Converting(), torch.randn(6, 8))
    assert any("measured without autocast" in note for note in raised.value.__notes__)
    assert_autocast_works()
    with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
        fisher(nn.Linear(5, 2), torch.randn(6, 8))
    assert not any("autocast" in note for note in raised.value.__notes__)


def test_an_error_about_something_else_is_not_put_down_to_autocast():
    class Full(Inside):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError("not enough memory")

    with pytest.raises(RuntimeError, match="not enough memory") as raised:
        fisher(Full(), torch.randn(6, 8))
    assert not any("autocast" in note for note in getattr(raised.value, "__notes__", ()))


def test_other_threads_keep_theirs_and_regions_may_overlap():
    model, found = nn.Linear(2, 2), {}
    entered, leave = threading.Event(), threading.Event()

    def other():
        with torch.autocast("cpu", torch.bfloat16):
            found["untouched"] = torch.is_autocast_enabled("cpu")
        with autocast_off(model):
            entered.set()
            leave.wait(10)
            with torch.autocast("cpu", torch.bfloat16):
                found["measuring"] = torch.is_autocast_enabled("cpu")

    with autocast_off(model):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
        torch.set_autocast_enabled("cpu", True)
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", torch.bfloat16):  # this thread has left, the other one has not
        assert torch.is_autocast_enabled("cpu")
    leave.set()
    thread.join()
    assert found == {"untouched": True, "measuring": False}
    assert_autocast_works()


class Checkpointed(Inside):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def test_what_is_checkpointed_is_computed_again_in_a_thread_of_torchs_own():
    """Where the backward pass of a GPU runs; here, one that Python's threading has not started either."""
    model, inputs, found = Checkpointed(), torch.randn(6, 8), []
    done = threading.Event()

    def backward():
        try:
            found.extend(torch.autograd.grad(outputs.sum(), list(model.parameters())))
        finally:
            done.set()

    with autocast_off(model):
        outputs = model(inputs)
        _thread.start_new_thread(backward, ())
        assert done.wait(10)
    plain = Plain()
    expected = torch.autograd.grad(plain(inputs).sum(), list(plain.parameters()))
    torch.testing.assert_close(found, list(expected))
    assert_autocast_works()
