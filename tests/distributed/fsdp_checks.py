"""FSDP2: state that is sharded as its parameters are, and what one process would give."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import anchorhold
from anchorhold.integrations.callbacks import statistics
from tests.distributed.problem import (
    SIZE,
    alone,
    check_checkpoint,
    check_same_run,
    make_guard,
    run,
    save_checkpoint,
    share,
    whole,
)
from tests.distributed.processes import all_equal, everyones
from tests.guard.batch_norm.networks import dense
from tests.guard.helpers import batch, loss, net, weights


def sharded(here, model=None, mesh=None):
    model = model or net()
    mesh = mesh or init_device_mesh("cpu", (here.size,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp_every_measure_is_that_of_the_union(here):
    model = sharded(here)
    guard, found = run(model, here.rank, here.size)
    check_same_run(model, guard, found)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, share(batch(5, SIZE), here.rank, here.size)).backward()
    guard.gradients.independent(loss(model, share(batch(6, SIZE), here.rank, here.size)))
    optimizer.step()
    for key, tensor in guard.state_dict()["tensors"].items():
        parameter = next(p for name, p in parameters.items() if key.endswith(f"/{name}"))
        assert isinstance(tensor, DTensor), key
        assert tensor.placements == parameter.placements
        assert tensor.to_local().shape == parameter.to_local().shape


def fsdp_layers_that_are_one_group_are_measured_without_the_others(here):
    """Before the first step too, and with more batches on one rank: nobody else is there to gather with."""
    model = net()
    mesh = init_device_mesh("cpu", (here.size,))
    fully_shard([model[0], model[2]], mesh=mesh)
    fully_shard(model, mesh=mesh)
    batches = [batch(seed) for seed in range(4)]
    guard = anchorhold.Guard(model, "EWC")
    guard.consolidate(batches[:1] if here.rank == 0 else batches[1:])
    expected = anchorhold.Fisher().measure(net(), batches)
    for name, value in guard.importance.items():
        torch.testing.assert_close(whole(value), expected[name])


def fsdp_a_model_that_is_sharded_after_its_first_task_has_the_same_layers(here):
    """Its parameters are other objects, and none of them is one that was put in another's place."""
    model = net()
    guard = anchorhold.Guard(model, "L2", strength=0.5)
    guard.consolidate()
    sharded(here, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    loss(model, batch(here.rank)).backward()
    optimizer.step()


def fsdp_the_penalty_is_that_of_all_parts(here):
    model = sharded(here)
    guard, _ = run(model, here.rank, here.size)
    plain, expected, _ = alone()
    for network in (model, plain):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1.1)
    value = guard.penalty()
    assert not isinstance(value, DTensor)
    torch.testing.assert_close(value, expected.penalty(), rtol=1e-8, atol=0)
    assert all_equal({"penalty": value})
    value.backward()
    expected.penalty().backward()
    for name, parameter in plain.named_parameters():
        gradient = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(whole(gradient), parameter.grad, rtol=1e-8, atol=1e-12)


def fsdp_what_is_logged_is_that_of_all_parts(here):
    """Also of a bias with fewer elements than there are processes."""
    torch.manual_seed(0)
    model = sharded(here, nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double())
    guard = anchorhold.Guard(model, "magnitude")
    assert statistics(guard)["anchorhold/importance_max"] == 0
    guard.consolidate()
    found = statistics(guard)
    every = torch.cat([whole(omega).flatten() for omega in guard.importance.values()])
    assert found["anchorhold/importance_mean"] == pytest.approx(every.mean().item())
    assert found["anchorhold/importance_max"] == pytest.approx(every.max().item())
    assert everyones(found) == [found] * here.size


def fsdp_the_first_version_is_refused(here):
    """Its parameters are pieces of one flat tensor, cut wherever a process's share ends."""
    options = {"device_id": torch.device("cpu"), "sharding_strategy": ShardingStrategy.FULL_SHARD}
    model = FullyShardedDataParallel(net(), use_orig_params=True, **options)
    with pytest.raises(anchorhold.errors.ModelError, match=r"'.*0.weight' was flattened by FullyShardedDataParallel"):
        anchorhold.Guard(model, "SOS")
    inner = net()
    guard = anchorhold.Guard(inner, "SOS")
    wrapped = FullyShardedDataParallel(inner, **options)  # later, as Trainers do
    with pytest.raises(anchorhold.errors.ModelError, match="flattened"):
        guard.attach(torch.optim.SGD(wrapped.parameters(), lr=0.1))


def fsdp_parameters_left_whole_by_a_forward_pass_are_found(here):
    """FSDP keeps the root's parameters after a forward pass, until a backward pass that may never come."""
    model = sharded(here)
    guard = anchorhold.Guard(model, "EWC")
    with torch.no_grad():
        model(batch(0)[0])
    assert not isinstance(model[2].weight, DTensor)
    guard.consolidate([share(batch(0), here.rank, here.size)])
    assert isinstance(guard.anchor["2.weight"], DTensor)
    for name, value in anchorhold.Fisher().measure(net(), [batch(0)]).items():
        torch.testing.assert_close(whole(guard.importance[name]), value)


def fsdp_shares_may_be_uneven_and_nobody_waits(here):
    model = sharded(here)
    guard = anchorhold.Guard(model, anchorhold.Fisher(samples=11))
    mine = [] if here.rank else [batch(0), batch(1)]
    assert guard.consolidate(mine)["EWC"].samples == 11
    x = torch.cat([batch(0)[0], batch(1)[0]])[:11]
    for name, value in anchorhold.Fisher().measure(net(), [x]).items():
        torch.testing.assert_close(whole(guard.importance[name]), value)
    x, y = batch(0)
    kept = {name: whole(value).clone() for name, value in guard.importance.items()}
    with pytest.raises(anchorhold.errors.NotFiniteError, match="outputs hold NaN"):
        guard.consolidate([(x * (float("nan") if here.rank else 1.0), y)])
    assert all(torch.equal(whole(guard.importance[name]), value) for name, value in kept.items())


def fsdp_what_is_not_finite_in_one_part_stops_all(here):
    model = sharded(here)
    for measure in ("SOS", "SI"):
        guard = anchorhold.Guard(model, measure)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        before = {name: whole(value) for name, value in weights(model).items()}
        loss(model, batch(0)).backward()
        if here.rank == 1:
            model[0].weight.grad.to_local()[0, 0] = float("nan")
        with pytest.raises(anchorhold.errors.NotFiniteError, match=r"gradient of '0\.weight'"):
            optimizer.step()
        assert all(torch.equal(whole(value), before[name]) for name, value in weights(model).items())
        optimizer.zero_grad()
        guard.detach()
    guard = anchorhold.Guard(model, "L2")
    if here.rank == 1:
        with torch.no_grad():
            model[0].weight.to_local()[0, 0] = float("nan")
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"weights '0\.weight' are not finite"):
        guard.consolidate()
    assert everyones(guard.tasks) == [0, 0]


def fsdp_weights_that_are_no_numbers_in_one_part_are_not_spread_over_the_others(here):
    """By a pull after the step, in coordinates of the whole layer."""
    model = sharded(here)
    guard = anchorhold.Guard(model, "EWC", strength=1.0, form="rotated")
    guard.consolidate([batch(0)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    if here.rank == 1:
        with torch.no_grad():
            model[0].weight.to_local()[0, 0] = float("nan")
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"weights '0\.weight' themselves are not finite"):
        optimizer.step()
    assert int(whole(model[0].weight.detach()).isnan().sum()) == 1


def fsdp_one_file_serves_sharded_and_whole_models(here):
    path = here.folder / "sharded.safetensors"
    model = sharded(here)
    guard, _ = run(model, here.rank, here.size)
    guard.save(path)
    bare = make_guard(net(seed=5))
    bare.load(path)
    again = make_guard(sharded(here, net(seed=5)))
    again.load(path)
    for name, value in guard.held.of("MAS").items():
        assert torch.equal(bare.held.of("MAS")[name], whole(value))
        assert torch.equal(whole(again.held.of("MAS")[name]), whole(value))
        assert again.held.of("MAS")[name].placements == value.placements
    with pytest.raises((OSError, anchorhold.AnchorholdError)):
        guard.save(here.folder / "no such folder" / "guard.safetensors")


def fsdp_checkpoints_fit_any_number_of_processes(here):
    save_checkpoint(here.folder / "from_two", sharded(here), here.rank, here.size)
    check_checkpoint(here.folder / "from_two", sharded(here), here.rank, here.size)
    check_checkpoint(here.folder.parent / "from_one", sharded(here), here.rank, here.size)


def fsdp_a_model_may_be_sharded_later(here):
    model = net()
    guard = anchorhold.Guard(model, "L2", strength=0.5)
    guard.consolidate()
    sharded(here, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    optimizer.step()
    assert isinstance(guard.anchor["0.weight"], DTensor)
    assert guard.options.group is not None
    assert float(guard.penalty()) > 0


def fsdp_copies_of_shards_are_one_model(here):
    """Hybrid sharding: a mesh of copies times parts."""
    mesh = init_device_mesh("cpu", (here.size, 1), mesh_dim_names=("copies", "parts"))
    guard = anchorhold.Guard(sharded(here, mesh=mesh), "EWC")
    assert guard.consolidate([share(batch(0), here.rank, here.size)])["EWC"].samples == 8
    for name, value in anchorhold.Fisher().measure(net(), [batch(0)]).items():
        torch.testing.assert_close(whole(guard.importance[name]), value)


def fsdp_layers_that_are_cut_up_are_measured_along_the_path(here):
    """Tensor parallelism: every rank sees the same batch, and no rank has a layer."""
    mesh = init_device_mesh("cpu", (here.size,))
    model = net()
    for layer in (model[0], model[2]):
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
    guard = anchorhold.Guard(model, "SI")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    sum(parameter.square().sum() for parameter in model.parameters()).full_tensor().backward()
    optimizer.step()
    guard.consolidate()
    assert float(whole(guard.importance["0.weight"]).min()) >= 0
    assert guard.importance["0.weight"].placements == (Shard(0),)


def fsdp_batch_norms_are_frozen_and_not_folded(here):
    model = sharded(here, dense())
    frozen = anchorhold.Guard(model, "EWC", batch_norm="freeze")
    frozen.consolidate([share(batch(0), here.rank, here.size)])
    before = model[1].running_mean.clone()
    model.train()
    model(batch(0)[0])
    assert torch.equal(model[1].running_mean, before)
    frozen.detach()
    folding = anchorhold.Guard(model, "EWC", batch_norm="fold")
    with pytest.raises(anchorhold.errors.ConfigurationError, match="batch_norm='fold' with a sharded model"):
        folding.consolidate([share(batch(0), here.rank, here.size)])


def fsdp_halves_are_refused(here):
    model = sharded(here)
    guard = anchorhold.Guard(model, anchorhold.SOS(alpha=1.0))
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(anchorhold.errors.OrderError, match="cannot take the gradients of a sharded model apart"):
        guard.gradients.halves(loss(model, batch(0)), loss(model, batch(1)))
    distributed.barrier()


CHECKS = [check for name, check in list(globals().items()) if name.startswith("fsdp_")]
