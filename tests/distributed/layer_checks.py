"""Measures from data of models that no process has whole, a layer at a time: what one process finds."""

import warnings

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import anchorhold
from anchorhold.engine import accumulator
from anchorhold.guard.distributed.whole_model import largest_layer
from anchorhold.tensors.gathered_at_use import Gatherer
from tests.distributed.problem import share, whole
from tests.distributed.watch_checks import cut_up, deep, layer_by_layer
from tests.guard.helpers import batch, loss
from tests.helpers import grouped


class Reader(nn.Module):
    """Of each way in which parameters are used: looked up, tied, in slices, as views, and where no rule sees them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.full((8,), 1.3))
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        h = self.table(x)
        h = h + self.attention(h, h, h, need_weights=False)[0] * self.scale.tanh()
        h = h + self.recurrent(self.convolution(h.mT).mT)[0]
        return (h @ self.table.weight.t()).mean(1)


def reader():
    torch.manual_seed(0)
    return nn.Sequential(Reader()).double()


def words(samples):
    return torch.randint(5, (samples, 3), generator=torch.Generator().manual_seed(samples))


def alone(model, batches, *measure, **options):
    """What one process finds."""
    return consolidated(anchorhold.Guard(model, *measure, **grouped(**options)), batches)


def consolidated(guard, batches):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several processes")
        guard.consolidate(batches)
    return guard


def check_same(guard, expected):
    for label in expected._core.state.ledgers:
        for name, value in expected.held.of(label).items():
            found = guard.held.of(label)[name]
            torch.testing.assert_close(whole(found), value, rtol=1e-9, atol=1e-14, msg=f"{label} {name}")
            assert found.placements == dict(guard._core.runtime.model.named_parameters())[name].placements


def layers_are_gathered_one_at_a_time(here):
    """One rank has no batch, drawn labels are those that one process draws, and what is kept is a rank's own part."""
    most = []
    plain = Gatherer.whole
    Gatherer.whole = lambda self, *args: (plain(self, *args), most.append(sum(t.nbytes for t in self._kept.values())))[
        0
    ]
    try:
        own = [] if here.rank == 2 else [words(1 + here.rank)]
        model = layer_by_layer(reader(), init_device_mesh("cpu", (here.size,)))
        measures = {"watch": ["EWC-sampled"], "measure": anchorhold.Fisher(samples=6)}
        guard = anchorhold.Guard(model, **grouped(**measures, gather="layers"))
        guard.consolidate(own)
    finally:
        Gatherer.whole = plain
    check_same(guard, alone(reader(), [words(1), words(2), words(4)], **measures))
    assert len(most) > len(list(model.parameters()))
    assert max(most) <= largest_layer(model) < sum(p.numel() * p.element_size() for p in model.parameters()) / 2
    assert all(isinstance(p, DTensor) for p in model.parameters())


def layers_are_gathered_in_the_same_chunks_whatever_each_process_has_free(here):
    plain, asked = accumulator.enlarged_budget, []
    accumulator.enlarged_budget = lambda budget, *given: (asked.append(given), budget)[1]
    try:
        model = layer_by_layer(deep(), init_device_mesh("cpu", (here.size,)))
        guard = anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(gather="layers"))
        guard.consolidate([share(batch(0, 8), here.rank, here.size)])
        assert not asked
        expected = alone(deep(), [batch(0, 8)], "EWC")
        assert asked  # by one process alone, which may take what it has
    finally:
        accumulator.enlarged_budget = plain
    check_same(guard, expected)


def layers_of_copies_of_parts_with_a_gradient_term(here):
    batches = [batch(seed, 8) for seed in range(2)]
    options = {"anchor": "mean", "gradient_term": True, "strength": 0.5}
    mesh = init_device_mesh("cpu", (2, here.size // 2), mesh_dim_names=("copies", "parts"))
    guard = anchorhold.Guard(layer_by_layer(deep(), mesh), "EWC", **grouped(gather="layers", **options))
    guard.consolidate([share(data, here.rank, here.size) for data in batches])
    expected = alone(deep(), batches, "EWC", **options)
    check_same(guard, expected)
    for name, value in expected.held.linear_term.items():
        torch.testing.assert_close(whole(guard.held.linear_term[name]), value, rtol=1e-9, atol=1e-14)


def two_tasks(model, own, **options):
    """Hold one task in a form, and consolidate a second."""
    guard = alone(model, own, "EWC", strength=3.0, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    for data in own[:2]:
        optimizer.zero_grad()
        loss(lambda x: whole(model(x)), data).backward()
        optimizer.step()
    consolidated(guard, own)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    return guard


def layers_that_are_cut_up_are_measured_and_held(here):
    """Tensor parallelism, and within FSDP2; beside holds that run the model."""
    batches = [batch(seed, 8) for seed in range(2)]
    mesh = init_device_mesh("cpu", (here.size // 2, 2), mesh_dim_names=("data", "tensor"))
    group = mesh["data"].get_group()
    own = [share(data, mesh["data"].get_local_rank(), group.size()) for data in batches]

    both = layer_by_layer(cut_up(mesh["tensor"]), mesh["data"])
    for form, model, data, options in (
        ("rotated", cut_up(init_device_mesh("cpu", (here.size,))), batches, {}),
        ("kronecker", both, own, {"group": group}),
    ):
        guard = two_tasks(model, data, form=form, implicit=form == "rotated", holds=old_batches(), **options)
        expected = two_tasks(deep(), batches, form=form, implicit=form == "rotated", holds=old_batches())
        check_same(guard, expected)
        torch.testing.assert_close(guard.penalty(), expected.penalty(), rtol=1e-8, atol=1e-14)


def old_batches():
    return [anchorhold.Replay([batch(7, 8)], share=0.5), anchorhold.Distillation([batch(8, 8)])]


class Halved(nn.Module):
    """A model that counts on having a part of a layer, as attention with fewer heads a process does."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.share = 1

    def forward(self, x):
        return self.down(self.up(x).tanh() / self.share)


def layers_that_cannot_be_measured_so_are_refused(here):
    mesh = init_device_mesh("cpu", (here.size,))
    model = cut_up(mesh)
    with pytest.raises(anchorhold.errors.ModelError, match="gather='model' with layers that are cut up"):
        anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(gather="model")).consolidate([batch(0)])
    for own in ([batch(here.rank)], [batch(0)] * (1 + here.rank % 2)):
        with pytest.raises(anchorhold.errors.BatchError, match="parts of the same layers were given different batches"):
            anchorhold.Guard(model, "EWC").consolidate(own)
    halved = parallelize_module(Halved().double(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    halved.up.register_forward_hook(lambda module, _, output: output * (1 + isinstance(module.weight, DTensor)))
    with pytest.raises(
        anchorhold.errors.ModelError, match="whole, the model gives other outputs: it counts on being cut up"
    ):
        anchorhold.Guard(halved, "EWC").consolidate([batch(0)])
    torch.manual_seed(0)
    normed = layer_by_layer(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double(), mesh)
    normed[1].running_mean += here.rank
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"disagree on '1.running_mean'.*torch.distributed.broadcast"
    ):
        anchorhold.Guard(normed, "EWC", options=anchorhold.GuardOptions(gather="layers")).consolidate([batch(0)])
    clamped = layer_by_layer(nn.Sequential(nn.Linear(4, 4)).double(), mesh)
    clamped[0].register_forward_pre_hook(lambda module, _: module.weight.data.clamp_(-1, 1))
    shortened = layer_by_layer(nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Flatten()).double(), mesh)
    for writes, inputs in ((clamped, batch(0)), (shortened, words(2))):
        with pytest.raises(anchorhold.errors.ModelError, match="forward pass writes to one of its parameters"):
            anchorhold.Guard(writes, "EWC", options=anchorhold.GuardOptions(gather="layers")).consolidate([inputs])
    for first, others in (("layers", "model"), (None, "layers")):
        guard = anchorhold.Guard(
            layer_by_layer(deep(), mesh), "EWC", options=anchorhold.GuardOptions(gather=others if here.rank else first)
        )
        for asked in (guard.rehearse, guard.consolidate):
            with pytest.raises(
                anchorhold.errors.ConfigurationError, match=r"disagree on gather: rank 0 has .* and rank 1 has"
            ):
                asked([batch(0)])
    with pytest.raises(anchorhold.errors.ConfigurationError, match="gather='all'; expected 'model', 'layers'"):
        anchorhold.Guard(deep(), "EWC", options=anchorhold.GuardOptions(gather="all"))
    distributed.barrier()


def layers_that_are_cut_up_may_zero_gradients_in_place(here):
    """A gradient that is zeroed and filled anew is another one, in parts too; one that is left is the last step's."""
    models = deep(), cut_up(init_device_mesh("cpu", (here.size,)))
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        options = anchorhold.GuardOptions(implicit=False, group=distributed.group.WORLD)
        guard = anchorhold.Guard(model, "L2", strength=1.0, options=options)
        guard.attach(optimizer)
        for seed in range(4):
            optimizer.zero_grad(set_to_none=False)
            loss(model, batch(seed, 8)).backward()
            optimizer.step()
            if seed == 1:
                guard.consolidate()
        with pytest.raises(anchorhold.errors.OrderError, match="called again without a new backward pass"):
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(whole(other), one, rtol=1e-10, atol=1e-12)


CHECKS = [each for name, each in list(globals().items()) if name.startswith("layers_")]
