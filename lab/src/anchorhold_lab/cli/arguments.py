"""The options that several commands share, each described once."""

from pathlib import Path
from typing import Annotated, Any

import typer

_PROTOCOL, _NETWORK, _MACHINE = "How tasks are learned", "Network and measures", "Where and how it runs"

DEFAULT_STORE = Path("anchorhold-runs")
LARGEST_SEED = 2**63 - 1
MOST_SEEDS = 10_000
"""Of one command: beyond it, writing down what to run would take longer than anyone waits without a word."""


def _option(*names: str, help: str, panel: str, min: float | None = None) -> Any:
    return typer.Option(*names, help=help, min=min, rich_help_panel=panel, show_default=False)


Scenario = Annotated[
    str,
    typer.Argument(
        help="permuted-digits or split-digits (built in), permuted-mnist, split-mnist, split-cifar; or FILE.py:NAME, "
        "one that a file of your own registers."
    ),
]
OwnFile = Annotated[
    list[Path] | None,  # of which there may be one: the last of several would be taken without a word
    typer.Option("--with", help="A Python file that registers measures or networks of your own.", show_default=False),
]

Tasks = Annotated[int | None, _option(help="How many tasks.", panel=_PROTOCOL)]
Epochs = Annotated[int | None, _option(help="Epochs of every task.", panel=_PROTOCOL)]
LaterEpochs = Annotated[int | None, _option(help="Epochs from the second task on.", panel=_PROTOCOL)]
BatchSize = Annotated[int | None, _option(help="Samples of a step.", panel=_PROTOCOL)]
LearningRate = Annotated[float | None, _option("--lr", help="The learning rate.", panel=_PROTOCOL)]
Optimizer = Annotated[str | None, _option(help="adam, adamw, or sgd with momentum.", panel=_PROTOCOL)]
Momentum = Annotated[float | None, _option(help="Of SGD.", panel=_PROTOCOL)]
RateDecay = Annotated[
    float | None,
    _option(
        "--rate-decay",
        help="What is left of the learning rate at the last step of each task, as a share, such as 0.01.",
        panel=_PROTOCOL,
    ),
]
Compress = Annotated[
    int | None,
    _option(
        "--compress",
        help="Progress & Compress: a second network learns each task, and tells the protected one of it in so many "
        "epochs.",
        panel=_PROTOCOL,
    ),
]
Sizes = Annotated[
    str | None,
    _option(
        help="The share of its training samples that each task has, such as 1,0.1, by turns.",
        panel=_PROTOCOL,
    ),
]
Order = Annotated[
    str | None, _option(help="The order in which tasks are learned, from 0, such as 2,0,1.", panel=_PROTOCOL)
]
Samples = Annotated[int | None, _option(help="Samples for measures after training.", panel=_PROTOCOL)]

Trains = Annotated[
    str | None,
    _option(
        "--trains",
        help="sequentially, or as a bound: jointly, each task with all before it, or anew, each by itself.",
        panel=_PROTOCOL,
    ),
]

Consolidate = Annotated[
    str | None,
    _option(
        "--consolidate",
        help="When what was learned is held: at the end of tasks, after plateaus of the loss, or after so many steps.",
        panel=_PROTOCOL,
    ),
]

Hidden = Annotated[str | None, _option(help="Widths of hidden layers, such as 100,100.", panel=_NETWORK)]
Network = Annotated[
    str | None,
    _option(
        help="mlp, mlp-batch-norm, mlp-torch-init, cnn, or one that a file registers; the scenario's usual one.",
        panel=_NETWORK,
    ),
]
Watch = Annotated[
    list[str] | None,
    _option(help="A measure that only observes, for --probe to look at; may be repeated.", panel=_NETWORK),
]
Probes = Annotated[
    list[str] | None,
    _option(
        "--probe",
        help="What to keep of all measures, for Store.observations: importances, scatter, path or noise, or path:500 "
        "for so many steps a task, or lca; may be repeated.",
        panel=_NETWORK,
    ),
]
Form = Annotated[
    str | None,
    _option(
        "--form",
        help="How importance is kept: diagonal, rotated, kronecker, …; each wants a strength of its own.",
        panel=_NETWORK,
    ),
]
Holds = Annotated[
    list[str] | None,
    _option(
        "--hold",
        help="A hold beside the measure's own: replay, distillation (Learning without Forgetting), DER++, A-GEM, "
        "projection (GPM), asymmetric, variational (VCL); may be repeated.",
        panel=_NETWORK,
    ),
]
Anchor = Annotated[
    str | None,
    _option("--anchor", help="What weights are held to: last, or mean over all tasks' solutions.", panel=_NETWORK),
]
GradientTerm = Annotated[
    bool, _option("--gradient-term", help="Hold with the gradients of tasks' losses too (SOLA).", panel=_NETWORK)
]
Implicit = Annotated[
    bool,
    _option("--implicit", help="Hold after each step instead of in it, safe at any strength.", panel=_NETWORK),
]
ToleratedLoss = Annotated[
    float | None,
    _option(
        "--tolerance",
        help="In place of a strength: how much may be lost of any task, in nats a sample (KL), such as 0.1.",
        panel=_NETWORK,
    ),
]
Kept = Annotated[
    int | None,
    _option(
        "--kept",
        help="Training samples of each task to set aside, by which to see what is left of it; 300 with --tolerance.",
        panel=_NETWORK,
    ),
]
Incremental = Annotated[
    str | None,
    _option(
        "--incremental",
        help="Learn the tasks as another of the three kinds: task (a head each), domain (one head, the same labels in "
        "all) or class (one head that grows, with labels for each).",
        panel=_NETWORK,
    ),
]
BatchNorm = Annotated[
    str | None,
    _option(
        "--batch-norm",
        help="What becomes of running statistics after the first task: freeze, or fold them into the weights.",
        panel=_NETWORK,
    ),
]
Assignments = Annotated[
    list[str] | None,
    _option(
        "--set",
        help="A measure's setting: damping=0.01 or SIU.damping=0.01; of the form, a hold or the tolerance: "
        "form.NAME=VALUE, HOLD.NAME=VALUE or tolerance.NAME=VALUE; may be repeated.",
        panel=_NETWORK,
    ),
]

Precision = Annotated[str | None, _option(help="fp32, tf32 or bf16, of matrix products.", panel=_MACHINE)]
EngineName = Annotated[str | None, _option(help="fast, or plain for the readable loop.", panel=_MACHINE)]
Device = Annotated[str | None, _option(help="cpu, cuda, cuda:1, …; a GPU if there is one.", panel=_MACHINE)]
ExecutorName = Annotated[str, _option("--executor", help="local, or ray for a Ray cluster.", panel=_MACHINE)]
Address = Annotated[
    str | None,
    _option(help="Of the Ray cluster, HOST:PORT or auto; else $RAY_ADDRESS, else this machine.", panel=_MACHINE),
]
SideBySide = Annotated[
    int | None, _option(help="How many seeds and strengths train together; 10 on a GPU.", panel=_MACHINE, min=1)
]
DataFolder = Annotated[
    Path | None,
    _option(
        "--data-dir", help="The data folder; else $ANCHORHOLD_DATA, else ~/.cache/anchorhold/data.", panel=_MACHINE
    ),
]

StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="ANCHORHOLD_STORE", help="The folder that results are kept in.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")]
TensorBoard = Annotated[Path | None, typer.Option(help="Log to TensorBoard in this folder.", show_default=False)]
EventsAsJson = Annotated[bool, typer.Option("--json", help="For machines: one JSON object an event.")]


def protocol_option(*names: str, help: str) -> Any:
    """Return an option of one command that is listed with those that say how tasks are learned."""
    return _option(*names, help=help, panel=_PROTOCOL)
