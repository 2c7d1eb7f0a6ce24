"""Running checks in several processes that talk to each other, all of them started once.

A check takes milliseconds, and to start a process takes more, so each goes through all checks of a file, in order.
"""

import datetime as dt
import gc
import traceback
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed, multiprocessing

import anchorhold
from tests.forked import CONTEXT
from tests.limits import limit


@dataclass
class Here:
    """What a check knows about the process that it runs in."""

    rank: int
    size: int
    folder: Path


def run_checks(processes, modules, folder):
    """Run the checks of some modules in so many processes; return what went wrong, by check and rank."""
    folder.mkdir(exist_ok=True)
    start = CONTEXT.get_start_method()
    multiprocessing.start_processes(_process, (processes, modules, folder), processes, start_method=start)
    return {
        (name, rank): (folder / f"{name}.{rank}").read_text() if (folder / f"{name}.{rank}").exists() else "never ran"
        for name in names(modules)
        for rank in range(processes)
    }


def names(modules):
    """The names of the checks in some modules."""
    return [check.__name__ for module in modules for check in import_module(module).CHECKS]


def _process(rank, size, modules, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("error", anchorhold.AnchorholdWarning)
    warnings.filterwarnings("ignore", message="This guard holds nothing yet")  # most checks begin from scratch
    warnings.filterwarnings("ignore", message="No strength was given")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=dt.timedelta(seconds=limit(20)),  # a check that waits for ever fails instead
    )
    for check in [check for module in modules for check in import_module(module).CHECKS]:
        try:
            check(Here(rank, size, folder))
        except BaseException:  # noqa: BLE001
            (folder / f"{check.__name__}.{rank}").write_text(traceback.format_exc())
            return  # the other processes are somewhere else now; whatever they wait for will not come
        (folder / f"{check.__name__}.{rank}").write_text("")
    distributed.barrier()  # gloo may abort a process whose neighbour has left before it
    distributed.destroy_process_group()
    gc.collect()  # frees the process group: a gloo thread that outlives the interpreter may abort it


def everyones(value):
    """What every process has."""
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def all_equal(tensors):
    """Whether every process has the same named tensors, bit for bit."""
    first, *others = everyones({name: tensor.detach() for name, tensor in tensors.items()})
    return all(
        other.keys() == first.keys() and all(torch.equal(other[name], first[name]) for name in first)
        for other in others
    )
