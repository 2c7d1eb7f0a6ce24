"""Gradient scalers and 16-bit weights, where other libraries see gradients that are not the task's."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, consolidated, loss, net, weights


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_a_scaled_loss_changes_nothing(fused, measure):
    """A fused optimizer unscales inside its step, so the hooks see a scaled gradient."""
    runs = []
    for scale in (None, 1024.0):
        model = net(dtype=torch.float32)
        torch.manual_seed(1)
        guard = consolidated(_as_float(model), watch=[measure])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        guard.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        for i in range(3):
            optimizer.zero_grad()
            scaler.scale(loss(model, batch(i, dtype=torch.float32))).backward()
            scaler.step(optimizer)
            scaler.update()
        runs.append((weights(model), guard.consolidate([batch(0, dtype=torch.float32)])[measure].raw))
    for plain, scaled in zip(*runs, strict=True):
        for name, value in plain.items():
            torch.testing.assert_close(scaled[name], value, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_a_skipped_step_is_seen_as_skipped(fused, measure):
    model = net(dtype=torch.float32)
    guard = anchorhold.Guard(model, anchorhold.measures.measure(measure))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    guard.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(data, overflow):
        optimizer.zero_grad()
        scaler.scale(loss(model, data) * (float("inf") if overflow else 1.0)).backward()
        before = weights(model)
        scaler.step(optimizer)
        scaler.update()
        return all(torch.equal(before[name], value) for name, value in weights(model).items())

    assert not step(batch(0, dtype=torch.float32), overflow=False)
    kept = copy.deepcopy(guard.state_dict())
    assert step(batch(1, dtype=torch.float32), overflow=True)
    state = guard.state_dict()
    assert state["steps"] == kept["steps"]
    for name, value in kept["tensors"].items():
        assert torch.equal(state["tensors"][name], value), name


def test_state_of_16_bit_weights_is_kept_in_single_precision():
    """In bfloat16 a running average with decay 0.999 freezes: each increment falls below the rounding step."""
    model = nn.Linear(4, 3).bfloat16()
    guard = anchorhold.Guard(model, anchorhold.SOS(normalise=False), strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard.attach(optimizer)
    gradient = torch.full((3, 4), 0.5, dtype=torch.bfloat16)
    for _ in range(3000):
        model.weight.grad = gradient.clone()
        optimizer.step()
    omega = guard.consolidate()["SOS"].importance["weight"]
    assert omega.dtype == torch.float32
    expected = (0.25 * (1 - 0.999**3000)) ** 0.5
    torch.testing.assert_close(omega, torch.full((3, 4), expected), rtol=1e-4, atol=0)
    frozen = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(3000):
        frozen.mul_(0.999).add_(0.001 * 0.25)
    assert float(frozen.sqrt()) < 0.9 * expected  # what this test protects from


@pytest.mark.parametrize(("implicit", "left"), [(False, 0.5), (True, 1 / 1.5)])
def test_16_bit_weights_are_held(implicit, left):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).bfloat16()
    guard = anchorhold.Guard(
        model, anchorhold.L2(), strength=0.5, watch=["SI"], options=anchorhold.GuardOptions(implicit=implicit)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    guard.attach(optimizer)
    model(torch.randn(2, 4).bfloat16()).sum().backward()
    optimizer.step()
    guard.consolidate()
    with torch.no_grad():
        model.weight.add_(1.0)
    distance = (model.weight.detach() - guard.anchor["weight"]).abs().mean()
    optimizer.zero_grad()
    optimizer.step()
    held = (model.weight.detach() - guard.anchor["weight"]).abs().mean()
    assert float(held) == pytest.approx(left * float(distance), rel=0.02)


def _as_float(model):
    """Move the helper's float64 batches out of the way: consolidate on float32 inputs."""
    model.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    return model
