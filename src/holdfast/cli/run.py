"""``holdfast run``: one scenario, some measures, some seeds, into a store."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from holdfast.cli.interrupt import Interruption
from holdfast.cli.jsonlines import JsonLines
from holdfast.cli.lines import Lines
from holdfast.cli.listener import Display, Listener
from holdfast.cli.live import LiveDisplay
from holdfast.cli.log import TensorBoardLog
from holdfast.cli.options import seeds_of, specs_of, widths_of
from holdfast.cli.output import messages
from holdfast.cli.report import report
from holdfast.errors import ConfigurationError
from holdfast.experiments import Event, Store, execute

StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="HOLDFAST_STORE", help="The folder that results are kept in.")
]
DEFAULT_STORE = Path("holdfast-runs")

_PROTOCOL, _NETWORK, _MACHINE = "How tasks are learned", "Network and measures", "Where and how it runs"


def _option(*names: str, help: str, panel: str, min: float | None = None) -> Any:
    return typer.Option(*names, help=help, min=min, rich_help_panel=panel, show_default=False)


def run(
    scenario: Annotated[
        str,
        typer.Argument(help="permuted-digits or split-digits (built in), permuted-mnist, split-mnist, split-cifar."),
    ],
    measure: Annotated[
        list[str] | None, typer.Option("--measure", "-m", help="A measure; may be repeated. SOS if left out.")
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option("--strength", "-c", help="How strongly to protect. The measure's usual c if left out."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many runs of each measure: seeds 0, 1, …")] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="Just this seed; may be repeated.")] = None,
    tasks: Annotated[int | None, _option(help="How many tasks.", panel=_PROTOCOL)] = None,
    epochs: Annotated[int | None, _option(help="Epochs of every task.", panel=_PROTOCOL)] = None,
    later_epochs: Annotated[int | None, _option(help="Epochs from the second task on.", panel=_PROTOCOL)] = None,
    batch_size: Annotated[int | None, _option(help="Samples of a step.", panel=_PROTOCOL)] = None,
    lr: Annotated[float | None, _option(help="The learning rate.", panel=_PROTOCOL)] = None,
    optimizer: Annotated[str | None, _option(help="adam, or sgd with momentum.", panel=_PROTOCOL)] = None,
    momentum: Annotated[float | None, _option(help="Of SGD.", panel=_PROTOCOL)] = None,
    reinit: Annotated[
        bool | None, _option("--reinit/--no-reinit", help="Draw weights anew before each task.", panel=_PROTOCOL)
    ] = None,
    samples: Annotated[int | None, _option(help="Samples for measures after training.", panel=_PROTOCOL)] = None,
    validation: Annotated[
        bool, _option("--validation", help="Judge by samples kept back from training.", panel=_PROTOCOL)
    ] = False,
    hidden: Annotated[str | None, _option(help="Widths of hidden layers, such as 100,100.", panel=_NETWORK)] = None,
    watch: Annotated[
        list[str] | None, _option(help="A measure that only observes; may be repeated.", panel=_NETWORK)
    ] = None,
    assign: Annotated[
        list[str] | None,
        _option(
            "--set", help="A measure's setting: damping=0.01 or SIU.damping=0.01; may be repeated.", panel=_NETWORK
        ),
    ] = None,
    precision: Annotated[str | None, _option(help="fp32, tf32 or bf16, of matrix products.", panel=_MACHINE)] = None,
    engine: Annotated[str | None, _option(help="fast, or plain for the readable loop.", panel=_MACHINE)] = None,
    device: Annotated[str | None, _option(help="cpu, cuda, cuda:1, …; a GPU if there is one.", panel=_MACHINE)] = None,
    side_by_side: Annotated[
        int | None, _option(help="How many seeds train together; 8 on a GPU.", panel=_MACHINE, min=1)
    ] = None,
    data_dir: Annotated[
        Path | None, _option(help="The data folder; else $HOLDFAST_DATA, else ~/.cache/holdfast/data.", panel=_MACHINE)
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    *,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Log to TensorBoard in this folder.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object an event.")] = False,
) -> None:
    """Train one scenario with some measures, and keep what comes out.

    What is left out is as in the paper, or as usual for the digits.

    A finished run is never made again. A stopped one goes on when asked for again.
    """
    specs = specs_of(
        scenario,
        measures=measure or ["SOS"],
        seeds=seeds_of(seeds, seed or ()),
        watch=watch or (),
        assignments=assign or (),
        changes={
            "strength": strength,
            "tasks": tasks,
            "epochs": epochs,
            "later_epochs": later_epochs,
            "batch_size": batch_size,
            "learning_rate": lr,
            "optimizer": optimizer,
            "momentum": momentum,
            "reinitialise": reinit,
            "samples": samples,
            "judge_by": "validation" if validation else None,
            "hidden": widths_of(hidden),
            "precision": precision,
            "engine": engine,
        },
    )
    place, chosen = Store(store), _usable(device)
    with ExitStack() as open_now:
        display = open_now.enter_context(_display(len(specs), as_json=as_json))
        listeners: list[Listener] = [display]
        if tensorboard is not None:
            listeners.append(open_now.enter_context(TensorBoardLog(tensorboard)))
        interruption = open_now.enter_context(Interruption())
        summary = execute(
            specs,
            place,
            data_dir=data_dir,
            device=chosen,
            side_by_side=side_by_side,
            on_event=_to_all(listeners, display, interruption),
            stop=interruption.requested,
            retry=retry_failed,
        )
    report(specs, place, summary, as_json=as_json)


def _display(runs: int, *, as_json: bool) -> Display:
    if as_json:
        return JsonLines()
    console = messages()
    return LiveDisplay(console, runs) if console.is_terminal else Lines(console)


def _to_all(listeners: Sequence[Listener], display: Display, interruption: Interruption) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if interruption.is_new():
            display.stopping()
        for listen in listeners:
            listen(event)

    return tell


def _usable(device: str | None) -> str | None:
    """Return a device that is there."""
    if device is None:
        return None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"--device {device!r} cannot be used: {reason} Try cpu, or leave it out.") from error
    return device
