"""Strengths by pattern and relative ones, with several processes: as one process would have them."""

import warnings

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold.integrations.hub import from_pretrained, save_pretrained
from tests.distributed.anchor_checks import taught
from tests.distributed.problem import whole
from tests.distributed.processes import everyones
from tests.guard.helpers import batch, net
from tests.helpers import grouped

EACH = [
    {"strength": {"0.*": 5.0, "*.bias": 0.25, "*": 1.0}},
    {"relative_strength": 0.3},
    {"strength": {"0.weight": 0.5, "*": 2.0}, "anchor": "mean", "gradient_term": True},
]


def learned(model, rank=0, size=1, **settings):
    """A guard with these strengths, after two tasks and a half."""
    return taught(anchorhold.Guard(model, "EWC", from_scratch=True, **grouped(**settings)), model, rank, size)


def check(here, model, settings):
    guard = learned(model, here.rank, here.size, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several")
        expected = learned(net(), **settings)
    assert guard.strength == pytest.approx(expected.strength, rel=1e-9)
    assert len({str(strength) for strength in everyones(guard.strength)}) == 1
    for name, value in expected.parameters.items():
        torch.testing.assert_close(whole(guard.parameters[name].detach()), value.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(whole(guard.penalty()), expected.penalty(), rtol=1e-8, atol=1e-12)
    resumed = anchorhold.Guard(model, "EWC", **grouped(**{k: v for k, v in settings.items() if "strength" not in k}))
    resumed.load_state_dict(guard.state_dict())
    assert resumed.strength == guard.strength and resumed.relative_strength == guard.relative_strength
    torch.testing.assert_close(whole(resumed.penalty()), whole(guard.penalty()), rtol=0, atol=0)


def strengths_of_a_ddp_model(here):
    for settings in EACH:
        check(here, DistributedDataParallel(net()), settings)


def strengths_of_a_sharded_model(here):
    for settings in EACH:
        check(here, fully_shard(net(), mesh=mesh(here)), settings)


def strengths_that_differ_are_refused(here):
    model = DistributedDataParallel(net())
    guard = anchorhold.Guard(model, "EWC", strength={"0.*": 1.0 + here.rank, "*": 3.0})
    with pytest.raises(anchorhold.AnchorholdError, match="the strength as it was given"):
        guard.consolidate([batch(0)])


def a_relative_strength_of_shared_importance(here):
    """As the one that measured it has found, on all ranks alike; and where no folder can be, all of them hear of it."""
    for number, wrap in enumerate((DistributedDataParallel, lambda model: fully_shard(model, mesh=mesh(here)))):
        guard = anchorhold.Guard(wrap(net()), "EWC", relative_strength=0.3)
        guard.consolidate([batch(here.rank)])
        folder, file = here.folder / f"shared{number}", here.folder / f"no_folder{number}"
        file.touch()
        with pytest.raises(anchorhold.errors.StateError, match="can be no folder"):
            save_pretrained(guard, file, measured_from="noise")
        save_pretrained(guard, folder, measured_from="noise")
        distributed.barrier()
        other = from_pretrained(folder, wrap(net()), relative_strength=0.3)
        assert other.strength == guard.strength > 0
        assert len(set(everyones(other.strength))) == 1


def mesh(here):
    return init_device_mesh("cpu", (here.size,))


CHECKS = [strengths_of_a_ddp_model, strengths_of_a_sharded_model, strengths_that_differ_are_refused]
CHECKS += [a_relative_strength_of_shared_importance]
