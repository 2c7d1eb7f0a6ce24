"""Strengths by pattern and exchange rates, with several processes: as one process would have them."""

import itertools
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
from tests.guard.test_exchange_rate import texts, writer
from tests.helpers import grouped

HOW_STRONGLY = ("strength", "exchange_rate")
EACH = [
    {"strength": {"0.*": 5.0, "*.bias": 0.25, "*": 1.0}},
    {"exchange_rate": 0.3},
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
    own = {key: value for key, value in settings.items() if key not in HOW_STRONGLY}
    resumed = anchorhold.Guard(model, "EWC", **grouped(**own))
    resumed.load_state_dict(guard.state_dict())
    assert resumed.strength == guard.strength and resumed.exchange_rate == guard.exchange_rate
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
    close = anchorhold.Guard(model, "EWC", exchange_rate=1.0 + 1e-8 * here.rank)
    with pytest.raises(anchorhold.AnchorholdError, match=r"the exchange rate .* rank 1 has \(1\.00000001, \[\]\)"):
        close.consolidate([batch(0)])


def an_exchange_rate_of_shared_importance(here):
    """As the one that measured it has found, on all ranks alike; and where no folder can be, all of them hear of it."""
    for number, wrap in enumerate((DistributedDataParallel, lambda model: fully_shard(model, mesh=mesh(here)))):
        guard = anchorhold.Guard(wrap(net()), "EWC", exchange_rate=0.3)
        guard.consolidate([batch(here.rank)])
        folder, file = here.folder / f"shared{number}", here.folder / f"no_folder{number}"
        file.touch()
        with pytest.raises(anchorhold.errors.StateError, match="can be no folder"):
            save_pretrained(guard, file, measured_from="noise")
        save_pretrained(guard, folder, measured_from="noise")
        distributed.barrier()
        other = from_pretrained(folder, wrap(net()), exchange_rate=0.3)
        assert other.strength == guard.strength > 0
        assert len(set(everyones(other.strength))) == 1


def own_texts(rank, size, given):
    """A process's texts of two batches: one has a batch more than the other, or labels that all do not count."""
    shares = [tuple(part.chunk(size)[rank] for part in texts(8, seed=seed, longest=9)) for seed in (3, 4)]
    if given == "unscored" and rank == 1:
        return [(x, torch.full_like(y, -100)) for x, y in shares]
    return shares[:1] if given == "uneven" and rank == 1 else shares


def tokens_of_all_processes(here):
    """T is of the samples of all: of processes with different texts, with fewer of them, and without any that count."""
    wraps = [DistributedDataParallel, *(lambda model: fully_shard(model, mesh=mesh(here)),) * 2]
    for (wrap, gather), settings, given in itertools.product(
        zip(wraps, (None, "model", "layers"), strict=True),
        ({}, {"labels": "true", "per": "token"}),
        ("even", "uneven", "unscored"),
    ):
        measure, options = anchorhold.Fisher(**settings), anchorhold.GuardOptions(gather=gather)
        guard = anchorhold.Guard(wrap(writer()), measure, exchange_rate=0.3, options=options)
        expected = anchorhold.Guard(writer(), measure, exchange_rate=0.3)
        for each in (given, "even"):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed runs several")
                warnings.filterwarnings("ignore", message=r"consolidate\(\) again")  # with other labels
                guard.consolidate(own_texts(here.rank, here.size, each))
                expected.consolidate([pair for rank in range(here.size) for pair in own_texts(rank, here.size, each)])
        record = guard.held.record()
        assert record == pytest.approx(expected.held.record(), rel=1e-9)
        assert record["tokens"] == 1 if settings else record["tokens"] > 2
        assert len(set(everyones(str(record)))) == 1


def tokens_of_micro_batches(here):
    """The same where gradients of micro-batches are shown, of which sharded processes share one."""
    for sharded in (False, True):
        model = fully_shard(writer(), mesh=mesh(here)) if sharded else DistributedDataParallel(writer())
        guard, expected = (anchorhold.Guard(m, anchorhold.Fisher(labels="true")) for m in (model, writer()))
        every = [own_texts(rank, here.size, "unscored") for rank in range(here.size)]
        together = [tuple(map(torch.cat, zip(*pairs, strict=True))) for pairs in zip(*every, strict=True)]
        guard.gradients.microbatches(every[here.rank])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed runs several")
            expected.gradients.microbatches(together if sharded else every[0])
            guard.consolidate()
            expected.consolidate()
        assert guard.held.record() == pytest.approx(expected.held.record(), rel=1e-8)
        assert len(set(everyones(str(guard.held.record())))) == 1


def mesh(here):
    return init_device_mesh("cpu", (here.size,))


CHECKS = [strengths_of_a_ddp_model, strengths_of_a_sharded_model, strengths_that_differ_are_refused]
CHECKS += [an_exchange_rate_of_shared_importance, tokens_of_all_processes, tokens_of_micro_batches]
