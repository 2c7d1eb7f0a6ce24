"""Models that Accelerate has prepared for several processes, as replicas or in shards, and what one process would give.

Accelerate shards on accelerators alone: it is told here that this one is to.
"""

import os

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType
from torch import distributed
from torch.distributed.tensor import DTensor

import anchorhold
from anchorhold.integrations.accelerate import prepare_guard
from tests.distributed.problem import SIZE, check_same_run, learn, make_guard, share, whole
from tests.guard.helpers import batch, loss, net


def as_torchrun(here):
    """Say where this process is as torchrun does; the processes have found each other already."""
    where = {"WORLD_SIZE": here.size, "RANK": here.rank, "LOCAL_RANK": here.rank, "LOCAL_WORLD_SIZE": here.size}
    os.environ.update({name: str(value) for name, value in where.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")
    os.environ["OMP_NUM_THREADS"] = "1"  # else Accelerate sets it, with a warning
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerator_of(here):
    as_torchrun(here)
    return Accelerator(cpu=True)


def shard_with(accelerator, *layers):
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=list(layers)
    )
    accelerator.state._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
    assert accelerator.is_fsdp2
    return accelerator


def run_prepared(accelerator, here):
    """Go through two tasks as one does with Accelerate."""
    model = net()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    guard = make_guard(model)
    prepare_guard(accelerator, guard, optimizer)
    return model, guard, learn(model, optimizer, guard, here.rank, here.size)


def accelerate_replicas_give_what_one_process_gives(here):
    accelerator = accelerator_of(here)
    assert accelerator.distributed_type == DistributedType.MULTI_CPU
    model, guard, found = run_prepared(accelerator, here)
    check_same_run(accelerator.unwrap_model(model), guard, found)


def accelerate_shards_give_what_one_process_gives(here):
    model, guard, found = run_prepared(shard_with(accelerator_of(here), "Linear"), here)
    assert all(isinstance(omega, DTensor) for omega in guard.importance.values())
    check_same_run(model, guard, found)
    guard.save(here.folder / "sharded.safetensors")
    other = make_guard(model)
    other.load(here.folder / "sharded.safetensors")
    for name, omega in guard.importance.items():
        assert torch.equal(other.importance[name].to_local(), omega.to_local())


def accelerate_shards_what_a_guard_found_before(here):
    """As with the Trainer, which prepares a model that is protected already."""
    accelerator, model = shard_with(accelerator_of(here), "Linear"), net()
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=20.0, options=anchorhold.GuardOptions(group=distributed.group.WORLD)
    )
    guard.consolidate([share(batch(1, SIZE), here.rank, here.size)])
    found = {name: omega.clone() for name, omega in guard.importance.items()}
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    prepare_guard(accelerator, guard, optimizer)
    for name, omega in guard.importance.items():
        assert isinstance(omega, DTensor)
        assert torch.equal(whole(omega), found[name])
    loss(model, share(batch(2, SIZE), here.rank, here.size)).backward()
    optimizer.step()
    assert guard.penalty() > 0


CHECKS = [
    accelerate_replicas_give_what_one_process_gives,
    accelerate_shards_give_what_one_process_gives,
    accelerate_shards_what_a_guard_found_before,
]
