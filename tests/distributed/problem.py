"""A run of two tasks with every measure, in one process and split over several, to be compared."""

import warnings

import torch
from torch.distributed import checkpoint

import anchorhold
from tests.guard.helpers import batch, loss, net, weights
from tests.helpers import grouped

SIZE = 12
"""The samples of a step, all processes together."""

FROM_DATA = ["EWC", "EWC-empirical", "sqrtFisher", "AF", "MAS", "MASX", "MAS-logits"]
WATCH = {name: name for name in ["SIU", "SIB", "SOS", "posterior", *FROM_DATA, "L2-growing", "magnitude"]} | {
    "SOS with α": anchorhold.SOS(alpha=0.7)
}


def make_guard(model, **options):
    return anchorhold.Guard(model, anchorhold.SI(), strength=0.5, watch=WATCH, **grouped(**options))


def share(data, rank, size):
    """The part of a batch that a process gets."""
    return tuple(part.chunk(size)[rank] for part in data)


def train_alone(model, optimizer, guard, task=0):
    train(model, optimizer, guard, task, 0, 1)


def train(model, optimizer, guard, task, rank, size):
    """Take three steps of a task, with a second batch for the measures that need one."""
    for seed in range(10 * task, 10 * task + 3):
        optimizer.zero_grad()
        loss(model, share(batch(seed, SIZE), rank, size)).backward()
        guard.gradients.independent(loss(model, share(batch(1000 + seed, SIZE), rank, size)))
        optimizer.step()


def run(model, rank=0, size=1, tasks=2, **options):
    """Go through the tasks; return the guard and what it found for the last one."""
    guard = make_guard(model, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    return guard, learn(model, optimizer, guard, rank, size, tasks)


def learn(model, optimizer, guard, rank=0, size=1, tasks=2):
    """Go through the tasks with a guard that is attached; return what it found for the last one."""
    for task in range(tasks):
        train(model, optimizer, guard, task, rank, size)
        data = [share(batch(100 + task, SIZE), rank, size), share(batch(200 + task, SIZE), rank, size)]
        found = guard.consolidate(data)
    return found


def alone(tasks=2):
    """The same in this process alone, with all samples."""
    model = net()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        guard, found = run(model, tasks=tasks)
    return model, guard, found


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check_same_run(model, guard, found, tasks=2):
    """Compare with the run of one process; sums are in another order, so up to rounding of float64."""
    plain, expected, expected_found = alone(tasks)
    assert guard.tasks == expected.tasks
    for name, value in weights(plain).items():
        torch.testing.assert_close(whole(weights(model)[name]), value, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(whole(guard.anchor[name]), value, rtol=1e-9, atol=1e-12)
    for label in expected.measures:
        assert found[label].samples == expected_found[label].samples
        for name, value in expected.held.of(label).items():
            torch.testing.assert_close(whole(guard.held.of(label)[name]), value, rtol=1e-8, atol=1e-12, msg=label)


def save_checkpoint(folder, model, rank=0, size=1):
    """Stop in the middle of the second task, and write what there is to a distributed checkpoint."""
    guard, _ = run(model, rank, size, tasks=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, guard, 1, rank, size)
    checkpoint.save({"guard": guard.state_dict(), "model": model.state_dict()}, checkpoint_id=folder)


def check_checkpoint(folder, model, rank=0, size=1):
    """Go on from a checkpoint, of any number of processes, and compare with a run that never stopped."""
    guard = make_guard(model)
    state = {
        "guard": anchorhold.guard.blank_state_dict(guard, checkpoint.FileSystemReader(folder).read_metadata()),
        "model": model.state_dict(),
    }
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    guard.load_state_dict(state["guard"])
    assert guard.gradients.path.steps == 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, guard, 2, rank, size)
    found = guard.consolidate([share(batch(101, SIZE), rank, size)])

    plain = net()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        expected, _ = run(plain, tasks=1)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        expected.attach(optimizer)
        train_alone(plain, optimizer, expected, 1)
        train_alone(plain, optimizer, expected, 2)
        expected_found = expected.consolidate([batch(101, SIZE)])
    assert guard.tasks == expected.tasks == 2
    for name, value in weights(plain).items():
        torch.testing.assert_close(whole(weights(model)[name]), value, rtol=1e-9, atol=1e-12)
    for label, task in expected_found.items():
        for name, value in task.importance.items():
            torch.testing.assert_close(whole(found[label].importance[name]), value, rtol=1e-8, atol=1e-12, msg=label)
