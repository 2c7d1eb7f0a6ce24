"""Where the time goes when a billion parameters are measured in rotated form, before and with products of 16 bits."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import anchorhold
from anchorhold.engine import accumulator
from anchorhold.engine.backward import BackwardRows
from anchorhold.engine.reductions import Basis, FactorReduction, RotatedReduction
from anchorhold.engine.reductions.layers import Block
from anchorhold.engine.rules.base import Products
from anchorhold.engine.scores.outputs import Softmax
from anchorhold.forms import Rotated16
from anchorhold.forms.factors import eigenbasis
from anchorhold.guard.measurement import TaskMeasurement
from anchorhold.tensors import side_by_side
from anchorhold_lab.data.locations import Datasets
from benchmarks.gpu.billion import FULL, SMALL, decoder, make_room
from benchmarks.gpu.forms import Stopwatch
from benchmarks.harness import Ratio, Report

SEQUENCES, LENGTH, AT_ONCE = 256, 512, 16
BATCHES_BY_PHASE = 4
"""Of the run whose phases are timed: the device is waited for after each of them, and the sums are as many."""
MOST_SECONDS, MOST_ERROR = 40.0, 0.01
ERROR_SEQUENCES = 16
"""Of those that Q is worked out for in float64."""
LAYERS = ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight")
"""Whose Q is compared."""
BEFORE, NOW = "float32 and TF32, one decomposition at a time", "16 bits, decompositions side by side"


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Measure without products of 16 bits, and decompose one matrix after the other."""
    with (
        mock.patch("anchorhold.engine.reductions.sixteen_bits.has_matrix_units", return_value=False),
        mock.patch.object(side_by_side, "LANES", 1),
    ):
        yield


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    yield


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {BEFORE: as_before, NOW: as_it_is}


def run(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Yield a report after each part, of all so far."""
    del datasets
    size = dataclasses.replace(SMALL, vocabulary=256) if quick else FULL
    sequences, length = (8, 16) if quick else (SEQUENCES, LENGTH)
    notes = [
        (
            f"{sequences} sequences of {length} tokens, one label drawn for each token; a Llama of width {size.width} "
            f"and {size.layers} layers with random weights in 16 bits. Phases are of another run, over "
            f"{BATCHES_BY_PHASE * AT_ONCE} sequences, in which the device is waited for after each."
        )
    ]
    report = Report("gpu-billion-measuring", "Measuring a billion parameters: where the time goes", notes, {})
    torch.manual_seed(0)
    model = decoder(size).to(torch.bfloat16)
    tokens = torch.randint(size.vocabulary, (sequences, length), device=device)
    batches = [{"input_ids": some} for some in tokens.split(AT_ONCE)]
    _consolidated(model, batches[:1])  # warm
    for way, entered in reversed(WAYS.items()):
        with entered():
            make_room(device)
            report.seconds[way] = [_whole(model, batches, device)]
            report.notes.append(f"{way}, by phase: {_by_phase(model, batches[:BATCHES_BY_PHASE], device)}")
        asked = MOST_SECONDS if way == NOW else None
        report.ratios.append(Ratio(f"seconds, {way}", report.median(way), asked, unit=" s"))
        yield report
    report.ratio(f"{NOW} / before", NOW, BEFORE)
    report.details["Eigenvectors of random covariances"] = _decompositions(device, quick)
    yield report
    errors = _errors(model, tokens[:ERROR_SEQUENCES], quick)
    report.ratios += [Ratio(f"Q(D) off float64, {case}", error, MOST_ERROR) for case, error in errors.items()]
    yield report
    report.details |= _kernels(model, batches[:1])
    yield report


def _consolidated(model: torch.nn.Module, batches: list[dict[str, Tensor]]) -> anchorhold.Guard:
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled"), form="rotated16")
    guard.consolidate(batches)
    return guard


def _whole(model: torch.nn.Module, batches: list[dict[str, Tensor]], device: torch.device) -> float:
    """Return the seconds of a measurement that nobody interrupts."""
    _wait(device)
    began = time.perf_counter()
    _consolidated(model, batches)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _by_phase(model: torch.nn.Module, batches: list[dict[str, Tensor]], device: torch.device) -> str:
    """Return the seconds of each phase, in words."""
    watch = Stopwatch(device)
    phases: list[tuple[Any, str, str]] = [
        (accumulator, "record", "forward"),
        (BackwardRows, "gradients_at", "backward"),
        (Softmax, "__init__", "labels"),
        (Softmax, "label_gradients", "labels"),
        (FactorReduction, "add", "covariances"),
        (RotatedReduction, "add", "squares in coordinates"),
        (Rotated16, "prepare_next_pass", "eigenvectors"),
        (TaskMeasurement, "one_pass", "both passes"),
        (anchorhold.Guard, "consolidate", "all"),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, label in phases:
            stack.enter_context(watch.watching(owner, name, partial(_said, label)))
        _consolidated(model, batches)
    found = ", ".join(f"{label} {seconds:.3g} s" for label, seconds in watch.lap().items())
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    return f"{found}; peak {peak:.1f} GiB"


def _said(label: str, _: tuple[Any, ...]) -> str:
    return label


def _decompositions(device: torch.device, quick: bool) -> list[str]:
    """Return how long eigenvectors take by the number of lanes, and whether their bits are the same."""
    lines = ["| matrices | lanes | seconds | as with one lane |", "|---|---|---|---|"]
    for size, count in ((64, 2),) if quick else ((2048, 24), (6144, 8)):
        rows = [torch.randn(size, 2 * size, device=device) for _ in range(count)]
        factors = [some @ some.mT for some in rows]
        first: list[Tensor] = []
        for lanes in (1, 2, 4, 8):
            with mock.patch.object(side_by_side, "LANES", lanes):
                tasks = [partial(_vectors, factor) for factor in factors]
                side_by_side.side_by_side(tasks[: min(lanes, count)], device)
                _wait(device)
                began = time.perf_counter()
                found = side_by_side.side_by_side(tasks, device)
                _wait(device)
                seconds = time.perf_counter() - began
            first = first or found
            same = all(torch.equal(one, other) for one, other in zip(first, found, strict=True))
            lines.append(f"| {count} of {size} | {lanes} | {seconds:.3f} | {same} |")
        stacked = torch.stack(factors)
        _wait(device)
        began = time.perf_counter()
        torch.linalg.eigh(stacked)
        _wait(device)
        lines.append(f"| {count} of {size}, one batch | | {time.perf_counter() - began:.3f} | |")
    return lines


def _vectors(factor: Tensor) -> Tensor:
    vectors = eigenbasis(factor)[0]
    assert vectors is not None
    return vectors


def _errors(model: torch.nn.Module, tokens: Tensor, quick: bool) -> dict[str, float]:
    """Return the relative error of Q(D) against float64, for random D and one like a step of training."""
    form, measure = Rotated16(damping=0.0), anchorhold.Fisher(labels="sampled")
    blocks = {block.name: block for block in form.blocks(model, dict(model.named_parameters()))}
    chosen = LAYERS[:1] if quick else LAYERS
    parameters = {name: parameter for name, parameter in model.named_parameters() if name in chosen}
    kept: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in chosen}
    original = FactorReduction.add_products

    def keeping(self: FactorReduction, block: Block, products: Products, *, first: bool) -> None:
        assert isinstance(products.a, Tensor)
        kept[block.name].append((products.delta[0].clone(), products.a.clone()))
        original(self, block, products, first=first)

    own = [blocks[name] for name in chosen]
    with mock.patch.object(FactorReduction, "add_products", keeping):
        collector = measure.accumulator(
            model, parameters, reduction=lambda given: form.reduction(measure, own, given, {})
        )
        known = collector.result_of([{"input_ids": tokens}]).values
    known = form.prepare_next_pass(own, known, {}, 1.0)
    found: dict[str, float] = {}
    for name in chosen:
        delta, a = (torch.cat(pieces).double() for pieces in zip(*kept[name], strict=True))
        exact = Basis(*(torch.linalg.eigh(rows.flatten(0, 1).mT @ rows.flatten(0, 1))[1] for rows in (delta, a)))
        assert exact.outputs is not None
        assert exact.inputs is not None
        s = sum((d.mT @ i).square() for d, i in zip(delta @ exact.outputs, a @ exact.inputs, strict=True)) / len(delta)
        assert isinstance(s, Tensor)
        basis = Basis(known[f"{name}/UG"], known[f"{name}/UA"])
        steps = {"random D": torch.randn_like(s), "D of a step": _step(model, name, tokens)}
        for way, entered in WAYS.items():
            with entered():
                reduction = RotatedReduction(measure.phi, [blocks[name]], parameters, {name: basis}, precision="tf32")
                with reduction._products(delta.device):
                    reduction.add_products(blocks[name], Products(delta.float().unsqueeze(0), a.float()), first=True)
            mine = (reduction.sums[f"{name}/S"] / len(delta)).bfloat16().double()
            rounded = Basis(*(u.bfloat16().double() for u in basis if u is not None))
            for what, d in steps.items():
                expected = _q(exact, s, d)
                off = (_q(rounded, mine, d) - expected).norm() / expected.norm()
                found[f"{way}, {name.removesuffix('.weight')}, {what}"] = float(off)
    return found


def _q(basis: Basis, s: Tensor, d: Tensor) -> Tensor:
    u_g, u_a = basis
    assert u_g is not None and u_a is not None
    return u_g @ (s * (u_g.mT @ d @ u_a)) @ u_a.mT


def _step(model: torch.nn.Module, name: str, tokens: Tensor) -> Tensor:
    """Return the signs of a gradient of other tokens, as Adam's first step has them."""
    other = tokens.flip(0)[:4].flip(1)
    parameter = dict(model.named_parameters())[name]
    (gradient,) = torch.autograd.grad(model(input_ids=other, labels=other).loss, parameter)
    return gradient.double().sign()


def _kernels(model: torch.nn.Module, batches: list[dict[str, Tensor]]) -> dict[str, list[str]]:
    """Return what a device was busy with in each pass over one batch."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    sort = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    tables: dict[str, list[str]] = {}
    original = TaskMeasurement.one_pass

    def profiled(self: TaskMeasurement, *given: Any) -> Any:
        with torch.profiler.profile(activities=activities) as profile:
            found = original(self, *given)
        table = profile.key_averages().table(sort_by=sort, row_limit=30, max_name_column_width=90)
        tables[f"Kernels of pass {len(tables) + 1} over {AT_ONCE} sequences"] = ["```", *table.splitlines(), "```"]
        return found

    with mock.patch.object(TaskMeasurement, "one_pass", profiled):
        _consolidated(model, batches)
    return tables
