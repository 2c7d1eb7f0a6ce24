"""``anchorhold-lab search``: the strength of a measure, found on validation data and then tested."""

from typing import Annotated

import typer

import anchorhold
from anchorhold.registry import find_name
from anchorhold_lab.cli import arguments
from anchorhold_lab.cli.interrupt import loading

USUAL_SEEDS, FIRST_SEARCH_SEED, FINALISTS = 3, 1000, 4
"""As ``lab/experiments/strengths/strength_search.py`` has them, which takes torch to load: help does without."""


def search(
    scenario: arguments.Scenario,
    measure: Annotated[str, typer.Option("--measure", "-m", help="The measure to find a strength for.")] = "SOS",
    low: Annotated[
        float | None,
        typer.Option("--from", help="The smallest strength to begin with; a tenth of the usual one if left out."),
    ] = None,
    high: Annotated[
        float | None, typer.Option("--to", help="The largest one; ten times the usual one if left out.")
    ] = None,
    relative: Annotated[
        bool,
        typer.Option(
            "--relative-strength",
            help="Search over strengths in units of the mean importance of a weight after the first task.",
        ),
    ] = False,
    reinit: Annotated[
        bool | None,
        typer.Option("--reinit/--no-reinit", help="Draw weights anew before each task. Both if left out."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=arguments.MOST_SEEDS, help="How many runs to test: seeds 0, 1, …")
    ] = USUAL_SEEDS,
    search_seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=arguments.MOST_SEEDS,
            help=f"How many runs to judge the {FINALISTS} best strengths by: seeds {FIRST_SEARCH_SEED}, …; the first "
            "judges all of them.",
        ),
    ] = USUAL_SEEDS,
    tasks: arguments.Tasks = None,
    sizes: arguments.Sizes = None,
    order: arguments.Order = None,
    epochs: arguments.Epochs = None,
    later_epochs: arguments.LaterEpochs = None,
    batch_size: arguments.BatchSize = None,
    lr: arguments.LearningRate = None,
    optimizer: arguments.Optimizer = None,
    momentum: arguments.Momentum = None,
    rate_decay: arguments.RateDecay = None,
    compress: arguments.Compress = None,
    samples: arguments.Samples = None,
    consolidate: arguments.Consolidate = None,
    hidden: arguments.Hidden = None,
    network: arguments.Network = None,
    form: arguments.Form = None,
    hold: arguments.Holds = None,
    anchor: arguments.Anchor = None,
    incremental: arguments.Incremental = None,
    batch_norm: arguments.BatchNorm = None,
    assign: arguments.Assignments = None,
    precision: arguments.Precision = None,
    engine: arguments.EngineName = None,
    device: arguments.Device = None,
    side_by_side: arguments.SideBySide = None,
    executor: arguments.ExecutorName = "local",
    address: arguments.Address = None,
    data_dir: arguments.DataFolder = None,
    store: arguments.StoreFolder = arguments.DEFAULT_STORE,
    own_file: arguments.OwnFile = None,
    *,
    gradient_term: arguments.GradientTerm = False,
    implicit: arguments.Implicit = False,
    retry_failed: arguments.RetryFailed = False,
    tensorboard: arguments.TensorBoard = None,
    as_json: arguments.EventsAsJson = False,
) -> None:
    """Find the best strength of a measure on validation data, then test it with other seeds.

    Strengths are 1, 2 and 5 times powers of ten. Where the best one lies at an end, the grid is extended.
    The few that do best with one seed are repeated with others, and the best mean is chosen.

    Every run is kept: a search that was stopped goes on when asked for again, and one that is done costs nothing.
    """
    typed = locals()
    with loading():
        from anchorhold_lab.cli.commands.making_runs.search_report import report_search  # noqa: PLC0415
        from anchorhold_lab.cli.forewarning import forewarn  # noqa: PLC0415
        from anchorhold_lab.cli.options import (  # noqa: PLC0415
            asked_for,
            changes_of,
            form_and_holds,
            settings_of_measures,
        )
        from anchorhold_lab.cli.own_files import named_scenario  # noqa: PLC0415
        from anchorhold_lab.cli.progress.labels import label_in_search  # noqa: PLC0415
        from anchorhold_lab.cli.session import session  # noqa: PLC0415
        from anchorhold_lab.experiments import Store  # noqa: PLC0415
        from anchorhold_lab.experiments import search as search_for  # noqa: PLC0415

    scenario = named_scenario(scenario, own_file)
    measure = find_name("measure", measure, anchorhold.measures.default_measures())
    beside = form_and_holds(form, hold or (), assign or ())
    changes = asked_for(
        {
            **changes_of(typed),
            **beside.fields,
            "measure_settings": settings_of_measures(beside.left, [measure], [])[measure],
        }
    )
    forewarn(incremental, [measure], beside.fields.get("holds", ()), compress=bool(compress))
    place = Store(store)
    with session(
        as_json=as_json,
        label=label_in_search,
        tensorboard=tensorboard,
        data_dir=data_dir,
        device=device,
        side_by_side=side_by_side,
        executor=executor,
        address=address,
        retry=retry_failed,
    ) as execute:
        outcome = search_for(
            scenario,
            measure,
            place,
            low=low,
            high=high,
            relative=relative,
            reinitialise=reinit,
            seeds=range(seeds),
            search_seeds=range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search_seeds),
            run=execute,
            **changes,
        )
    report_search(outcome, place, as_json=as_json)
