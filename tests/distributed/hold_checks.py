"""Holds that run the model on batches of their own, in several processes: what one process with all batches does."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold import DarkExperience, Distillation, Replay
from anchorhold.holds import Reservoir
from tests.distributed.problem import SIZE, share, whole
from tests.distributed.processes import all_equal, everyones
from tests.guard.helpers import batch, loss, net, weights
from tests.helpers import grouped

OLD = [batch(50, SIZE), batch(51, SIZE), batch(52, SIZE)]


def old_of(rank, size):
    return [share(old, rank, size) for old in OLD]


def holds(rank=0, size=1):
    old = old_of(rank, size)
    return [Replay(old, share=0.25), Distillation(old, 2.0), Distillation("new", name="new inputs")]


def learned(model, rank=0, size=1, guard=None, steps=3, start=0, **options):
    """Consolidate, and learn something new with all holds; a guard that is given goes on."""
    if guard is None:
        guard = anchorhold.Guard(
            model, "L2", strength=0.5, protect="0.*", watch=["SI"], holds=holds(rank, size), **grouped(**options)
        )
        guard.consolidate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    guard.attach(optimizer)
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        loss(model, share(batch(seed, SIZE), rank, size)).backward()
        optimizer.step()
    return guard


def alone(**options):
    model = net()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        learned(model, **options)
    return weights(model)


def assert_alike(model, expected, tolerance=1e-9):
    for name, value in weights(model).items():
        torch.testing.assert_close(whole(value), expected[name], rtol=tolerance, atol=tolerance)


def sharded(here, model=None, **options):
    model = model or net()
    mesh = init_device_mesh("cpu", (here.size,))
    fully_shard(model[0], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def holds_of_ddp_are_those_of_one_process(here):
    model = DistributedDataParallel(net())
    learned(model, here.rank, here.size)
    assert_alike(model.module, alone())
    assert all_equal(weights(model.module))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 5).double()
        self.heads = nn.ModuleList(nn.Linear(5, 3).double() for _ in range(3))

    def forward(self, x, head):
        return self.heads[head](self.body(x).tanh())


def holds_of_ddp_may_replay_through_different_heads(here):
    """The mean of the ranks' gradients, where a head that one of them replayed through has half of its own."""
    model = Heads()
    old = batch(60 + here.rank)
    hold = Replay([old], share=0.5, forward=lambda model, x: model(x, here.rank))
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    guard = anchorhold.Guard(wrapped, "fine-tune", strength=0.0, protect="body*", holds=[hold])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    guard.attach(optimizer)
    before = copy.deepcopy(model)
    F.cross_entropy(wrapped(batch(0)[0], 2), batch(0)[1]).backward()
    optimizer.step()
    value = 0.5 * F.cross_entropy(before(batch(0)[0], 2), batch(0)[1])
    for rank in range(here.size):
        x, y = batch(60 + rank)
        value = value + 0.5 / here.size * F.cross_entropy(before(x, rank), y)
    value.backward()
    for parameter, old in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), old.detach() - 0.3 * old.grad, rtol=0, atol=1e-12)
    assert all_equal(weights(model))


def holds_of_ddp_have_buffers_of_their_own(here):
    """Each rank keeps samples of its own data, and all take the same steps."""
    model = DistributedDataParallel(net())
    made = [Replay(Reservoir(6), share=0.5, size=3), DarkExperience(6, size=3)]
    guard = anchorhold.Guard(model, "EWC", strength=1.0, holds=made)
    for task in range(2):
        learned(model, here.rank, here.size, guard, start=10 * task)
        guard.consolidate(old_of(here.rank, here.size))
    samples = everyones([sample.leaves[0].tolist() for sample in made[0].buffer.samples])
    assert samples[0] != samples[1]
    learned(model, here.rank, here.size, guard, start=20)
    assert all_equal(weights(model.module))


def holds_that_fail_on_one_rank_are_told_on_all(here):
    model = DistributedDataParallel(net())
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Replay(6, share=0.5)])
    guard.consolidate(old_of(here.rank, here.size))
    before = weights(model.module)
    if here.rank:
        guard.options.holds[0].buffer.samples = []  # as after a state whose buffer was loaded on one rank alone
    told = "carries no training data" if here.rank else "'replay' failed on 1 of the 2 ranks"
    with pytest.raises(anchorhold.AnchorholdError, match=told):
        learned(model, here.rank, here.size, guard)
    assert all(torch.equal(value, before[name]) for name, value in weights(model.module).items())
    guard.options.holds[0].strength = 1.0 + here.rank
    with pytest.raises(anchorhold.errors.ConfigurationError, match="The ranks disagree on the holds"):
        guard.consolidate(old_of(here.rank, here.size))


def holds_of_fsdp_are_those_of_one_process(here):
    for options in ({}, {"reshard_after_forward": False}):
        model = sharded(here, **options)
        guard = learned(model, here.rank, here.size)
        assert_alike(model, alone())
        assert all(isinstance(old, DTensor) for old in guard.options.holds[1].before.values())
        assert float(guard.options.holds[1].last) > 0
        with torch.no_grad():
            value = float(guard.penalty())  # leaves nothing gathered that the next step could take for its own
        assert value > 0
        learned(model, here.rank, here.size, guard, steps=1, start=3)
        assert_alike(model, alone(steps=4))


def holds_of_fsdp_run_as_precisely_as_training(here):
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    model = sharded(here, mp_policy=policy)
    learned(model, here.rank, here.size)
    assert_alike(model, alone(), 1e-5)


def holds_of_fsdp_are_saved_and_loaded(here):
    """The old model too, which is sharded as the model is: in one file, and in a distributed checkpoint."""
    model = sharded(here)
    guard = learned(model, here.rank, here.size)
    path, folder = here.folder / "distilled.safetensors", here.folder / "distilled"
    guard.save(path)
    checkpoint.save({"guard": guard.state_dict(), "model": model.state_dict()}, checkpoint_id=folder)
    expected = alone(steps=5)
    for of in ("file", "folder"):
        again = sharded(here, net(seed=4))
        state = {"model": again.state_dict()}
        other = anchorhold.Guard(
            again, "L2", strength=0.5, protect="0.*", watch=["SI"], holds=holds(here.rank, here.size)
        )
        if of == "file":
            other.load(path)
        else:
            state["guard"] = anchorhold.guard.blank_state_dict(
                other, checkpoint.FileSystemReader(folder).read_metadata()
            )
        checkpoint.load(state, checkpoint_id=folder)
        again.load_state_dict(state["model"])
        if of == "folder":
            other.load_state_dict(state["guard"])
        learned(again, here.rank, here.size, other, steps=2, start=3)
        assert_alike(again, expected)
    bare = net()
    bare.load_state_dict({name: whole(value) for name, value in model.state_dict().items()})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        single = anchorhold.Guard(bare, "L2", strength=0.5, protect="0.*", watch=["SI"], holds=holds())
        single.load(path)
        learned(bare, guard=single, steps=2, start=3)
    assert_alike(bare, expected)


def holds_of_fsdp_that_cannot_be_are_refused(here):
    for hold in (DarkExperience(6), Distillation(6, teacher="outputs")):
        model = sharded(here)
        guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
        with pytest.raises(anchorhold.errors.ConfigurationError, match="with a sharded model"):
            learned(model, here.rank, here.size, guard)
    model = sharded(here)
    hold = Replay(6, forward=lambda model, inputs, task: model(inputs))
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
    for _ in range(2):
        guard.consolidate(old_of(here.rank, here.size))
    with pytest.raises(anchorhold.errors.ConfigurationError, match="each through a head of its own"):
        learned(model, here.rank, here.size, guard)


CHECKS = [check for name, check in list(globals().items()) if name.startswith("holds_")]
