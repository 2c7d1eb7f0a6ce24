"""A held step in forms of layers' matrices against an unprotected one: its floor by arithmetic, and what it takes."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import anchorhold
from anchorhold.errors import AnchorholdWarning
from anchorhold.forms import Form, Kronecker, Rotated, coordinates, factors
from anchorhold.holds.of_weights import quadratic
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.data.locations import Datasets
from benchmarks.harness import Ratio, Report, interleaved
from benchmarks.language.gpt import GPT

PLAIN = "unprotected"
FORMS: dict[str, Form] = {"rotated": Rotated(), "Kronecker": Kronecker()}
IN_TF32: dict[str, Form] = {
    "rotated, tf32": Rotated(precision="tf32"),
    "Kronecker, float32": Kronecker(),
    "Kronecker of spectra, tf32": Kronecker(bits=16, precision="tf32"),
}
NOTES = [
    (
        "The floor is guard.cost(rows=).ratio: the multiplications of pull and step over those of the step alone, as "
        "if all products ran at one pace and nothing else took any time. Attention between positions is not counted."
    ),
    (
        "Each case has a network and an optimiser of its own, fused Adam. One task is behind it, measured with a few "
        "samples, and a step has moved the parameters away from the anchor."
    ),
    (
        "By plain products: the same guard, each product written as x @ y, and each diagonal's pull made by itself. "
        "The steps of all cases take turns."
    ),
    "Random inputs and labels. On a CPU one thread, and its own time; on a GPU all, each step waited for.",
]


@dataclass(frozen=True)
class Setting:
    """What is trained, with how many rows a batch."""

    title: str
    network: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    classes: int
    rows: int
    repeats: int
    forms: dict[str, Form]
    tf32: bool = False
    """Whether the task's own products are made in TF32."""


class Step:
    """A training step in a task after the first."""

    def __init__(self, setting: Setting, form: Form | None, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = setting.network().to(device)
        self.optimizer = optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        self.inputs = setting.inputs().to(device)
        self.labels = torch.randint(setting.classes, (setting.rows,), device=device)
        self.guard: anchorhold.Guard | None = None
        if form is not None:
            self.guard = anchorhold.Guard(self.model, "EWC", strength=1.0, form=form, from_scratch=True)
            few = self.inputs[:2, :8] if self.inputs.dtype == torch.long else self.inputs[:8]
            self.guard.consolidate([few])
            self.guard.attach(self.optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AnchorholdWarning)  # that it is expected to be slow, which is the subject
            for _ in range(2):
                self()

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        outputs = self.model(self.inputs)
        F.cross_entropy(outputs.flatten(0, -2), self.labels).backward()
        self.optimizer.step()
        if self.inputs.is_cuda:
            torch.cuda.synchronize()


def run(quick: bool) -> Iterator[Report]:
    """On a CPU: the flagship's network, and a small GPT."""
    settings = [
        _gpt(*((16, 2, 2) if quick else (128, 4, 8)), 128, 9, FORMS),
        _mlp((12, 20, 20, 4) if quick else (784, 2000, 2000, 10), 32 if quick else 256, 5, FORMS),
    ]
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _reports("forms-step", settings, torch.device("cpu"), quick)
    finally:
        torch.set_num_threads(usual)


def on_gpu(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """On a GPU, in full precision and in TF32; wide layers too."""
    del datasets
    flagship, wide = ((12, 20, 20, 4), (24, 24, 24)) if quick else ((784, 2000, 2000, 10), (4096, 4096, 4096, 4096))
    size = (16, 2, 2, 32) if quick else (384, 8, 32, 512)
    settings = []
    for forms in (FORMS, IN_TF32):
        settings += [_mlp(flagship, 256, 40, forms), _gpt(*size, 20, forms), _mlp(wide, 4096, 10, forms)]
    yield from _reports("gpu-forms-step", settings, device, quick)


def _mlp(widths: tuple[int, ...], rows: int, repeats: int, forms: dict[str, Form]) -> Setting:
    layers = [(nn.Linear, a, b) for a, b in itertools.pairwise(widths)]

    def network() -> nn.Module:
        made = [module for kind, a, b in layers for module in (kind(a, b), nn.ReLU())]
        return nn.Sequential(*made[:-1])

    title = f"{'-'.join(map(str, widths))}, {rows} rows"
    return _setting(title, network, lambda: torch.rand(rows, widths[0]), widths[-1], rows, repeats, forms)


def _gpt(width: int, depth: int, texts: int, length: int, repeats: int, forms: dict[str, Form]) -> Setting:
    def network() -> nn.Module:
        return GPT(width, depth, max(1, width // 64), length)

    def inputs() -> Tensor:
        return torch.randint(256, (texts, length))

    title = f"GPT of {depth} × {width}, {texts} × {length} bytes"
    return _setting(title, network, inputs, 256, texts * length, repeats, forms)


def _setting(
    title: str,
    network: Callable[[], nn.Module],
    inputs: Callable[[], Tensor],
    classes: int,
    rows: int,
    repeats: int,
    forms: dict[str, Form],
) -> Setting:
    tf32 = forms is IN_TF32
    return Setting(f"{title}, TF32" if tf32 else title, network, inputs, classes, rows, repeats, forms, tf32)


def _reports(name: str, settings: list[Setting], device: torch.device, quick: bool) -> Iterator[Report]:
    """Yield the report after each setting, so that what was measured is written whatever comes."""
    report = Report(name, "A held step in forms of layers' matrices, and its floor", list(NOTES), {})
    table = [
        "| network | form | floor | measured | by plain products | measured / floor | Q(D) off by |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in settings:
        with tf32_allowed(setting.tf32, device), torch.random.fork_rng(devices=[]):
            table += _measure(setting, device, report, 2 if quick else setting.repeats)
        report.details["Unprotected steps that a held one takes"] = table
        yield report


def _measure(setting: Setting, device: torch.device, report: Report, repeats: int) -> list[str]:
    """Time a setting's steps, and return the rows of the table."""
    steps = {name: Step(setting, form, device) for name, form in {PLAIN: None, **setting.forms}.items()}
    plain = {f"{name}, plain products": _by_plain_products(steps[name]) for name in setting.forms}
    # What else the processor does is none of a step's time; a GPU's steps are waited for.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds = interleaved({**steps, **plain}, repeats, clock=clock)
    report.seconds |= {f"{setting.title}: {name}": times for name, times in seconds.items()}
    rows = []
    for name in setting.forms:
        guard = steps[name].guard
        assert guard is not None
        floor = guard.cost(rows=setting.rows).ratio
        assert floor is not None
        report.ratios.append(Ratio(f"{setting.title}: {name}, floor", floor))
        unheld = f"{setting.title}: {PLAIN}"
        found = []
        for case in (name, f"{name}, plain products"):
            report.ratio(f"{setting.title}: {case} / {PLAIN}", f"{setting.title}: {case}", unheld)
            found.append(report.ratios[-1].value)
        cells = [setting.title, name, *(f"{each:.3g}" for each in (floor, *found, found[0] / floor))]
        rows.append(f"| {' | '.join([*cells, f'{_rounding(guard):.1e}'])} |")
    return rows


def _rounding(guard: anchorhold.Guard) -> float:
    """Return how far a layer's Q(D) is at most from the same matrix's in float64, over the length of that."""
    most = 0.0
    for matrix in guard.held.matrices.values():
        d = {name: guard.parameters[name].detach() - guard.anchor[name] for name in matrix.block.parameters}
        found = matrix.to_compute(d).apply(d)
        exact = matrix.map(Tensor.double).apply({name: each.double() for name, each in d.items()})
        error = sum(float((found[name] - each).square().sum()) for name, each in exact.items())
        length = sum(float(each.square().sum()) for each in exact.values())
        most = max(most, (error / length) ** 0.5 if length else 0.0)
    return most


def _changed_here(module: Any) -> Any:
    """Return a module as something whose names are assigned to."""
    return module


def _by_plain_products(step: Step) -> Callable[[], None]:
    """Return a step whose hold is computed by the plain way, the fast one's oracle."""

    layers, sides, hold = _changed_here(coordinates), _changed_here(factors), _changed_here(quadratic)

    def plain() -> None:
        fast = layers.product, hold.pulls_of_diagonals
        layers.product = sides.product = torch.matmul
        hold.pulls_of_diagonals = lambda *_: {}
        try:
            step()
        finally:
            layers.product = sides.product = fast[0]
            hold.pulls_of_diagonals = fast[1]

    return plain
