"""``anchorhold-lab runs plot``: one's own runs as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorhold.errors import ConfigurationError
from anchorhold_lab.cli.arguments import DEFAULT_STORE, StoreFolder
from anchorhold_lab.cli.commands.stored_runs.runs import Json, existing_store, find_run
from anchorhold_lab.cli.exits import complain
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.listing.filters import Measures, Scenarios, Where, chosen
from anchorhold_lab.cli.output import print_json, results
from anchorhold_lab.experiments.store.listing.reading_rows import rows_in

if TYPE_CHECKING:
    from anchorhold_lab.experiments import Result, Store


def plot_chosen(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs, by the beginnings of their ids; all if left out."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The picture: a PNG, PDF or SVG file, by its ending.")
    ] = Path("runs.png"),
    what: Annotated[
        list[str] | None,
        typer.Option(
            help="What to draw: accuracy, forgetting, trade-off, strength, following or matrix; may be repeated. All "
            "that the runs have if left out.",
            show_default=False,
        ),
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    measure: Measures = None,
    scenario: Scenarios = None,
    where: Where = None,
    *,
    as_json: Json = False,
) -> None:
    """Draw finished runs of one scenario.

    Accuracy over tasks, forgetting, what was learned against what was lost, accuracy against strength, what a
    tolerance did, and the accuracy on every task after each.

    Lines are means over seeds with standard errors; each method has one colour.
    """
    place = existing_store(store)
    with loading():
        from anchorhold_lab.experiments.plots.picture import plot_runs  # noqa: PLC0415 (matplotlib is an extra)

    every = rows_in(place.folder)
    wanted = {find_run(place, start) for start in ids or ()}
    finished = [row for row in every if row.figures is not None and (not wanted or row.id in wanted)]
    if missing := sorted(wanted - {row.id for row in finished}):
        raise ConfigurationError(
            f"Run {missing[0]} has no result to draw; `anchorhold-lab runs show {missing[0][:8]}` says why."
        )
    found = _results(place, [row.id for row in chosen(finished, measure, scenario, where)])
    if not found:
        raise ConfigurationError(f"None of the runs in {place.folder} is finished and all that was asked for.")
    drawn = plot_runs(found, out, what or ())
    if as_json:
        print_json({"picture": str(out), "runs": [result.spec.id for result in found], "what": drawn})
    else:
        results().print(f"{out}: {', '.join(drawn)} of {len(found)} run{'s' * (len(found) > 1)}", soft_wrap=True)
    complain(row.damage for row in every)


def _results(store: "Store", ids: list[str]) -> "list[Result]":
    return [result for run in ids if (result := store.get(run)) is not None]
