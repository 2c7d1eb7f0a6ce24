"""One matrix over the whole network, with several processes: as one process would have it."""

import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold.forms import Dense, LowRank
from tests.distributed.problem import SIZE, share
from tests.distributed.processes import all_equal
from tests.guard.helpers import batch, loss, net


def learned(model, form, rank=0, size=1):
    """Two tasks of two steps each, the second of them held."""
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.5, form=form, decay=0.5, from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for task in range(2):
        for seed in range(10 * task, 10 * task + 2):
            optimizer.zero_grad()
            loss(model, share(batch(seed, SIZE), rank, size)).backward()
            optimizer.step()
        data = [share(batch(100 + task, SIZE), rank, size)]
        guard.consolidate([*data, batch(200 + task, 3)] if rank == 0 else data)  # of which others have no part
    return guard


def whole_network_of_a_ddp_model(here):
    for form in (Dense(), Dense(span="layers"), LowRank(rank=5), LowRank(rank=5, iterations=3, sums="exact")):
        guard = learned(DistributedDataParallel(net()), form, here.rank, here.size)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed runs several")
            expected = learned(net(), form)
        assert guard.held.matrices.keys() == expected.held.matrices.keys()
        for name, matrix in expected.held.matrices.items():
            assert all_equal(guard.held.matrices[name].state())
            d = {key: torch.randn(p.shape, dtype=p.dtype) for key, p in expected.parameters.items()}
            for key, value in matrix.apply(d).items():
                torch.testing.assert_close(guard.held.matrices[name].apply(d)[key], value, rtol=1e-8, atol=1e-12)
        for name, value in expected.anchor.items():
            torch.testing.assert_close(guard.anchor[name], value, rtol=1e-9, atol=1e-12)


def whole_network_of_a_sharded_model_is_refused(here):
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (here.size,)))
    for form in ("dense", "lowrank"):
        with pytest.raises(
            anchorhold.errors.ConfigurationError,
            match=r"spread over processes.*Use DDP, or one of the forms 'diagonal'",
        ):
            anchorhold.Guard(model, anchorhold.Fisher(), form=form)


CHECKS = [whole_network_of_a_ddp_model, whole_network_of_a_sharded_model_is_refused]
