"""Networks that learn an old text, then a new one beside a guard, and what each loses and gains."""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from anchorhold import AnchorholdWarning, Fisher, Guard, GuardOptions
from anchorhold.guard.arguments.strengths import strength_of_rate
from anchorhold.seeding import derive_seed, generator_for
from anchorhold.whole_files import read_tensors, write_tensors
from benchmarks.language.corpus import Corpus
from benchmarks.language.gpt import GPT
from benchmarks.language.lora import adapt
from benchmarks.language.training import batches, machine, schedule, spread
from studies.exchange_rate.settings import RANK, SIZES, Base, Ladder, Way, beyond

Line = dict[str, Any]
TOGETHER = 64
"""Samples that are evaluated at once."""


def losses(model: nn.Module, pieces: Tensor) -> Tensor:
    """Return the loss of each predicted byte in nats, ``[N, T]``."""
    logits = model(pieces[:, :-1])
    return cross_entropy(logits.flatten(0, 1).float(), pieces[:, 1:].flatten(), reduction="none").view(len(pieces), -1)


def train(
    model: nn.Module, given: Iterator[Tensor], steps: int, rate: float, decay: float = 0.0, guard: Guard | None = None
) -> None:
    """Train all that can be trained, on one batch a step."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(weights, lr=rate, betas=(0.9, 0.99), weight_decay=decay, fused=True)
    rates = schedule(optimizer, steps)
    if guard is not None:
        guard.attach(optimizer)
    for batch in given:
        optimizer.zero_grad()
        losses(model, batch).mean().backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        rates.step()
    if guard is not None:
        guard.detach()


def network(base: Base) -> GPT:
    """Return a network that has learned nothing."""
    size = SIZES[base.size]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(base.seed, "network"))
        return GPT(size.width, size.layers, size.heads, size.context)


def learn_old(base: Base, corpus: Corpus, device: torch.device, path: Path) -> None:
    """Train a network on its old text and write its weights."""
    size = SIZES[base.size]
    model = network(base).to(device)
    text = corpus.of(base.old, "train")
    given = batches(text, size.old_steps, size.old_batch, size.context, base.seed, "old")
    train(model, given, size.old_steps, size.old_rate, decay=0.1)
    write_tensors(path, {name: tensor.cpu() for name, tensor in model.state_dict().items()}, {"kind": base.name})


class Learner:
    """A network that has learned its old text, with an adapter if it goes on with one."""

    def __init__(self, base: Base, way: Way, corpus: Corpus, device: torch.device, path: Path) -> None:
        self.base, self.way, self.corpus, self.device = base, way, corpus, device
        self.size = SIZES[base.size]
        tensors, _ = read_tensors(path)
        content = hashlib.sha256()
        for name in sorted(tensors):
            content.update(tensors[name].numpy().tobytes())
        self.digest = content.hexdigest()[:16]
        self.model = network(base)
        self.model.load_state_dict(tensors)
        if way == "lora":
            adapt(self.model, RANK, generator_for(base.seed, "adapter"))
        self.model.to(device).train()
        self.start = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.pieces = {
            kind: spread(corpus.of(kind, "validation"), self.size.windows, self.size.context)
            for kind in (base.old, base.new)
        }
        self.old_log_probabilities = [
            self.model(some[:, :-1]).detach().log_softmax(-1) for some in self.pieces[base.old].split(TOGETHER)
        ]
        self.before = self.evaluate()

    def restart(self) -> None:
        """Put the weights back."""
        self.model.load_state_dict(self.start)

    @torch.no_grad()
    def evaluate(self) -> Line:
        """Return the loss on the old and the new text in nats a byte, and KL(old‖new) on the old text, with errors."""
        found: Line = {}
        for which, kind in (("old", self.base.old), ("new", self.base.new)):
            by_piece = torch.cat([losses(self.model, some).mean(1) for some in self.pieces[kind].split(TOGETHER)])
            found[which] = by_piece.double().mean().item()
        by_piece = torch.cat(
            [
                (before.exp() * (before - self.model(some[:, :-1]).log_softmax(-1))).sum(-1).mean(1)
                for some, before in zip(
                    self.pieces[self.base.old].split(TOGETHER), self.old_log_probabilities, strict=True
                )
            ]
        ).double()
        found["kl"] = by_piece.mean().item()
        found["kl_error"] = (by_piece.std() / math.sqrt(len(by_piece))).item()
        return found

    def guard(self, form: str) -> Guard:
        """Return a guard that has measured the old text."""
        self.restart()
        measure = Fisher(self.size.measured, labels="sampled", seed=self.base.seed)
        space: Any = "merged" if self.way == "lora" else "weights"
        guard = Guard(self.model, measure, strength=1.0, form=form, options=GuardOptions(space=space))
        text = self.corpus.of(self.base.old, "train")
        given = batches(text, -(-self.size.measured // 32), 32, self.size.context, self.base.seed, "measured")
        guard.consolidate([pieces[:, :-1] for pieces in given])
        return guard

    def learn_new(self, guard: Guard | None, strength: float) -> None:
        """Train on the new text, each run of a seed by the same batches."""
        size = self.size
        self.restart()
        if guard is not None:
            guard.gradients.restart_task()
            guard.strength = strength
        text = self.corpus.of(self.base.new, "train")
        given = batches(text, size.new_steps, size.new_batch, size.context, self.base.seed, "new")
        with warnings.catch_warnings():
            # Strengths that are too much are among what is searched.
            warnings.filterwarnings("ignore", "strength=.* is far too much", AnchorholdWarning)
            train(self.model, given, size.new_steps, size.rate(self.way), guard=guard)


def cost(line: Mapping[str, Any]) -> float:
    """Return the objective at an exchange rate of 1: the new text's loss and the nats lost per old token."""
    return cast("float", line["after"]["new"] + line["after"]["old"] - line["before"]["old"])


def climb(
    ladder: Ladder,
    learner: Learner,
    done: dict[float, Line],
    write: Callable[[Line], None],
    is_over: Callable[[], bool],
) -> None:
    """Run what is left of a ladder, and go on beyond an edge that is best.

    Args:
        ladder: the form and the network.
        learner: the network.
        done: the lines that are there, by exchange rate.
        write: is given each line.
        is_over: whether nothing new is to be begun.
    """
    guard, trace = None, 0.0
    tokens = learner.size.context
    pending = [kappa for kappa in ladder.first if kappa not in done]
    while True:
        if not pending and ladder.form != "none":
            further = beyond({kappa: cost(line) for kappa, line in done.items()})
            pending = [] if further is None or further in done else [further]
        if not pending or is_over():
            return
        kappa = pending.pop(0)
        began = time.perf_counter()
        if guard is None and ladder.form != "none":
            guard = learner.guard(ladder.form)
            trace = sum(float(omega.double().sum()) for omega in guard.held.importance.values())
        measured = time.perf_counter()
        strength = strength_of_rate(kappa, tokens)
        learner.learn_new(guard, strength)
        run = ladder.run(kappa)
        line: Line = {"run": run.name, "of": asdict(run), "network": learner.digest}
        line |= {"T": tokens, "c": strength, "trace": trace, "before": learner.before, "after": learner.evaluate()}
        if guard is not None:
            # c⟨D, Q(D)⟩ is κ times the nats per old token to second order.
            line["predicted"] = float(guard.penalty(batches=False).detach()) / kappa
        ended = time.perf_counter()
        line |= {"seconds": round(ended - measured, 2), "measuring": round(measured - began, 2)}
        line |= {"machine": machine(learner.device), "date": datetime.now(UTC).date().isoformat()}
        line["weights"] = sum(tensor.numel() for tensor in learner.start.values())
        done[kappa] = line
        write(line)
