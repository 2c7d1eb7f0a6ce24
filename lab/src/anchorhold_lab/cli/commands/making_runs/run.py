"""``anchorhold-lab run``: one scenario, some measures, some seeds, into a store."""

from typing import Annotated

import typer

from anchorhold_lab.cli import arguments
from anchorhold_lab.cli.interrupt import loading


def run(
    scenario: arguments.Scenario,
    measure: Annotated[
        list[str] | None, typer.Option("--measure", "-m", help="A measure; may be repeated. SOS if left out.")
    ] = None,
    strength: Annotated[
        list[str] | None,
        typer.Option(
            "--strength",
            "-c",
            help="How strongly to protect: 5, or SI=5 for one of several measures, once for each. The measure's usual "
            "c if left out.",
        ),
    ] = None,
    relative_strength: Annotated[
        list[str] | None,
        typer.Option(
            help="The same in units of the mean importance of a weight after the first task: 0.03, or SI=0.03.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=arguments.MOST_SEEDS, help="How many runs of each measure: seeds 0, 1, …"),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, max=arguments.LARGEST_SEED, help="Just this seed; may be repeated.")
    ] = None,
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
    reinit: Annotated[
        bool | None,
        arguments.protocol_option(
            "--reinit/--no-reinit",
            help="Draw weights anew before each task; with --compress, those of the second network alone.",
        ),
    ] = None,
    samples: arguments.Samples = None,
    consolidate: arguments.Consolidate = None,
    trains: arguments.Trains = None,
    validation: Annotated[
        bool, arguments.protocol_option("--validation", help="Judge by samples kept back from training.")
    ] = False,
    hidden: arguments.Hidden = None,
    network: arguments.Network = None,
    watch: arguments.Watch = None,
    probe: arguments.Probes = None,
    form: arguments.Form = None,
    hold: arguments.Holds = None,
    anchor: arguments.Anchor = None,
    tolerance: arguments.ToleratedLoss = None,
    kept: arguments.Kept = None,
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
    """Train one scenario with some measures, and keep what comes out.

    What is left out is as in the paper, or as usual for the digits.

    A finished run is never made again. A stopped one goes on when asked for again.
    """
    typed = locals()
    with loading():
        from anchorhold_lab.cli.commands.making_runs.run_report import report  # noqa: PLC0415
        from anchorhold_lab.cli.forewarning import forewarn  # noqa: PLC0415
        from anchorhold_lab.cli.options import (  # noqa: PLC0415
            changes_of,
            form_and_holds,
            seeds_of,
            specs_of,
        )
        from anchorhold_lab.cli.own_files import named_scenario  # noqa: PLC0415
        from anchorhold_lab.cli.session import session  # noqa: PLC0415
        from anchorhold_lab.experiments import Store  # noqa: PLC0415

    scenario = named_scenario(scenario, own_file)
    beside = form_and_holds(form, hold or (), assign or (), tolerance)
    specs = specs_of(
        scenario,
        measures=measure or ["SOS"],
        seeds=seeds_of(seeds, seed or ()),
        strengths=strength or (),
        relative_strengths=relative_strength or (),
        watch=watch or (),
        assignments=beside.left,
        changes={
            **changes_of(typed),
            "reinitialise": reinit,
            "trains": trains,
            "judge_by": "validation" if validation else None,
            "probes": tuple(probe) if probe else None,
            "kept": kept,
            **beside.fields,
        },
    )
    compresses = bool(specs[0].settings.compress)
    forewarn(incremental, [spec.measure for spec in specs], specs[0].holds, compress=compresses)
    place = Store(store)
    with session(
        as_json=as_json,
        runs=len(specs),
        tensorboard=tensorboard,
        data_dir=data_dir,
        device=device,
        side_by_side=side_by_side,
        executor=executor,
        address=address,
        retry=retry_failed,
    ) as execute:
        summary = execute(specs, place)
    report(specs, place, summary, as_json=as_json)
