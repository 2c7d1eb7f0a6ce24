"""Forms of a billion parameters: what a held step takes, in time and memory, and how long it takes to measure them.

Quality is another study's: ``python -m benchmarks.language recipes`` has the same forms as recipes.
"""

import contextlib
from collections.abc import Iterator

import torch

import anchorhold
from anchorhold.forms import Form, Kronecker16, Rotated, Rotated16
from anchorhold.guard.measurement import TaskMeasurement
from anchorhold_lab.data.locations import Datasets
from benchmarks.gpu.billion import FULL, SMALL, Guarded, Loop, Size, decoder, loop, make_room
from benchmarks.gpu.forms import Stopwatch
from benchmarks.harness import Ratio, Report

STRENGTH = 1e-3
"""Relative to the mean importance: what the study of language finds good."""
MOST_BYTES, MOST_STEP, MOST_SECONDS = 12.0, 1.25, 300.0
"""A parameter; of the unprotected step; for the factors of all sequences."""
SEQUENCES, LENGTH = 1000, 512
NAMED, NEXT = "rotated16", "rotated16, blocks of 2048"
"""The form that is held against these, and the one that would be if it takes too long."""


def _held(form: Form | str, bits: int, *, on_processor: bool = False) -> Guarded:
    """Return what makes a guard whose anchor is as exact as the weights: in 16 bits of those that have 16."""
    options = anchorhold.GuardOptions(
        state_device="cpu" if on_processor else None, state_dtype=torch.bfloat16 if bits == 16 else None
    )

    def made(model: torch.nn.Module) -> anchorhold.Guard:
        fisher = anchorhold.Fisher(labels="sampled")
        return anchorhold.Guard(model, fisher, relative_strength=STRENGTH, form=form, options=options)

    return made


def cases(bits: int) -> dict[str, Guarded]:
    """Return all that is compared, in order of worth, for weights of so many bits."""
    return {
        "unprotected": None,
        NAMED: _held(NAMED, bits),
        NEXT: _held(Rotated16(largest_block=2048), bits),
        "rotated16, rank 512": _held(Rotated16(outputs="lowrank", inputs="lowrank", rank=512), bits),
        "kronecker16": _held("kronecker16", bits),
        "rotated16, blocks of 2048, state on the processor": _held(
            Rotated16(largest_block=2048), bits, on_processor=True
        ),
        "kronecker16, blocks of 2048": _held(Kronecker16(largest_block=2048), bits),
        "rotated, 32 bits and tf32": _held(Rotated(precision="tf32"), 32),
        "rotated, 32 bits": _held("rotated", 32),
    }


def with_16_bit_weights(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Yield a report after each case, of all so far."""
    del datasets
    yield from _steps("16-bit weights", torch.bfloat16, device, quick)


def with_32_bit_weights(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Yield a report after each case, of all so far."""
    del datasets
    yield from _steps("32-bit weights, bf16 autocast", torch.float32, device, quick)


def _steps(weights: str, dtype: torch.dtype, device: torch.device, quick: bool) -> Iterator[Report]:
    size, bits = SMALL if quick else FULL, 8 * dtype.itemsize
    notes = [
        (
            f"A Llama of width {size.width} and {size.layers} layers, random weights, {weights}; {size.sequences} "
            f"sequences of {size.length} tokens a step, fused AdamW, {size.steps} steps. What holds was measured on "
            "two short sequences, which is enough for the time of a step."
        ),
        "State is all that the guard keeps, tensors that layers have in common once; the peak is torch's.",
    ]
    report = Report(f"gpu-billion-forms-{bits}", f"Forms of a billion parameters, {weights}", notes, {})
    free: Loop | None = None
    for case, guarded in cases(bits).items():
        found = loop(size, dtype, guarded, device)
        report.seconds[case] = found.seconds
        report.notes.append(f"peak memory, {case}: {found.peak / 2**30:.2f} GiB")
        if free is None:
            free = found
        else:
            _compare(report, case, found, free)
        found.guard = None
        make_room(device)
        yield report


def _compare(report: Report, case: str, found: Loop, free: Loop) -> None:
    """Add what a case takes beside the unprotected step, and refuse a cost that is not what was told before."""
    assert found.guard is not None
    told, asked = found.guard.cost().kept, case in (NAMED, NEXT)
    if told != found.state:
        raise AssertionError(f"{case}: cost() says {told} bytes, and {found.state} are kept")
    report.ratio(f"step, {case} / unprotected", case, "unprotected", MOST_STEP if asked else None)
    kept = found.state / found.parameters
    report.ratios.append(Ratio(f"state, {case}", kept, MOST_BYTES if asked else None, unit=" bytes a parameter"))
    more = (found.peak - free.peak) / found.parameters
    report.ratios.append(Ratio(f"peak memory above the unprotected, {case}", more, unit=" bytes a parameter"))


def factors(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Measure forms on a thousand sequences: the passes over them, and the eigenvectors between."""
    del datasets
    size = SMALL if quick else FULL
    sequences, length = (4, 8) if quick else (SEQUENCES, LENGTH)
    notes = [
        (
            f"{sequences} sequences of {length} tokens, one label drawn for each token; a Llama of width {size.width} "
            f"and {size.layers} layers. Beside the passes and the eigenvectors there are the anchor, and what "
            "consolidate() returns."
        )
    ]
    report = Report("gpu-billion-factors", "Forms of a billion parameters: how long they take to measure", notes, {})
    tokens = torch.randint(size.vocabulary, (sequences, length), device=device)
    for dtype, form in ((torch.bfloat16, NAMED), (torch.float32, NAMED), (torch.bfloat16, "kronecker16")):
        case = f"{form}, {8 * dtype.itemsize}-bit weights"
        _measure(report, case, form, size, dtype, tokens)
        make_room(device)
        yield report
    if not quick:
        return
    # In turns: a rehearsal alone, since it takes as many times as long.
    _measure(report, "in turns", Kronecker16(), size, torch.float32, tokens, turns=3)
    yield report


def _measure(
    report: Report, case: str, form: Form | str, size: Size, dtype: torch.dtype, tokens: torch.Tensor, turns: int = 1
) -> None:
    torch.manual_seed(0)
    model, device = decoder(size).to(dtype), tokens.device
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled"), form=form)
    cost = guard.cost()
    within = None if turns == 1 else max(cost.measuring // turns, *(block.measuring for block in cost.blocks))
    batches = [{"input_ids": some} for some in tokens.split(16)]
    watch = Stopwatch(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch.watching(TaskMeasurement, "one_pass", lambda _: "passes"))
        stack.enter_context(
            watch.watching(TaskMeasurement, "learned_means", lambda _: "eigenvectors and what else is learned")
        )
        stack.enter_context(watch.watching(anchorhold.Guard, "consolidate", lambda _: "all"))
        guard.consolidate(batches, within=within)
    parts = watch.lap()
    report.seconds[case] = [parts["all"]]
    asked = case.startswith(NAMED) and turns == 1
    report.ratios.append(Ratio(f"seconds, {case}", parts["all"], MOST_SECONDS if asked else None, unit=" s"))
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    split = ", ".join(f"{label} {seconds:.3g} s" for label, seconds in parts.items())
    report.notes.append(f"{case}: {split}; sums of {cost.measuring / 2**30:.2f} GiB, peak {peak:.2f} GiB")
