"""``python -m studies.benzing2020``: the paper's tables and figures, from runs to a report."""

import math
from pathlib import Path
from typing import Annotated

import typer

from anchorhold.errors import ConfigurationError
from anchorhold.registry import find_name
from anchorhold_lab.cli import arguments
from anchorhold_lab.cli.exits import MEANINGS, OneCommand
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.output import messages, results, table
from studies.benzing2020.command_report import report_reproduction

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(cls=OneCommand, epilog=MEANINGS)
def reproduce(
    ctx: typer.Context,
    item: Annotated[
        list[str] | None,
        typer.Argument(help="table1, figure1, figure2, … or all. Left out, they are listed.", show_default=False),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="paper, quick (real data, a few minutes on a GPU) or digits (no download).")
    ] = "paper",
    study: Annotated[
        list[str] | None,
        typer.Option(help="Of the relatives, only this study, such as one-pass; may be repeated.", show_default=False),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Of these, only this method, such as GPM; may be repeated.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that the report is written to.")] = Path("anchorhold-report"),
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="Stop after so many seconds, saved, for the same command to go on.", show_default=False
        ),
    ] = None,
    device: arguments.Device = None,
    side_by_side: arguments.SideBySide = None,
    executor: arguments.ExecutorName = "local",
    address: arguments.Address = None,
    data_dir: arguments.DataFolder = None,
    store: arguments.StoreFolder = arguments.DEFAULT_STORE,
    *,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Make no runs; report on those that there are.")
    ] = False,
    retry_failed: arguments.RetryFailed = False,
    as_json: arguments.EventsAsJson = False,
) -> None:
    """Make the paper's tables and figures, and a report that checks its claims.

    Runs that are in the store are not made again, and the report is written from what there is, also when it was
    stopped.
    """
    # Matplotlib takes a second to load, which the other commands should not wait for.
    with loading():
        from anchorhold_lab.cli.session import session  # noqa: PLC0415
        from anchorhold_lab.experiments import Store  # noqa: PLC0415
        from studies.benzing2020 import ITEMS, PRESETS, items_named, run_nothing  # noqa: PLC0415
        from studies.benzing2020 import reproduce as make  # noqa: PLC0415
        from studies.benzing2020.relatives.narrowing import some_of  # noqa: PLC0415

    if not item:
        shown = table("item", "what it is", wrap=("what it is",))
        for each in ITEMS.values():
            shown.add_row(each.name, each.title)
        results().print(shown)
        if _options_given(ctx):
            messages().print("Nothing was run or reported: name items, or all, beside the options.", soft_wrap=True)
        return
    if budget is not None and only_report:
        raise ConfigurationError("--budget and --only-report: expected one or the other, since a report makes no runs.")
    if budget is not None and math.isnan(budget):
        raise ConfigurationError(f"--budget {budget}: expected a number of seconds.")
    chosen = items_named([find_name("item", name, ["all", *ITEMS]) for name in item])
    size = PRESETS[find_name("preset", preset, PRESETS)]
    if study or method:
        if [each.name for each in chosen] != ["relatives"]:
            raise ConfigurationError("--study and --method choose among the relatives: expected that item alone.")
        size = size.with_relatives(some_of(size.relatives, study or (), method or ()))
    place = Store(store)

    if only_report:
        report_reproduction(make(chosen, size, place, out, run=run_nothing), as_json=as_json, only_report=True)
        return
    with session(
        as_json=as_json,
        budget=budget,
        data_dir=data_dir,
        device=device,
        side_by_side=side_by_side,
        executor=executor,
        address=address,
        retry=retry_failed,
    ) as execute:
        found = make(chosen, size, place, out, run=execute)
    report_reproduction(found, as_json=as_json)


def _options_given(ctx: typer.Context) -> bool:
    """Whether anything was typed but the command itself; what the environment says is not."""
    sources = (ctx.get_parameter_source(name) for name in ctx.params)
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)
