"""Consolidation by itself in an Accelerate loop, against a plain one."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import anchorhold
from anchorhold.integrations.accelerate import prepare_guard
from tests.integrations.test_accelerate import data, forget_settings, net

PARTS = 2


@pytest.fixture(autouse=True)
def settings_of_ones_own():
    forget_settings()  # those of trainers before too
    yield
    forget_settings()


def made(model):
    guard = anchorhold.Guard(model, anchorhold.MAS(average=True), strength=1.0, from_scratch=True)
    return guard, anchorhold.TaskFree(guard, every=2, hard=3)


def trained(accelerator, folder=None, resume=None, epochs=1):
    """Train with accumulated gradients, telling of optimizer steps alone; save, or go on from what was saved."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(24), batch_size=4))
    guard, task_free = made(model)
    prepare_guard(accelerator, guard, optimizer)
    accelerator.register_for_checkpointing(task_free)
    if resume is not None:
        accelerator.load_state(resume)
    parts = []
    for batch in [batch for _ in range(epochs) for batch in loader]:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        parts.append((loss.detach(), tuple(batch)))
        if accelerator.sync_gradients:
            for _, part in parts[:-1]:
                task_free.samples.take(part)
            task_free.step(sum(each for each, _ in parts) / len(parts), parts[-1][1])
            parts = []
    if folder is not None:
        accelerator.save_state(folder)
    return guard, task_free


def test_it_is_that_of_a_plain_loop_and_goes_on_from_a_checkpoint(tmp_path):
    model = net()
    guard, task_free = made(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    batches = list(DataLoader(data(24), batch_size=4))
    for first, second in zip(batches[::PARTS], batches[1::PARTS], strict=True):
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in (first, second)]
        (sum(losses) / PARTS).backward()
        optimizer.step()
        task_free.samples.take(tuple(first))
        task_free.step(sum(losses) / PARTS, tuple(second))

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    other, own = trained(accelerator, folder=tmp_path / "after")
    assert own.consolidated == task_free.consolidated == [2]
    for name, value in guard.importance.items():
        torch.testing.assert_close(other.importance[name], value)

    again = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    gone_on, resumed = trained(again, resume=tmp_path / "after")  # three steps, one of which was since it consolidated
    assert resumed.consolidated == [2, 4, 6] and resumed.steps == 6 and gone_on.tasks == 3
