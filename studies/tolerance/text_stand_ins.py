"""A small GPT learns English, then Python, with a tolerance on what stands in for English: what real English loses."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import anchorhold
from benchmarks.language.corpus import Corpus
from benchmarks.language.gpt import GPT
from benchmarks.language.training import Device, batches, bits_per_byte, schedule, spread
from studies.tolerance.digit_stand_ins import FOLLOWED

Batches = Sequence[Tensor | tuple[Tensor, Tensor]]

OLD = "old text"
NEW_LINE = 10
SLICE = 2_000_000
"""Bytes of English that the network learns from."""
TOLERANCES = (0.03, 0.1)


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64
    english_steps: int = 1000
    python_steps: int = 150
    batch: int = 32
    measured: int = 128
    """Pieces that the importance is measured on."""
    kept: int = 96
    """Pieces that the tolerance is measured on."""
    judged: int = 256
    """Pieces of English that were neither, and of Python, which judge."""
    seeds: int = 3


REHEARSAL = Size(16, 1, 2, 16, english_steps=4, python_steps=3, batch=4, measured=4, kept=4, judged=8, seeds=1)


def rows(corpus: Corpus, size: Size) -> Iterator[dict[str, Any]]:
    """Yield what came out of each run."""
    device = Device(torch.device("cpu"))
    for seed in range(size.seeds):
        model = learned_english(corpus, size, device, seed)
        inputs = stand_ins(model, corpus, size, seed)
        for kind, (_, kept) in inputs.items():
            for measured in dict.fromkeys((kind, OLD)):
                for nats in TOLERANCES:
                    own = copy.deepcopy(model)
                    tolerance = anchorhold.Tolerance(nats, **FOLLOWED["diagonal"])
                    guard = anchorhold.Guard(own, anchorhold.Fisher(labels="sampled"), tolerance=tolerance)
                    guard.consolidate(inputs[measured][0])
                    found = one(own, guard, kept, corpus, size, device, seed)
                    about = {"setting": "text", "form": "diagonal", "kept": kind, "measured": measured, "seed": seed}
                    yield {**about, "tolerance": nats, **found}


def learned_english(corpus: Corpus, size: Size, device: Device, seed: int) -> GPT:
    """Return a network that has learned a slice of the English text."""
    torch.manual_seed(seed)
    model = GPT(size.width, size.layers, size.heads, size.context)
    _train(model, corpus.of("english", "train")[:SLICE], size, device, size.english_steps, 3e-3, seed, "english")
    return model


def _train(
    model: GPT,
    text: Tensor,
    size: Size,
    device: Device,
    steps: int,
    rate: float,
    seed: int,
    purpose: str,
    guard: anchorhold.Guard | None = None,
) -> None:
    optimizer = device.optimizer(model, rate, decay=0.0)
    rates = schedule(optimizer, steps)
    if guard is not None:
        guard.attach(optimizer)
    for piece in batches(text, steps, size.batch, size.context, seed, purpose):
        optimizer.zero_grad()
        device.loss(model, piece).backward()
        optimizer.step()
        rates.step()
    if guard is not None:
        guard.detach()


def stand_ins(model: GPT, corpus: Corpus, size: Size, seed: int) -> dict[str, tuple[Batches, Batches]]:
    """Return text of each kind, to measure importance on and to keep: no piece is in both."""
    counts = (size.measured, size.kept)

    def windows(language: str, part: str) -> tuple[Batches, Batches]:
        text = corpus.of(language, part)
        text = text[: len(text) // 2] if part == "validation" else text
        measured, kept = (
            [next(batches(text, 1, count, size.context, seed, "stand-in", language, i))[:, :-1]]
            for i, count in enumerate(counts)
        )
        return measured, kept

    def written(i: int, count: int) -> Batches:
        return anchorhold.write_text(
            model, count, size.context - 1, seed=2 * seed + i, start=NEW_LINE, end=None
        ).batches(64)

    generator = torch.Generator().manual_seed(100 + seed)

    def noise(count: int) -> Batches:
        return [torch.randint(256, (count, size.context), generator=generator)]

    return {
        OLD: windows("english", "validation"),
        "own text": (written(0, size.measured), written(1, size.kept)),
        "the new task's text": windows("python", "validation"),
        "random bytes": (noise(size.measured), noise(size.kept)),
    }


def one(
    model: GPT,
    guard: anchorhold.Guard,
    kept: Batches,
    corpus: Corpus,
    size: Size,
    device: Device,
    seed: int,
) -> dict[str, float]:
    """Teach Python, go back to the tolerance, and return what is lost where, and what was learned."""
    guard.keep(kept, "kept")
    old = corpus.of("english", "validation")
    judge = anchorhold.Guard(model, "fine-tune")
    judge.keep([spread(old[len(old) // 2 :], size.judged, size.context)[:, :-1]], "fresh", samples=size.judged)
    text = corpus.of("python", "train")
    _train(model, text, size, device, size.python_steps, 1e-3, seed, "python", guard)
    ended = judge.retention().kl
    guard.pull_back()
    python = corpus.of("python", "validation")
    bits = bits_per_byte(device, model, spread(python[len(python) // 2 :], size.judged, size.context))
    return {
        "lost of kept": guard.retention().kl,
        "lost of old": judge.retention().kl,
        "lost before going back": ended,
        "new": bits,
    }
