"""Loops as users of Accelerate write them, against plain ones."""

from functools import partial

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.integrations.accelerate import prepare_guard
from anchorhold.integrations.callbacks import STATE_NAME
from tests import helpers


def forget_settings():
    """Forget an accelerator's settings, which its process keeps."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def settings_of_ones_own():
    yield
    forget_settings()


net = partial(helpers.network, 4, 6, 3, dtype=torch.float32)


def data(rows=16):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator))


def guarded(model, strength=20.0):
    watch = [anchorhold.SOS(), anchorhold.SI()]
    return helpers.guarded(model, [data().tensors], anchorhold.Fisher(), strength, watch=watch)


def epoch(accelerator, model, optimizer, loader, steps=None):
    for step, (x, y) in enumerate(loader):
        if step == steps:
            return
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()


def prepared(**settings):
    accelerator = Accelerator(cpu=True, **settings)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=4))
    guard = guarded(model)
    prepare_guard(accelerator, guard, optimizer)
    return accelerator, model, optimizer, loader, guard


def state(guard):
    return guard.state_dict()["tensors"]


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_prepared_loop_does_what_a_plain_one_does(accumulate):
    accelerator, model, optimizer, loader, guard = prepared(gradient_accumulation_steps=accumulate)
    assert isinstance(optimizer, AcceleratedOptimizer)
    epoch(accelerator, model, optimizer, loader)
    assert guard.gradients.path.steps == 4 // accumulate
    other = net()
    reference, plain = guarded(other), torch.optim.Adam(other.parameters(), lr=0.01)
    reference.attach(plain)
    batches = list(DataLoader(data(), batch_size=4))
    for first in range(0, 4, accumulate):
        plain.zero_grad()
        for x, y in batches[first : first + accumulate]:
            (nn.functional.cross_entropy(other(x), y) / accumulate).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.3)
        plain.step()
    assert_same(state(guard), state(reference), 1e-7)
    assert_same(dict(model.named_parameters()), dict(other.named_parameters()), 1e-7)
    guard.consolidate(loader)
    reference.consolidate(batches)
    assert_same(guard.importance, reference.importance, 1e-7)


def test_half_precision_stays_near():
    runs = {}
    for precision in ("no", "bf16"):
        accelerator, model, optimizer, loader, guard = prepared(mixed_precision=precision)
        epoch(accelerator, model, optimizer, loader)
        guard.consolidate(loader)
        runs[precision] = guard.held.of("SOS")
        forget_settings()
    for name, value in runs["bf16"].items():
        assert (value - runs["no"][name]).norm() < 0.02 * runs["no"][name].norm(), name


def test_checkpoints_resume_exactly(tmp_path):
    accelerator, model, optimizer, loader, guard = prepared()
    epoch(accelerator, model, optimizer, loader, steps=2)
    accelerator.save_state(str(tmp_path / "state"))
    assert (tmp_path / "state" / STATE_NAME).is_file()
    assert not list(tmp_path.rglob("custom_checkpoint*"))
    epoch(accelerator, model, optimizer, loader)
    expected, weights = {k: v.clone() for k, v in state(guard).items()}, [p.clone() for p in model.parameters()]

    accelerator, model, optimizer, loader, guard = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert guard.gradients.path.steps == 2
    epoch(accelerator, model, optimizer, loader)
    assert_same(state(guard), expected)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))


def test_a_checkpoint_without_the_guards_state_is_refused(tmp_path):
    accelerator, *_, guard = prepared()
    accelerator.save_state(str(tmp_path))
    (tmp_path / STATE_NAME).unlink()
    with pytest.raises(anchorhold.errors.StateError, match=STATE_NAME):
        accelerator.load_state(str(tmp_path))
    assert guard.tasks == 1


def test_the_usual_registration_works_too(tmp_path):
    accelerator, model, optimizer, loader, guard = prepared()
    accelerator.register_for_checkpointing(guard)
    epoch(accelerator, model, optimizer, loader)
    accelerator.save_state(str(tmp_path))
    before = {key: value.clone() for key, value in state(guard).items()}
    epoch(accelerator, model, optimizer, loader)
    accelerator.load_state(str(tmp_path))
    assert_same(state(guard), before)


def test_importances_are_measured_in_float32_where_training_is_in_16_bits():
    expected = anchorhold.Fisher().measure(net(), [data().tensors])
    _, model, _, loader, _ = prepared(mixed_precision="bf16")
    assert model(data().tensors[0]).dtype == torch.float32  # what comes out is converted back
    found = anchorhold.Fisher().measure(model, [data().tensors])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate(loader)
    torch.testing.assert_close(guard.importance, expected, rtol=1e-6, atol=0)


def test_every_guard_has_a_file_of_its_own(tmp_path):
    """Two guards of the same kind: either would take the other's state for its own."""
    accelerator = Accelerator(cpu=True)
    guards = []
    for seed in range(2):
        model, optimizer, loader = prepared_with(accelerator, seed)
        guards.append(anchorhold.Guard(model, anchorhold.SOS(), strength=1.0))
        for _ in range(2):  # as for a new optimizer
            prepare_guard(accelerator, guards[-1], optimizer)
        epoch(accelerator, model, optimizer, loader)
        guards[-1].consolidate()
    accelerator.save_state(tmp_path)
    expected = [guard.anchor for guard in guards]
    assert not torch.equal(expected[0]["0.weight"], expected[1]["0.weight"])
    accelerator.load_state(tmp_path)
    for guard, anchor in zip(guards, expected, strict=True):
        torch.testing.assert_close(guard.anchor, anchor, rtol=0, atol=0)
    assert sorted(path.name for path in tmp_path.glob("anchorhold*")) == [STATE_NAME, "anchorhold_1.safetensors"]


def prepared_with(accelerator, seed):
    model = net()
    with torch.no_grad():
        model[0].weight.add_(seed)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data(), batch_size=4))


def test_mistakes_are_explained(tmp_path):
    accelerator = Accelerator(cpu=True)
    model, optimizer, _ = prepared_with(accelerator, 0)
    guard = anchorhold.Guard(model, anchorhold.SOS())
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match="A guard of type AcceleratedOptimizer; expected a Guard,"
    ):
        prepare_guard(accelerator, optimizer, guard)
    accelerator.save_state(tmp_path)
    prepare_guard(accelerator, guard, optimizer)
    with pytest.raises(anchorhold.errors.StateError, match=r"made without prepare_guard\(\). Nothing was loaded"):
        accelerator.load_state(tmp_path)
