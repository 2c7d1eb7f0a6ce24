"""Importance from micro-batches, of models that no process has whole: what one process finds with all samples."""

import warnings

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from tests.distributed.problem import share, whole
from tests.guard.helpers import batch
from tests.helpers import grouped

MEASURES = {"measure": anchorhold.Fisher(labels="true", samples=27), "watch": ["SOS"]}


def deep():
    torch.manual_seed(0)
    sizes = [(4, 8), (8, 8), (8, 8), (8, 4)]
    return nn.Sequential(*(nn.Sequential(nn.Linear(*size), nn.Tanh()) for size in sizes)).double()


def layer_by_layer(model, mesh):
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def expected(batches):
    """What one process finds."""
    guard = anchorhold.Guard(deep(), **grouped(**MEASURES))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several processes")
        guard.gradients.microbatches(batches)
    guard.consolidate()
    return guard


def check(model, own, batches, **options):
    guard = anchorhold.Guard(model, **grouped(**MEASURES, **options))
    guard.gradients.microbatches(own)
    found = guard.consolidate()
    alone = expected(batches)
    assert found["EWC-empirical"].samples == 27
    for label in ("EWC-empirical", "SOS"):
        for name, value in alone.held.of(label).items():
            torch.testing.assert_close(whole(guard.held.of(label)[name]), value, rtol=1e-10, atol=1e-15)
    return guard


def watching_ddp_ranks_have_micro_batches_of_their_own(here):
    """So that those of one sample give the empirical Fisher of all of them, with no communication but at the end."""
    x, y = batch(0, 2 * here.size + 1)
    own = [(x[n : n + 1], y[n : n + 1]) for n in range(here.rank, len(x), here.size)]  # one rank has one more
    guard = anchorhold.Guard(DistributedDataParallel(deep()), anchorhold.Fisher(labels="true"))
    guard.gradients.microbatches(own)
    guard.consolidate()
    for name, value in anchorhold.Fisher(labels="true").measure(deep(), [(x, y)]).items():
        torch.testing.assert_close(guard.importance[name], value, rtol=1e-10, atol=1e-15)


def watching_sharded_models_gathers_a_layer_at_a_time(here):
    """A micro-batch is made of a batch from each process; one that has fewer goes on with weight 0."""
    batches = [batch(seed, 2 * here.size) for seed in range(4)]
    own = [share(data, here.rank, here.size) for data in batches]
    last = here.size - 1
    if here.rank == last:
        own = own[:3]
    batches[3] = tuple(part[: 2 * last] for part in batches[3])
    most = []
    copies = init_device_mesh("cpu", (here.size // 2, 2), mesh_dim_names=("copies", "parts"))
    for mesh in (init_device_mesh("cpu", (here.size,)), copies):
        model = layer_by_layer(deep(), mesh)
        for _, tanh in model:
            tanh.register_forward_hook(lambda _, __, output, m=model: note(m, output, most))
        guard = check(model, own, batches)
        assert isinstance(guard.importance["0.0.weight"], DTensor)
    sizes = sorted(sum(p.numel() for p in layer.parameters()) for layer in deep())
    assert 0 < max(most) <= sum(sizes[-2:])  # the next one is gathered ahead


def watching_goes_on_from_a_file(here):
    """Of sharded weights, with those that were loaded; not where each process draws labels by itself."""
    mesh = init_device_mesh("cpu", (here.size,))
    own = [share(batch(seed, 2 * here.size), here.rank, here.size) for seed in range(2)]
    guard, again = (anchorhold.Guard(layer_by_layer(deep(), mesh), "EWC-empirical") for _ in range(2))
    guard.gradients.microbatches(own)
    guard.save(here.folder / "between.safetensors")
    with pytest.warns(anchorhold.AnchorholdWarning, match="with sharded weights, and whether the model's are the same"):
        again.load(here.folder / "between.safetensors")
    for each in (guard, again):
        each.consolidate()
    for name, value in guard.importance.items():
        assert torch.equal(value.to_local(), again.importance[name].to_local())
    drawing = anchorhold.Guard(layer_by_layer(deep(), mesh), "EWC-sampled")
    drawing.gradients.microbatches(own)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match="processes that draw labels each by itself, is without what was"
    ):
        drawing.state_dict()


def note(model, output, most):
    """Note how many weights this process has of layers that are gathered, in a layer's forward and backward pass."""

    def gathered(_=None):
        most.append(sum(p.numel() for p in model.parameters() if not isinstance(p, DTensor)))

    gathered()
    output.register_hook(gathered)


def cut_up(mesh):
    """Tensor parallelism, the way of torch's own."""
    ways = {f"{n}.0": ColwiseParallel() if n % 2 == 0 else RowwiseParallel() for n in range(4)}
    return parallelize_module(deep(), mesh, ways)


def watching_layers_that_are_cut_up(here):
    batches = [batch(seed, 8) for seed in range(4)]
    guard = check(cut_up(init_device_mesh("cpu", (here.size,))), batches, batches)
    assert guard.importance["0.0.weight"].to_local().shape == (8 // here.size, 4)
    mesh = init_device_mesh("cpu", (here.size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = layer_by_layer(cut_up(mesh["tensor"]), mesh["data"])
    data = mesh["data"].get_group()
    own = [share(part, mesh["data"].get_local_rank(), data.size()) for part in batches]
    check(model, own, batches, group=data)


def watching_refuses_what_nobody_brings_together(here):
    model = deep()
    fully_shard(model[0], mesh=init_device_mesh("cpu", (here.size,)))
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))
    with pytest.raises(anchorhold.errors.ModelError, match=r"'1\.0\.weight', which FSDP leaves as it is"):
        guard.gradients.microbatches([batch(0)])
    model = layer_by_layer(deep(), init_device_mesh("cpu", (here.size,)))
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))
    with pytest.raises(anchorhold.errors.BatchError, match="a process that was given no batch at all"):
        guard.gradients.microbatches([] if here.rank == 1 else [batch(0)])
    model[0].set_gradient_divide_factor(1.0)
    with pytest.raises(anchorhold.errors.OrderError, match="told to divide sums of gradients by 1"):
        guard.gradients.microbatches([batch(0)])
    model.set_requires_gradient_sync(False)
    with pytest.raises(anchorhold.errors.OrderError, match="told not to bring gradients together"):
        guard.gradients.microbatches([batch(0)])
    distributed.barrier()


CHECKS = [each for name, each in list(globals().items()) if name.startswith("watching_")]
