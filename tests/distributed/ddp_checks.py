"""DDP: every measure gives what one process gives on the union of the batches, and so does every file."""

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.problem import SIZE, alone, check_same_run, make_guard, run, share
from tests.distributed.processes import all_equal
from tests.guard.batch_norm.networks import dense
from tests.guard.helpers import batch, loss, net, weights


def ddp_every_measure_is_that_of_the_union(here):
    model = DistributedDataParallel(net())
    guard, found = run(model, here.rank, here.size)
    check_same_run(model.module, guard, found)
    assert all_equal(guard.anchor)
    for label in guard.measures:
        assert all_equal(guard.held.of(label)), label
        assert all_equal(found[label].importance), label


def ddp_a_bare_model_says_its_group(here):
    model = net()
    with pytest.warns(anchorhold.AnchorholdWarning, match="a bare model and no group"):
        anchorhold.Guard(model, "EWC").consolidate([batch(0)])
    guard = anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(group=distributed.group.WORLD))
    assert guard.consolidate([share(batch(0), here.rank, here.size)])["EWC"].samples == 8
    later = anchorhold.Guard(model, "EWC")
    assert later.options.group is None
    later.options.group = distributed.group.WORLD
    later.consolidate([share(batch(0), here.rank, here.size)])
    expected = anchorhold.Fisher().measure(model, [batch(0)])
    for name, value in expected.items():
        torch.testing.assert_close(guard.importance[name], value)
        assert torch.equal(later.importance[name], guard.importance[name])


def ddp_shares_may_be_uneven_and_a_limit_counts_all_ranks(here):
    """The first batches of all ranks are one batch, then the second ones: so a limit takes what one process would."""
    model = net()
    x, y = batch(0, n=14)
    mine = [[(x[:4], y[:4]), (x[6:11], y[6:11]), (x[11:], y[11:])], [(x[4:6], y[4:6])]][here.rank]
    for limit, seen in [(None, 14), (1, 1), (3, 3), (5, 5), (6, 6), (9, 9), (13, 13), (20, 14)]:
        guard = anchorhold.Guard(DistributedDataParallel(model), anchorhold.Fisher(samples=limit))
        found = guard.consolidate(iter(mine))["EWC"]
        assert found.samples == seen
        expected = anchorhold.Fisher().measure(model, [(x[:seen], y[:seen])])
        for name, value in expected.items():
            torch.testing.assert_close(found.importance[name], value, rtol=1e-10, atol=1e-14)
        assert all_equal(guard.importance)
    guard = anchorhold.Guard(DistributedDataParallel(model), anchorhold.Fisher())
    assert guard.consolidate([batch(0)] if here.rank else [])["EWC"].samples == 8


def ddp_batch_norms_are_folded_or_frozen_on_all_ranks(here):
    """A rank without batches has seen nothing of the model, and folds what the others have seen."""
    for batch_norm in ("freeze", "fold"):
        model = DistributedDataParallel(dense())
        guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm=batch_norm)
        guard.consolidate([batch(0)] if here.rank else [])
        guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.module[1].running_mean.clone()
        model.train()
        for seed in range(3):
            optimizer.zero_grad()
            loss(model, share(batch(seed, SIZE), here.rank, here.size)).backward()
            optimizer.step()
        assert torch.equal(model.module[1].running_mean, before) == (batch_norm == "freeze")
        assert all_equal(guard.importance) and all_equal(weights(model.module))
        assert guard.penalty().item() > 0


def ddp_drawn_labels_differ_from_rank_to_rank(here):
    """Equal samples on both ranks: were the labels equal too, the mean would be that of one rank alone."""
    model = net()
    guard = anchorhold.Guard(DistributedDataParallel(model), anchorhold.Fisher(labels="sampled", seed=3))
    found = guard.consolidate([batch(0)])["EWC-sampled"].importance
    single = anchorhold.Fisher(labels="sampled", seed=3).measure(model, [batch(0)])
    assert all_equal(found)
    assert not torch.allclose(found["0.weight"], single["0.weight"])


def ddp_the_state_is_one_file_of_plain_names(here):
    path = here.folder / "guard.safetensors"
    model = DistributedDataParallel(net())
    guard, _ = run(model, here.rank, here.size)
    guard.save(path)
    distributed.barrier()
    assert "anchor/0.weight" in load_file(path)
    assert [found.name for found in here.folder.glob("*.safetensors")] == ["guard.safetensors"]
    again = make_guard(DistributedDataParallel(net(seed=5)))
    again.load(path)
    assert again.tasks == 2
    bare = make_guard(net(seed=5))
    bare.load(path)
    for other in (again, bare):
        assert all(torch.equal(other.held.of("AF")[name], value) for name, value in guard.held.of("AF").items())
        assert all(torch.equal(other.anchor[name], value) for name, value in guard.anchor.items())
    if here.rank == 0:  # as many write it, and nobody waits
        guard.save(here.folder / "first.safetensors")
    distributed.barrier()


def ddp_halves_are_averaged_too(here):
    """gradients.halves() on every rank leaves the gradient of all ranks' batches, and measures it."""
    plain, ddp = net(), DistributedDataParallel(net())
    data = batch(0, SIZE)
    quarters = [tuple(part.chunk(4)[place] for part in data) for place in range(4)]
    measured = []
    for model, halves in [(ddp, quarters[2 * here.rank : 2 * here.rank + 2]), (plain, None)]:
        guard = anchorhold.Guard(model, anchorhold.SOS(alpha=1.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        if halves is None:
            first, second = (sum(loss(model, quarters[place + 2 * rank]) for rank in range(2)) / 2 for place in (0, 1))
        else:
            first, second = (loss(model, half) for half in halves)
        guard.gradients.halves(first, second)
        optimizer.step()
        measured.append(guard.consolidate()["SOS"].raw)
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(ddp.module)[name], value)
        torch.testing.assert_close(measured[0][name], measured[1][name])


def ddp_a_compiled_model_is_found_inside(here):
    model = net()
    guard = anchorhold.Guard(torch.compile(DistributedDataParallel(model), backend="eager"), "EWC")
    assert guard.consolidate([share(batch(0), here.rank, here.size)])["EWC"].samples == 8
    assert guard.importance.keys() == dict(model.named_parameters()).keys()


def ddp_reference_is_deterministic(here):
    """The comparisons stand on this: one process gives the same on every rank."""
    _, guard, _ = alone(tasks=1)
    assert all_equal(guard.importance)


CHECKS = [check for name, check in list(globals().items()) if name.startswith("ddp_")]
