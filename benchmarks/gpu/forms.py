"""What holds of layers' matrices cost the fast engine: the products alone, and whole runs by a few epochs of them."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import Basis
from anchorhold.errors import DataError
from anchorhold.forms import Kronecker, KroneckerMatrix, Matrix, Rotated, RotatedMatrix, rotated
from anchorhold.guard import Guard
from anchorhold.guard.measurement import TaskMeasurement
from anchorhold.tensors.matrices import products_in
from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.running.engines import make_learner
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.scenarios import Scenario
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.fast.flat_layout import FlatLayout
from anchorhold_lab.training.fast.layer_holds import MULTIPLE, LayerHolds
from benchmarks.gpu.profiling import kernel_table
from benchmarks.gpu.training import _synchronise
from benchmarks.harness import Ratio, Report

FORMS: dict[str, dict[str, Any]] = {
    "rotated, tf32": {"form": "rotated", "form_settings": {"precision": "tf32"}},
    "rotated, float32": {"form": "rotated"},
    "kronecker": {"form": "kronecker"},
    "diagonal": {},
}
SHAPES = {"MNIST": (1, 28, 28, 10), "CIFAR-10": (3, 32, 32, 10), "CIFAR-100": (3, 32, 32, 100)}
TASKS = 3
"""Learned of each case: the first holds nothing, the second ends with the protocol's samples, the third with all."""
EPOCHS = 3
"""Of each, the first of them not timed."""
SMALL = {"tasks": TASKS, "batch_size": 32, "samples": 20}
LIMIT = 80.0
"""Seconds after which a benchmark begins no further case."""


# The products alone


def products(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Q(θ − θ*) of 784-2000-2000-10 in one step, and the eigenbases of one task."""
    del datasets
    widths = (12, 20, 20, 4) if quick else (784, 2000, 2000, 10)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths))).to(device)
    notes = [
        f"Random weights, bases and importances of {'-'.join(map(str, widths))}; 20 times, each waited for.",
        f"Padded to multiples of {MULTIPLE}. By the form: as the plain loop does, one run at a time, not compiled.",
    ]
    report = Report("gpu-forms-products", "A step's products of rotated and Kronecker holds", notes, {})
    repeats = 2 if quick else 20
    forms: dict[str, Rotated | Kronecker]
    forms = {"rotated": Rotated(), "rotated, tf32": Rotated(precision="tf32"), "kronecker": Kronecker()}
    for name, form in forms.items():
        matrices = _random_matrices(form, model)
        for runs, multiple in ((1, MULTIPLE), (4, MULTIPLE), (1, 1)):
            holds = _layer_holds(form, model, runs, multiple)
            for run in range(runs):
                holds.take(run, matrices)
            case = f"{name}, {runs} run{'s' * (runs > 1)}{'' if multiple > 1 else ', not padded'}"
            report.seconds[case] = _timed(holds.pulls, device, repeats)
        d = {key: torch.randn_like(p) for key, p in model.named_parameters()}
        by_form = _timed(functools.partial(_by_form, matrices, d), device, repeats)
        report.seconds[f"{name}, by the form"] = by_form
        report.notes.append(_rounding(name, form, matrices, d))
    yield report
    side = widths[1] + 1
    factor = torch.randn(side, 3 * side, device=device)
    factor = factor @ factor.mT / side
    for many in (1, 4):
        several = factor.expand(many, -1, -1).contiguous() if many > 1 else factor
        found = _timed(functools.partial(torch.linalg.eigh, several), device, 3)
        report.seconds[f"eigenbasis of {side}×{side}, {many} at once"] = found
    report.seconds[f"eigenbasis of {side}×{side}, float64"] = _timed(
        lambda: torch.linalg.eigh(factor.double()), device, 3
    )
    yield report


def _by_form(matrices: Mapping[str, Matrix], d: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    return [matrix.apply(d) for matrix in matrices.values()]


def _random_matrices(form: Rotated | Kronecker, model: nn.Module) -> dict[str, Matrix]:
    found: dict[str, Matrix] = {}
    parameters = dict(model.named_parameters())
    device = next(model.parameters()).device
    for block in form.blocks(model, parameters):
        m, n = block.size
        if isinstance(form, Kronecker):
            factors = (torch.randn(k, k, device=device) for k in (m, n))
            g, a = (f @ f.mT / len(f) for f in factors)
            found[block.name] = KroneckerMatrix(block, g, a)
        else:
            u_g, u_a = (torch.linalg.qr(torch.randn(k, k, device=device)).Q.contiguous() for k in (m, n))
            s = torch.rand(m, n, device=device)
            found[block.name] = RotatedMatrix(block, s, Basis(u_g, u_a), Basis(None, None), precision=form.precision)
    return found


def _layer_holds(form: Rotated | Kronecker, model: nn.Module, runs: int, multiple: int) -> LayerHolds:
    parameters = dict(model.named_parameters())
    layout = FlatLayout({name: p.shape for name, p in parameters.items()})
    device = next(model.parameters()).device
    weights, anchor = torch.randn(2, runs, layout.width, device=device)
    return LayerHolds(form, form.blocks(model, parameters), layout, weights, anchor, multiple)


def _rounding(name: str, form: Rotated | Kronecker, matrices: Mapping[str, Matrix], d: Mapping[str, Any]) -> str:
    """Say how far Q(D) is from the same in float64."""
    errors = []
    exact = {key: tensor.double() for key, tensor in d.items()}
    for matrix in matrices.values():
        found, expected = matrix.apply(d), matrix.map(torch.Tensor.double).apply(exact)
        errors += [float((found[key] - e).norm() / e.norm()) for key, e in expected.items()]
    precision = form.precision if isinstance(form, Rotated) else "float32"
    return f"{name} ({precision}): Q(D) is off by at most {max(errors):.1e} of its length, parameter by parameter."


def _timed(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each time, after two that compile and warm up."""
    seconds = []
    with products_in("float32", device):  # what is not said in a form is in full
        for _ in range(repeats + 2):
            _synchronise(device)
            began = time.perf_counter()
            work()
            _synchronise(device)
            seconds.append(time.perf_counter() - began)
    return seconds[2:]


# Whole runs


@dataclasses.dataclass
class Stopwatch:
    """Seconds spent in functions, by label, waiting for the device before and after."""

    device: torch.device
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def watching(self, owner: Any, name: str, label: Callable[[tuple[Any, ...]], str]) -> Iterator[None]:
        """Time all calls of a function; its arguments say under which label."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            _synchronise(self.device)
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                _synchronise(self.device)
                key = label(args)
                self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, original)

    def lap(self) -> dict[str, float]:
        """Return the seconds since the last time."""
        found, self.seconds = self.seconds, {}
        return found


@dataclasses.dataclass
class Split:
    """Where the time of one case went; seconds of all its runs together."""

    runs: int
    compiling: float = 0.0
    memory: int = 0
    step: dict[int, float] = dataclasses.field(default_factory=dict)
    """A step, by task."""
    end: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)
    """What came after the last step, by task."""
    whole: dict[str, float] = dataclasses.field(default_factory=dict)
    """A whole run, extrapolated, with the protocol's samples and with all."""

    def row(self, case: str) -> str:
        cells = [case, f"{self.compiling:.1f}", *(f"{self.step[task] * 1e6:.0f}" for task in (0, TASKS - 1))]
        for task in (1, 2):
            labels = ("factors", "eigenbases", "second pass", "consolidation", "all")
            cells.append(" / ".join(f"{self.end[task].get(label, 0.0):.2f}" for label in labels))
        cells += [f"{seconds:.1f}" for seconds in self.whole.values()]
        return f"| {' | '.join([*cells, f'{self.memory / 2**30:.1f}'])} |"


HEADER = [
    (
        "| case | compiling, s | first task's step, µs | held step, µs | end of a task with the protocol's samples: "
        "factors / eigenbases / second pass / consolidation / all, s | the same with all samples | a run, s | a run "
        "with all samples, s | GiB |"
    ),
    "|---|---|---|---|---|---|---|---|---|",
]
NOTES = [
    (
        f"Extrapolated: {EPOCHS} epochs of {TASKS} tasks were trained, the first epoch of each not timed. A run is the "
        "first task's pace times its steps, the third's times all others', and the end of a task (measuring, "
        "evaluating every task, beginning the next) times the tasks. Steps and ends are of all runs side by side, 'a "
        "run' is divided by how many there are. Compiling and loading are not in it."
    ),
]


def permuted_mnist(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """EWC on Permuted MNIST, alone and four side by side: at most 30 s a run alone."""
    changes = {**SMALL, "hidden": (24, 20)} if quick else {}
    cases = [("rotated, tf32", 1), ("kronecker", 2)] if quick else [(form, runs) for runs in (1, 4) for form in FORMS]
    title = "Permuted MNIST with EWC in several forms: 784-2000-2000-10, 10 tasks × 20 epochs, batch 256, Adam, TF32"
    report = Report("gpu-forms-permuted-mnist", title, list(NOTES), {})
    yield from _cases(report, "permuted-mnist", cases, {1: 30.0}, changes, datasets, device, quick)


def split_cifar(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """EWC on Split CIFAR, alone and eight side by side: at most 35 s alone and 20 s a run with eight."""
    changes = SMALL if quick else {}
    cases = [("rotated, tf32", 1), ("rotated, tf32", 8), ("rotated, float32", 1), ("diagonal", 1), ("diagonal", 8)]
    cases = [("rotated, float32", 2)] if quick else cases
    title = "Split CIFAR with EWC in several forms: the paper's CNN, 6 tasks × 60 epochs, batch 256, Adam, TF32"
    report = Report("gpu-forms-split-cifar", title, list(NOTES), {})
    yield from _cases(report, "split-cifar", cases, {1: 35.0, 8: 20.0}, changes, datasets, device, quick)


def _cases(
    report: Report,
    scenario: str,
    cases: list[tuple[str, int]],
    limits: Mapping[int, float],
    changes: dict[str, Any],
    datasets: Datasets,
    device: torch.device,
    quick: bool,
) -> Iterator[Report]:
    """Yield the report after each case, so that what was measured is written whatever comes."""
    started = time.perf_counter()
    usual = paper_spec(scenario, "EWC", **changes)
    given, real = _data(usual, datasets, quick)
    report.notes.append("Real data." if real else "Synthetic data of the same shapes: times alone mean something.")
    tasks = usual.make_scenario(given).to(device)
    table = report.details.setdefault("Where the time went", list(HEADER))
    for form, runs in cases:
        case = f"{form}, {runs} run{'s' * (runs > 1)}"
        if time.perf_counter() - started > LIMIT:
            report.notes.append(f"Left out after {LIMIT:.0f} s: {case}.")
            continue
        own = dict(FORMS[form])
        if quick and "form" in own:  # the eigenbasis of 4097 inputs would take a processor a minute
            own["form_settings"] = {**own.get("form_settings", {}), "largest_side": 300}
        split, profile = _train(usual, own | changes, tasks, runs, device)
        table.append(split.row(case))
        for said, seconds in split.whole.items():
            target = limits.get(runs) if form.startswith("rotated") else None
            report.ratios.append(Ratio(f"seconds a run, {case}, {said}", seconds, target, unit=" s"))
        report.details[f"Where a held step's time goes, {case}"] = profile
        yield report


def _train(
    usual: Spec, own: dict[str, Any], tasks: Scenario, runs: int, device: torch.device
) -> tuple[Split, list[str]]:
    """Train a few epochs of some runs, and extrapolate."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    few = {"epochs": EPOCHS, "later_epochs": None, "precision": "tf32", "engine": "fast"}
    specs = [paper_spec(usual.scenario, "EWC", seed=seed, **few, **own) for seed in range(runs)]
    engine = FastRuns([make_learner(spec, tasks, device) for spec in specs])
    split, watch = Split(runs), Stopwatch(device)
    with contextlib.ExitStack() as stack:
        for owner, name, label in (
            (rotated, "eigenbasis", lambda _: "eigenbases"),
            (TaskMeasurement, "one_pass", lambda args: "second pass" if any(args[1].values()) else "factors"),
            (Guard, "consolidate", lambda _: "consolidation"),
        ):
            stack.enter_context(watch.watching(owner, name, label))
        for task in range(TASKS):
            if task == TASKS - 1:
                for learner in engine.learners:
                    learner.settings = dataclasses.replace(learner.settings, samples=None)
            _time_task(engine, split, watch)
    split.compiling = engine.preparing_seconds
    split.memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    first = engine.learners[0]
    wanted = dataclasses.replace(first.settings, epochs=usual.settings.epochs)
    steps = [wanted.epochs_of(task) * first.epoch_steps(task) for task in range(len(tasks))]
    training = steps[0] * split.step[0] + sum(steps[1:]) * split.step[TASKS - 1]
    ends = {"extrapolated": split.end[1]["all"], "extrapolated with all samples": split.end[2]["all"]}
    split.whole = {said: (training + len(tasks) * end) / runs for said, end in ends.items()}
    return split, kernel_table(engine)


def _time_task(engine: FastRuns, split: Split, watch: Stopwatch) -> None:
    """Learn a task, noting its pace after the first epoch and what comes after its last step."""
    task, device = engine.task, engine.learners[0].device
    per_epoch = engine.learners[0].epoch_steps(task)
    marks: dict[int, float] = {}
    watch.lap()
    for progress in engine.learn_task():
        _synchronise(device)
        if progress.learned:
            split.end[task] = {**watch.lap(), "all": time.perf_counter() - marks[progress.steps]}
        elif progress.step % per_epoch == 0:
            marks[progress.step] = time.perf_counter()
    epochs = [marks[step + per_epoch] - marks[step] for step in sorted(marks)[:-1]]
    split.step[task] = statistics.median(epochs) / per_epoch


def _data(spec: Spec, datasets: Datasets, quick: bool) -> tuple[Mapping[str, Dataset], bool]:
    """Return the data sets of a spec, or random ones of their shapes, and whether they are real."""
    names = spec.scenario_kind.datasets
    if not quick:
        with contextlib.suppress(DataError):
            return {name: datasets[name] for name in names}, True
    generator = torch.Generator().manual_seed(0)

    def images(count: int, *shape: int) -> Images:
        *size, classes = shape
        pixels = torch.randint(0, 256, (count, *size), generator=generator, dtype=torch.uint8)
        return Images(pixels, torch.arange(count) % classes, classes)

    made = {}
    for name in names:
        train, test = 60_000 if name == "MNIST" else 50_000, 10_000
        if quick:  # two batches; of CIFAR-100, a task has a tenth
            train, test = 1000 if name == "CIFAR-100" else 80, 100
        made[name] = Dataset(name, images(train, *SHAPES[name]), images(test, *SHAPES[name]))
    return made, False
