"""Compiling a step, and recording it as a CUDA graph, so that replaying it costs one launch."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

STEPS_A_GRAPH = 6
"""Steps recorded in the longer of two graphs: what lies between two launches is then paid once for all of them."""
_WARM_UP = 3

T = TypeVar("T")


class Recording:
    """A step that has been recorded, and can be taken any number of times."""

    def __init__(
        self, take_step: Callable[[], None], changed: Sequence[Tensor], generators: Sequence[torch.Generator]
    ) -> None:
        """Record ``take_step`` without lasting effect on the tensors and generators that it changes."""
        tensors = [tensor.clone() for tensor in changed]
        streams = [generator.get_state() for generator in generators]
        # Libraries choose their algorithms and allocate their workspaces during the first steps.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with _fastest_convolutions():
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UP):
                    take_step()
                    for tensor, before in zip(changed, tensors, strict=True):
                        tensor.copy_(before)  # so that no count runs past the end of an epoch
            torch.cuda.current_stream().wait_stream(aside)
            self._one = _record(take_step, 1, generators)
            self._several = _record(take_step, STEPS_A_GRAPH, generators)
        for generator, stream in zip(generators, streams, strict=True):
            generator.set_state(stream)

    def take_steps(self, steps: int) -> None:
        """Take some steps; returns before the device has taken them."""
        for _ in range(steps // STEPS_A_GRAPH):
            self._several.replay()
        for _ in range(steps % STEPS_A_GRAPH):
            self._one.replay()


def _record(take_step: Callable[[], None], steps: int, generators: Sequence[torch.Generator]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        for _ in range(steps):
            take_step()
    return graph


@contextlib.contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms: a step that is replayed thousands of times is worth the search."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def in_parallel(works: Sequence[Callable[[], None]]) -> None:
    """Let the device do several things at the same time, and go on when all are done."""
    current = torch.cuda.current_stream()
    first, *others = works
    streams = [torch.cuda.Stream() for _ in others]
    for stream, work in zip(streams, others, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()
    first()
    for stream in streams:
        current.wait_stream(stream)


def beside(work: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Let a CUDA device do something beside what comes next, until what it finds is asked for."""
    if device.type != "cuda":
        at_once = work()
        return lambda: at_once
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = work()
        done = stream.record_event()

    def asked() -> T:
        torch.cuda.current_stream().wait_event(done)
        return found

    return asked


VARIANTS = 256
"""How many versions of one function may be compiled. torch's own limit is 8, after which it runs the rest uncompiled; a
process that goes through all measures meets it."""


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a function compiled for a CUDA device, and as it is for any other.

    The CPU path does without, so that it needs no C++ compiler. A function that cannot be compiled whole raises.
    """
    if device.type != "cuda":
        return function
    from torch import _dynamo as dynamo  # noqa: PLC0415 (takes a second to import, and only GPUs need it)

    fast = torch.compile(function, fullgraph=True, dynamic=False)

    def call(*args: Any) -> Any:
        with dynamo.config.patch(recompile_limit=VARIANTS):
            return fast(*args)

    return call
