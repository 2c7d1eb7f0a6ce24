"""Runs as a command makes them: shown while they go on, and stopped by Ctrl-C so that nothing is lost."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from anchorhold.errors import ConfigurationError
from anchorhold.registry import find_name
from anchorhold_lab.cli.interrupt import Interruption
from anchorhold_lab.cli.output import messages
from anchorhold_lab.cli.progress.json_lines import JsonLines
from anchorhold_lab.cli.progress.labels import Label, label_of_group
from anchorhold_lab.cli.progress.lines import Lines
from anchorhold_lab.cli.progress.listener import Display, Listener
from anchorhold_lab.cli.progress.live import LiveDisplay
from anchorhold_lab.cli.progress.tensorboard_log import TensorBoardLog
from anchorhold_lab.experiments import Event, Spec, Store, Summary, execute


@contextmanager
def session(
    *,
    as_json: bool,
    runs: int | None = None,
    label: Label = label_of_group,
    budget: float | None = None,
    tensorboard: Path | None = None,
    data_dir: Path | None = None,
    device: str | None = None,
    side_by_side: int | None = None,
    executor: str = "local",
    address: str | None = None,
    retry: bool = False,
) -> Iterator[Callable[[Sequence[Spec], Store], Summary]]:
    """Give a function that makes runs into a store, as often as it is called.

    Args:
        as_json: whether events go to stdout for machines, rather than to stderr for people.
        runs: how many runs there will be, where that is known.
        label: what runs are called where a person reads it.
        budget: after how many seconds to stop as if by Ctrl-C.
        tensorboard: a folder to log to.
        data_dir: the folder of data sets.
        device: what to train on.
        side_by_side: how many runs train together.
        executor: who makes the runs.
        address: the Ray cluster's, if that does.
        retry: whether to try failed runs again.
    """
    executor = find_name("executor", executor, ("local", "ray"))
    if address is not None and executor != "ray":
        raise ConfigurationError(f"--address {address}: a Ray cluster's; expected --executor ray beside it.")
    # On a cluster, the devices of this machine do not matter.
    chosen = _usable(device) if executor == "local" else device
    deadline = math.inf if budget is None else time.monotonic() + budget
    with ExitStack() as open_now:
        display = open_now.enter_context(_display(runs, label, as_json=as_json))
        listeners: list[Listener] = [display]
        if tensorboard is not None:
            listeners.append(open_now.enter_context(TensorBoardLog(tensorboard)))
        interruption = open_now.enter_context(Interruption())
        yield partial(
            open_now.enter_context(_on_ray(address)) if executor == "ray" else execute,
            data_dir=data_dir,
            device=chosen,
            side_by_side=side_by_side,
            on_event=_to_all(listeners, display, interruption),
            stop=lambda: interruption.requested.is_set() or time.monotonic() >= deadline,
            retry=retry,
        )


@contextmanager
def _on_ray(address: str | None) -> Iterator[Callable[..., Summary]]:
    """Give the executor for Ray, connected once for all that it will be asked for."""
    from anchorhold_lab.experiments.on_ray.connection import connected  # noqa: PLC0415 (Ray is an extra, and slow to import)
    from anchorhold_lab.experiments.on_ray.ray_executor import execute_on_ray  # noqa: PLC0415

    with connected(address):
        yield execute_on_ray


def _display(runs: int | None, label: Label, *, as_json: bool) -> Display:
    if as_json:
        return JsonLines()
    console = messages()
    return LiveDisplay(console, runs, label) if console.is_terminal else Lines(console, runs, label)


def _to_all(listeners: Sequence[Listener], display: Display, interruption: Interruption) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if interruption.is_new():
            display.stopping()
        for listen in listeners:
            listen(event)

    return tell


def _usable(device: str | None) -> str | None:
    """Return a device that is there and can train."""
    if device is None:
        return None
    try:
        weight = torch.ones(1, device=device, requires_grad=True)
        weight.square().sum().backward()
        weight.sum().item()
    except Exception as error:  # for a device that is not built in, torch raises what its extension would
        reason = f"{(str(error).splitlines() or [type(error).__name__])[0].rstrip('.')}."
        raise ConfigurationError(f"--device {device!r} cannot be used: {reason} Try cpu, or leave it out.") from error
    return device
