"""What a guard sends between processes at every step, beside what DDP and FSDP2 send by themselves.

Counted, not timed: calls and bytes of collectives in one step of four processes on this machine, with a guard and
without. The bytes of a call are those of its result on each process.

    python -m benchmarks.communication
"""

import argparse
import datetime as dt
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import anchorhold

PROCESSES = 4
WIDTH, LAYERS, BATCH, CLASSES = 128, 4, 16, 10
WAITS = ("barrier", "wait", "monitored", "work")


class Counted(TorchDispatchMode):
    """Counts the collectives of a step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self.calls = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        namespace, _, name = str(func).partition(".")
        if namespace in ("c10d", "_c10d_functional") and not any(word in name for word in WAITS):
            tensors = [leaf for leaf in tree_leaves((args, found)) if isinstance(leaf, Tensor)]
            self.calls += 1
            self.bytes += max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
        return found


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def sharded(shape: tuple[int, ...], names: tuple[str, ...]) -> nn.Module:
    model, mesh = network(), init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WAYS: dict[str, Callable[[], nn.Module]] = {
    "DDP": lambda: DistributedDataParallel(network()),
    "FSDP2": lambda: sharded((PROCESSES,), ("parts",)),
    "HSDP 2×2": lambda: sharded((2, 2), ("copies", "parts")),
}


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 1000 * distributed.get_rank())
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)


GUARDS: dict[str, Callable[[], dict[str, Any]]] = {
    "no guard": dict,
    "diagonal (SI, EWC, SOS, …)": lambda: {"measure": anchorhold.Fisher(labels="true"), "strength": 1.0},
    "rotated": lambda: {"measure": anchorhold.Fisher(labels="true"), "strength": 1.0, "form": "rotated"},
    "kronecker": lambda: {"measure": anchorhold.Fisher(labels="true"), "strength": 1.0, "form": "kronecker"},
    "replay": lambda: {"measure": "fine-tune", "strength": 0.0, "holds": [anchorhold.Replay([batch(7)], share=0.5)]},
    "distillation": lambda: {"measure": "fine-tune", "strength": 0.0, "holds": [anchorhold.Distillation([batch(7)])]},
    "tolerance, at a look": lambda: {
        "measure": anchorhold.Fisher(labels="true"),
        "tolerance": anchorhold.Tolerance(1.0, every=1),
    },
}


def counted(make: Callable[[], nn.Module], arguments: dict[str, Any]) -> tuple[int, int]:
    """Return the calls and bytes of one step in the middle of a task."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if arguments:
        guard = anchorhold.Guard(model, **arguments, options=anchorhold.GuardOptions(implicit=False))
        guard.consolidate([batch(5)])
        if "tolerance" in arguments:
            guard.keep([batch(6)], "old")
        guard.attach(optimizer)
    for seed in range(3):
        mode = Counted()
        with mode:
            optimizer.zero_grad()
            x, y = batch(seed)
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return mode.calls, mode.bytes


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group(
        "gloo", f"file://{folder}/meet", timeout=dt.timedelta(minutes=5), rank=rank, world_size=PROCESSES
    )
    size = sum(parameter.numel() * parameter.element_size() for parameter in network().parameters())
    lines = [
        f"| calls, bytes in multiples of the model's {size:,} | {' | '.join(WAYS)} |",
        "|---" * (len(WAYS) + 1) + "|",
    ]
    plain: dict[str, tuple[int, int]] = {}
    for name, options in GUARDS.items():
        cells = []
        for way, make in WAYS.items():
            calls, many = counted(make, options())
            plain.setdefault(way, (calls, many))
            if name != "no guard":
                calls, many = calls - plain[way][0], many - plain[way][1]
            sign = "" if name == "no guard" else "+"
            cells.append(f"{sign}{calls}, {sign}{many / size:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if rank == 0:
        print("\n".join(lines))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as place:
        spawn(work, (str(Path(place)),), nprocs=PROCESSES)
