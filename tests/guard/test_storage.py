"""State in fewer bits, or elsewhere: what it costs in precision, and that nothing else changes."""

import copy

import pytest
import torch

import anchorhold
from anchorhold.errors import ConfigurationError
from tests.guard.helpers import batch, loss, net
from tests.helpers import grouped

PATH = ("SI", "SOS")
MEASURES = (*PATH, "EWC")


def learned(measure, tasks=2, steps=40, dtype=torch.float32, device="cpu", **storage):
    """A model that has learned two tasks, its guard, and the middle of a third."""
    model = net(dtype=dtype).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard = anchorhold.Guard(model, measure, strength=1.0, **grouped(**storage))
    guard.attach(optimizer)
    for task in range(tasks + 1):
        for i in range(steps if task < tasks else 3):
            x, y = batch(100 * task + i, dtype=dtype)
            optimizer.zero_grad()
            loss(model, (x.to(device), y.to(device))).backward()
            optimizer.step()
        if task < tasks:
            x, y = batch(100 * task, n=50, dtype=dtype)
            guard.consolidate([(x.to(device), y.to(device))])
    return model, guard, optimizer


def tensors(guard, kind):
    return {key: value for key, value in guard.state_dict()["tensors"].items() if key.startswith(kind)}


@pytest.mark.parametrize("measure", MEASURES)
def test_what_rests_is_kept_in_16_bits_and_the_path_is_not(measure):
    _, guard, _ = learned(measure, state_dtype=torch.bfloat16)
    for kind in ("anchor", "total"):
        assert {tensor.dtype for tensor in tensors(guard, kind).values()} == {torch.bfloat16}
    for kind in ("running", "start"):
        assert {tensor.dtype for tensor in tensors(guard, kind).values()} <= {torch.float32}
    assert {tensor.dtype for tensor in guard.importance.values()} == {torch.bfloat16}


@pytest.mark.parametrize("measure", MEASURES)
def test_16_bits_change_importance_and_weights_by_their_rounding_alone(measure):
    model, whole, _ = learned(measure)
    rounded_model, rounded, _ = learned(measure, state_dtype=torch.bfloat16)
    for name, omega in whole.importance.items():
        torch.testing.assert_close(rounded.importance[name].float(), omega, rtol=0.02, atol=0.02 * float(omega.max()))
    for mine, other in zip(model.parameters(), rounded_model.parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rate", [1e-3, 1e-4, 1e-5])
def test_16_bits_round_si_alone_however_short_the_path(rate):
    """With a small ξ, ω̃ is divided by the squared way, which a rounded θ(0) would make up when steps are small."""

    def found(**storage):
        model = net(dtype=torch.float32)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        guard = anchorhold.Guard(model, anchorhold.SI(damping=1e-8), **grouped(**storage))
        guard.attach(optimizer)
        for i in range(10):
            optimizer.zero_grad()
            loss(model, batch(i, dtype=torch.float32)).backward()
            optimizer.step()
        guard.consolidate()
        return guard.importance

    whole, rounded = found(), found(state_dtype=torch.bfloat16)
    for name, omega in whole.items():
        assert torch.equal(rounded[name], omega.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("measure", "bytes_a_parameter"), [("SOS", 2 + 2 + 4), ("EWC", 2 + 2), ("SI", 2 + 2 + 2 + 4), ("L2", 2 + 2)]
)
def test_the_bytes_of_a_16_bit_model(measure, bytes_a_parameter):
    model, guard, _ = learned(measure, dtype=torch.bfloat16, state_dtype=torch.bfloat16)
    held = sum(tensor.nbytes for tensor in guard.state_dict()["tensors"].values())
    assert held == bytes_a_parameter * sum(parameter.numel() for parameter in model.parameters())


def test_the_anchor_of_a_16_bit_model_is_exact():
    model, guard, _ = learned("SOS", tasks=0, dtype=torch.bfloat16, state_dtype=torch.bfloat16)
    guard.consolidate()
    for name, parameter in model.named_parameters():
        assert torch.equal(guard.anchor[name], parameter)
    assert guard.penalty() == 0


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("saved", "loaded"), [(None, torch.bfloat16), (torch.bfloat16, None)])
def test_a_state_is_taken_over_in_the_precision_of_whoever_takes_it(measure, saved, loaded, tmp_path):
    model, guard, _ = learned(measure, state_dtype=saved)
    guard.save(tmp_path / "guard.safetensors")
    other = anchorhold.Guard(
        copy.deepcopy(model), measure, strength=1.0, options=anchorhold.GuardOptions(state_dtype=loaded)
    )
    other.load(tmp_path / "guard.safetensors")
    for name, omega in guard.importance.items():
        assert other.importance[name].dtype == (loaded or torch.float32)
        torch.testing.assert_close(other.importance[name].float(), omega.float(), rtol=2**-8, atol=0)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_run_goes_on_exactly_from_a_state_in_16_bits(measure, tmp_path):
    model, guard, optimizer = learned(measure, state_dtype=torch.bfloat16)
    guard.save(tmp_path / "guard.safetensors")
    again = copy.deepcopy(model)
    twin = torch.optim.Adam(again.parameters(), lr=0.01)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other = anchorhold.Guard(again, measure, strength=1.0, options=anchorhold.GuardOptions(state_dtype=torch.bfloat16))
    other.load(tmp_path / "guard.safetensors")
    other.attach(twin)
    for net_, optimizer_ in ((model, optimizer), (again, twin)):
        for i in range(5):
            optimizer_.zero_grad()
            loss(net_, batch(i, dtype=torch.float32)).backward()
            optimizer_.step()
    found = [guard.consolidate([batch(0, dtype=torch.float32)]), other.consolidate([batch(0, dtype=torch.float32)])]
    for mine, its in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, its)
    for name, omega in found[0][measure].importance.items():
        assert torch.equal(found[1][measure].importance[name], omega)


def test_float16_is_refused():
    with pytest.raises(ConfigurationError, match=r"float16.*expected torch\.bfloat16"):
        anchorhold.Guard(net(), "SOS", options=anchorhold.GuardOptions(state_dtype=torch.float16))


@pytest.mark.parametrize("device", ["nonsense", "cuda:77", 1.5])
def test_a_device_that_is_not_there_is_refused_at_once(device):
    with pytest.raises(ConfigurationError, match=r"state_device=.*nothing can be kept there .*such as 'cpu'"):
        anchorhold.Guard(net(), "EWC", options=anchorhold.GuardOptions(state_device=device))


def test_shapes_alone_are_no_state():
    with pytest.raises(ConfigurationError, match=r"state_device='meta'.*guard.cost\(\)"):
        anchorhold.Guard(net(), "EWC", options=anchorhold.GuardOptions(state_device="meta"))
