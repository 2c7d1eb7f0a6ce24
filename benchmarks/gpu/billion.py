"""Fine-tuning a decoder of about a billion parameters, unprotected and with SOS: seconds a step, and memory.

How a loop is timed is that of the forms too, in ``billion_forms.py``.
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import anchorhold
from anchorhold.tensors.storage import StateDtype
from anchorhold_lab.data.locations import Datasets
from benchmarks.gpu.training import _synchronise
from benchmarks.harness import Ratio, Report

STRENGTH = 1.0
ROUNDS = 2


@dataclass(frozen=True)
class Size:
    """A decoder and its batches."""

    width: int
    layers: int
    feed_forward: int
    vocabulary: int
    sequences: int
    length: int
    steps: int


FULL = Size(width=2048, layers=16, feed_forward=6144, vocabulary=32_000, sequences=16, length=1024, steps=15)
SMALL = Size(width=32, layers=2, feed_forward=64, vocabulary=100, sequences=2, length=16, steps=2)

Guarded = Callable[[torch.nn.Module], anchorhold.Guard] | None
"""What makes the guard of a case; ``None`` for the step without one."""


def _sos(dtype: StateDtype | None = None, device: str | None = None) -> Guarded:
    options = anchorhold.GuardOptions(state_dtype=dtype, state_device=device)
    return lambda model: anchorhold.Guard(model, anchorhold.SOS(), strength=STRENGTH, options=options)


CASES: dict[str, Guarded] = {
    "unprotected": None,
    "SOS, state in 16 bits": _sos(torch.bfloat16),
    "SOS, state in 8 bits": _sos("8bit"),
    "SOS, state in 32 bits": _sos(),
    "SOS, state in 16 bits on the processor": _sos(torch.bfloat16, "cpu"),
}


@dataclass
class Loop:
    """What one round of a case took."""

    seconds: list[float]
    peak: int
    state: int
    parameters: int
    guard: anchorhold.Guard | None


def with_16_bit_weights(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    del datasets
    yield _report("16-bit weights", torch.bfloat16, device, quick)


def with_32_bit_weights(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    del datasets
    yield _report("32-bit weights, bf16 autocast", torch.float32, device, quick)


def _report(weights: str, dtype: torch.dtype, device: torch.device, quick: bool) -> Report:
    """Every case in turn, twice, each from a new model."""
    size = SMALL if quick else FULL
    rounds: dict[str, list[Loop]] = {case: [] for case in CASES}
    for _ in range(ROUNDS):
        for case, guarded in CASES.items():
            rounds[case].append(loop(size, dtype, guarded, device))
            rounds[case][-1].guard = None
            make_room(device)
    parameters = rounds["unprotected"][0].parameters
    notes = [
        (
            f"A Llama of {parameters / 1e9:.2f} billion parameters (width {size.width}, {size.layers} layers,"
            f" random weights), {weights}; {size.sequences} sequences of {size.length} tokens a step, fused AdamW."
        ),
        (
            "Protected: SOS watches every step, and holds the model to an anchor of a task before. Times are of "
            f"{size.steps} steps in each of {ROUNDS} rounds. Peak memory is all that torch had allocated; state is "
            "what the guard keeps, in the middle of a task."
        ),
    ]
    name = f"gpu-billion-{8 * dtype.itemsize}"
    seconds = {case: [s for loop in loops for s in loop.seconds] for case, loops in rounds.items()}
    report = Report(name, f"A billion parameters, {weights}: SOS against the unprotected step", notes, seconds)
    peaks = {case: max(loop.peak for loop in loops) for case, loops in rounds.items()}
    for case, loops in list(rounds.items())[1:]:
        asked = case == "SOS, state in 16 bits"
        report.ratio(f"step, {case} / unprotected", case, "unprotected", 1.10 if asked else None)
        held = loops[0].state / parameters
        report.ratios.append(Ratio(f"state, {case}", held, 8.0 if asked else None, unit=" bytes a parameter"))
        more = (peaks[case] - peaks["unprotected"]) / parameters
        report.ratios.append(Ratio(f"peak memory above the unprotected, {case}", more, unit=" bytes a parameter"))
    report.notes += [f"peak memory, {case}: {peak / 2**30:.2f} GiB" for case, peak in peaks.items()]
    return report


def make_room(device: torch.device) -> None:
    """Give back what the case before has left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def loop(size: Size, dtype: torch.dtype, guarded: Guarded, device: torch.device) -> Loop:
    """Train a new model for a few steps, end a task, and time the steps after it."""
    torch.manual_seed(0)
    model = decoder(size).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    guard = None
    if guarded is not None:
        guard = guarded(model)
        guard.attach(optimizer)
    batches = [torch.randint(size.vocabulary, (size.sequences, size.length), device=device) for _ in range(4)]

    def step(i: int) -> None:
        tokens = batches[i % len(batches)]
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.float32):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    for i in range(3):
        step(i)
    if guard is not None:
        from_data = any(measure.needs.data for measure in guard.measures.values())
        guard.consolidate([{"input_ids": batches[0][:2, : size.length // 2]}] if from_data else None)
    for i in range(2):
        step(i)
    _synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for i in range(size.steps):
        began = time.perf_counter()
        step(i)
        _synchronise(device)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    state = 0 if guard is None else _state_bytes(guard)
    return Loop(seconds, peak, state, sum(parameter.numel() for parameter in model.parameters()), guard)


def _state_bytes(guard: anchorhold.Guard) -> int:
    """Return the bytes that a guard keeps of the measure that drives it."""
    tensors, kept = guard.state_dict()["tensors"], 0
    if guard.options.state_dtype == "8bit":  # a state has what rests in more
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(("anchor/", "total/"))}
        kept = guard.cost().kept
    sizes: dict[int, int] = {id(t): t.nbytes for t in tensors.values()}  # some layers have tensors in common
    return kept + sum(sizes.values())


def decoder(size: Size, device: str | None = None) -> torch.nn.Module:
    """Return a Llama of random weights, on a GPU if there is one; on ``"meta"``, without them."""
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 (only this benchmark needs it)

    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=max(1, size.width // 128),
        max_position_embeddings=size.length,
        use_cache=False,
    )
    with torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")):
        model: torch.nn.Module = LlamaForCausalLM(config)
        return model
