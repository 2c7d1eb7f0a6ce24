"""Run independent computations side by side on a GPU, each on a stream of its own.

A decomposition of a matrix of a few thousand rows is a chain of small kernels, and leaves most of a GPU idle.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from anchorhold.tensors.matrices import products_in

T = TypeVar("T")

LANES = 4
"""Computations that run at once; each takes memory of its own."""


def side_by_side(tasks: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Return what each task returns, in their order. On a GPU they run in threads, elsewhere one after the other.

    Products are in single precision on a GPU, since that is switched for all threads at once.
    """
    if device.type != "cuda" or min(LANES, len(tasks)) < 2:
        return [task() for task in tasks]
    with products_in("float32", device):
        # Alone, since torch loads a library at the first decomposition, which threads must not do at once.
        first = tasks[0]()
        return [first, *_in_lanes(tasks[1:], device)]


def _in_lanes(tasks: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    here = torch.cuda.current_stream(device)
    streams = [torch.cuda.Stream(device) for _ in range(min(LANES, len(tasks)))]

    def run(lane: int) -> list[T]:
        with torch.cuda.device(device), torch.cuda.stream(streams[lane]), torch.no_grad():
            return [task() for task in tasks[lane :: len(streams)]]

    for stream in streams:
        # What is used here until now may be what earlier tasks left on this stream.
        stream.wait_stream(here)
    with ThreadPoolExecutor(len(streams)) as threads:
        found = list(threads.map(run, range(len(streams))))
    for stream in streams:
        here.wait_stream(stream)
    return [found[number % len(streams)][number // len(streams)] for number in range(len(tasks))]
