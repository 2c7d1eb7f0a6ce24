"""Memory and time of measuring a sharded model from data: all of it gathered at once, or a layer at a time.

The peak of each process's resident memory while ``consolidate(batches)`` runs, less what was there before, in multiples
of the whole model's own bytes; and the seconds that it takes, of processes that share this machine's cores.

    python -m benchmarks.sharded_memory
"""

import argparse
import datetime as dt
import os
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

import anchorhold
from anchorhold.guard.distributed.gathering import Gather
from benchmarks.memory_probe import kilobytes, start_peak_anew

WIDTH, LAYERS, SAMPLES, CLASSES = 1024, 24, 32, 10


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def sharded(processes: int) -> nn.Module:
    model, mesh = network(), init_device_mesh("cpu", (processes,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def measured(processes: int, gather: Gather) -> tuple[float, float]:
    """Return the largest process's peak in multiples of the model, and the seconds of one consolidation."""
    model = sharded(processes)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    own = torch.randn(SAMPLES // processes, WIDTH, generator=torch.Generator().manual_seed(distributed.get_rank()))
    guard = anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(gather=gather))
    guard.rehearse([own])  # what torch sets up on its first passes
    distributed.barrier()
    start_peak_anew()
    before, began = kilobytes("VmRSS"), time.perf_counter()
    guard.consolidate([own])
    peak = torch.tensor((kilobytes("VmHWM") - before) * 1024 / size)
    distributed.all_reduce(peak, distributed.ReduceOp.MAX)
    return float(peak), time.perf_counter() - began


def work(rank: int, processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group(
        "gloo", f"file://{folder}/meet", timeout=dt.timedelta(minutes=5), rank=rank, world_size=processes
    )
    ways: tuple[Gather, ...] = ("model", "layers")
    for gather in ways:
        peak, seconds = measured(processes, gather)
        if rank == 0:
            print(f"| {processes} | {2 / processes:.2f} | {gather} | {peak:.2f} | {seconds:.1f} |", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    # Or the C library would keep what was freed for later, and the peak would be that of all there has ever been.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    print("| processes | Ω and anchor, which stay | gathered at once | peak | seconds |\n|---|---|---|---|---|")
    for processes in (2, 4):
        with tempfile.TemporaryDirectory() as place:
            spawn(work, (processes, str(Path(place))), nprocs=processes)
