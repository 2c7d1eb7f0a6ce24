"""Forms, own text, replay, distillation and a tolerance together, however a model is spread: what one process does."""

import warnings

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import anchorhold
from anchorhold import Distillation, Replay, Tolerance
from anchorhold.integrations.hub import from_pretrained, save_pretrained
from tests.distributed.problem import whole
from tests.distributed.processes import all_equal
from tests.helpers import grouped

TOKENS = 6
WAYS = {"rotated": ("DDP", "FSDP2"), "kronecker": ("HSDP",)}
"""How models are spread here, by form; a rotated one with copies of its shards is saved further down, and goes on."""


class Small(nn.Module):
    """A causal language model with a norm, an embedding, and layers with and without a bias."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(TOKENS, 8)
        self.norm = nn.LayerNorm(8)
        self.body = nn.Linear(8, 10)
        self.head = nn.Linear(10, TOKENS, bias=False)
        self.double()

    def forward(self, tokens):
        return self.head(self.body(self.norm(self.tokens(tokens).cumsum(1))).tanh()) * 3


def sharded(model, mesh):
    for layer in (model.tokens, model.body, model.head):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def ways(here):
    """The ways of spreading a model over all processes."""
    copies = init_device_mesh("cpu", (here.size // 2, 2), mesh_dim_names=("copies", "parts"))
    return {
        "DDP": DistributedDataParallel,
        "FSDP2": lambda model: sharded(model, init_device_mesh("cpu", (here.size,))),
        "HSDP": lambda model: sharded(model, copies),
    }


def written(model):
    """What the model writes itself; all processes write the same."""
    return anchorhold.write_text(getattr(model, "module", model), 16, 5, start=0, end=None, batch_size=8)


def own(batches, rank, size):
    return [tuple(part.chunk(size)[rank] for part in batch) for batch in batches]


def made(model, form, text, rank, size, **options):
    batches = own(text.batches(8), rank, size)
    holds = [Replay(batches, share=0.25), Distillation(batches, 0.5)]
    return anchorhold.Guard(model, anchorhold.Fisher(labels="true"), form=form, holds=holds, **grouped(**options))


def train(model, optimizer, rank, size, steps):
    for seed in steps:
        tokens = torch.randint(TOKENS, (8, 5), generator=torch.Generator().manual_seed(seed)).chunk(size)[rank]
        optimizer.zero_grad()
        cross_entropy(model(tokens)[:, :-1].reshape(-1, TOKENS), tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()


def learned(model, form, rank=0, size=1, *, optimizer=torch.optim.Adam, steps=range(2), **options):
    """Let a model write, keep what it wrote, and learn something else twice."""
    text = written(model)
    guard = made(model, form, text, rank, size, **options)
    batches = own(text.batches(8), rank, size)
    guard.consolidate(batches)
    if "tolerance" in options:
        guard.keep([(inputs + 1) % TOKENS for inputs, _ in batches], "own")
    stepping = optimizer(model.parameters(), lr=0.02)
    guard.attach(stepping)
    for task in range(2):
        train(model, stepping, rank, size, [10 * task + seed for seed in steps])
        if task == 0:
            guard.consolidate(batches)
    return guard


def alone(*args, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed runs several processes")
        model = Small()
        return model, learned(model, *args, **options)


def check_same(model, guard, expected, alike):
    for name, value in expected.named_parameters():
        found = dict(guard.model.named_parameters())[name]
        torch.testing.assert_close(whole(found.detach()), value.detach(), rtol=1e-8, atol=1e-10, msg=name)
    for name, value in alike.importance.items():
        torch.testing.assert_close(whole(guard.importance[name]), value, rtol=1e-8, atol=1e-12, msg=name)
    penalty, wanted = guard.penalty(batches=False), alike.penalty(batches=False)
    torch.testing.assert_close(penalty, wanted, rtol=1e-7, atol=0)
    assert all_equal({"penalty": penalty})
    own = dict(guard.model.named_parameters())
    found = torch.autograd.grad(penalty, [own[name] for name, _ in expected.named_parameters()])
    gradients = torch.autograd.grad(wanted, list(expected.parameters()))
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(whole(one), other, rtol=1e-7, atol=1e-10)


def forms_with_all_holds_are_those_of_one_process(here):
    for form, spreads in WAYS.items():
        options = {"tolerance": Tolerance(0.2, every=1)}
        expected, alike = alone(form, **options)
        for spread in (ways(here)[way] for way in spreads):
            model = spread(Small())
            guard = learned(model, form, here.rank, here.size, **options)
            assert len(guard.control.trace) == len(alike.control.trace)
            for found, point in zip(guard.control.trace, alike.control.trace, strict=True):
                assert found.kl == pytest.approx(point.kl, rel=1e-7, abs=1e-12)
                assert found.strength == pytest.approx(point.strength, rel=1e-7)
            check_same(model, guard, expected, alike)


def forms_that_lean_or_pull_after_the_step(here):
    """The mean of all tasks with strengths by pattern, and the implicit hold."""
    several = {"strength": {"body*": 3.0, "*": 1.0}, "anchor": "mean"}
    for options in (several, {"strength": 2.0, "implicit": True, "optimizer": torch.optim.SGD}):
        expected, alike = alone("rotated", **options)
        model = ways(here)["FSDP2"](Small())
        guard = learned(model, "rotated", here.rank, here.size, **options)
        check_same(model, guard, expected, alike)


def forms_take_less_of_each_process(here):
    """Every process keeps some rows of each matrix, and can read what it asks for without the others."""
    whole_guard = alone("rotated", strength=1.0)[1]
    model = ways(here)["FSDP2"](Small())
    guard = learned(model, "rotated", here.rank, here.size, strength=1.0)
    kept = {key: tensor for key, tensor in guard.state_dict()["tensors"].items() if key.startswith("total/")}
    assert all(isinstance(tensor, DTensor) for tensor in kept.values())
    matrices = [matrix.state().values() for matrix in whole_guard.held.matrices.values()]
    every = sum(tensor.numel() for tensors in matrices for tensor in tensors)
    assert sum(tensor.to_local().numel() for tensor in kept.values()) <= 0.5 * every  # of four, some rows left over
    if here.rank == 0:  # nobody else asks
        assert "rotated" in repr(guard)
        assert guard.importance["body.weight"].to_local().shape[0] < 10
        assert float(guard.held.matrices["body.weight"].trace()) > 0


def forms_go_on_from_any_number_of_processes(here):
    """Saved by four, loaded by two, and by each alone: a distributed checkpoint, and one file."""
    model = ways(here)["HSDP"](Small())
    guard = learned(model, "rotated", here.rank, here.size, strength=1.0)
    text = written(Small())
    folder, path = here.folder / "rotated", here.folder / "rotated.safetensors"
    checkpoint.save({"guard": guard.state_dict(), "model": model.state_dict()}, checkpoint_id=folder)
    guard.save(path)
    save_pretrained(guard, here.folder / "shared", measured_from="what a model wrote itself")
    torch.distributed.barrier()
    expected, alike = alone("rotated", strength=1.0)
    with pytest.warns(anchorhold.AnchorholdWarning, match="away from those that"):
        shared = from_pretrained(here.folder / "shared", Small(seed=5), strength=1.0)
    for name, value in alike.importance.items():
        torch.testing.assert_close(shared.importance[name], value, rtol=1e-8, atol=1e-12)
    go_on(expected, alike, 0, 1)
    mesh = init_device_mesh("cpu", (here.size // 2, 2), mesh_dim_names=("pairs", "of"))["of"]
    for pair in (mesh, None):
        group, rank, size = (None, 0, 1) if pair is None else (pair.get_group(), pair.get_local_rank(), 2)
        for of in ("folder", "file"):
            again = Small(seed=5) if pair is None else sharded(Small(seed=5), pair)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed runs several processes")
                other = made(again, "rotated", text, rank, size, strength=1.0)
                state = {"model": again.state_dict()}
                if of == "folder":
                    state["guard"] = anchorhold.guard.blank_state_dict(
                        other, checkpoint.FileSystemReader(folder).read_metadata()
                    )
                checkpoint.load(state, checkpoint_id=folder, process_group=group, no_dist=pair is None)
                again.load_state_dict(state["model"])
                other.load(path) if of == "file" else other.load_state_dict(state["guard"])
                go_on(again, other, rank, size)
            for name, value in expected.named_parameters():
                found = dict(again.named_parameters())[name]
                torch.testing.assert_close(whole(found.detach()), value.detach(), rtol=1e-8, atol=1e-10, msg=name)


def go_on(model, guard, rank, size):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    train(model, optimizer, rank, size, range(30, 33))


def forms_that_need_more_are_refused_at_once(here):
    model = ways(here)["FSDP2"](Small())
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"form='lowrank' with parameters.*'rotated', 'kronecker'"
    ):
        anchorhold.Guard(model, "EWC", form="lowrank")


CHECKS = [each for name, each in list(globals().items()) if name.startswith("forms_")]
