"""What protecting a model will do and take, told before: the form that fits, bytes, and seconds."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.adapters import has_adapters
from anchorhold.engine.batches import call_model
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.isolation import evaluation_with_gradients
from anchorhold.errors import AnchorholdError, ConfigurationError
from anchorhold.forms import Diagonal, Form, Kronecker, Kronecker16, Rotated, Rotated16
from anchorhold.forms.factors import eigenbasis
from anchorhold.forms.layers import LayerForm
from anchorhold.guard import Guard
from anchorhold.guard.costs import Costs
from anchorhold.measures import Fisher, Measure
from anchorhold.measures import measure as measure_by_name
from anchorhold.protection.settings import Protection
from anchorhold.tensors.storage import free_memory
from anchorhold.tensors.summaries import in_bytes

PART_OF_FREE = 0.5
"""The part of the free memory that a guard may take: the rest is for gradients, the optimizer and activations."""
PASSES = {"diagonal": 2.7, "kronecker": 3.7, "rotated": 5.0}
"""What measuring takes beside a forward and backward pass over the same samples, as timed on a CPU."""
TIMED_SIZE = 512
"""The side of the factor whose eigenvectors are timed; their time goes by the cube of it."""
FEW_CLASSES = 20
"""Up to so many classes the Fisher information is summed over all of them exactly, by a backward pass for each."""


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """What :func:`anchorhold.protect` will do; ``print(plan)`` tells it."""

    form: Form
    why: tuple[str, ...]
    """Why this form, and why not those that keep as much or more."""
    weights: int
    kept: int
    """Bytes that are kept while training: of the importance, the anchor, and the old model."""
    measuring: int
    """Bytes of sums while importance is measured, at most."""
    within: int | None
    """The bound that layers are measured in chunks within, where their sums would take more memory than there is."""
    memory: int | None
    """Bytes that all of it may take; ``None`` where nothing tells how much is free."""
    seconds_measuring: float
    seconds_writing: float = 0.0
    pieces: int = 0
    """Pieces of own text that are still to be written."""
    length: int = 0
    """Tokens of a piece."""
    folder: Path | None = None
    """Where own text is kept."""
    source: str = "old data"
    exchange_rate: float = 1.0
    share: float = 0.0

    @property
    def seconds(self) -> float:
        """How long all of it will take, about."""
        return self.seconds_measuring + self.seconds_writing

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", kept in {str(self.folder)!r}"
        write = (
            f"write {self.pieces:,} pieces of {self.length} tokens, about {in_seconds(self.seconds_writing)}{where}"
            if self.pieces
            else f"write nothing: {self.source}{where}"
        )
        free = "" if self.memory is None else f" of the {in_bytes(self.memory)} that it may take"
        turns = "" if self.within is None else ", in chunks of layers"
        distil = f"distil old samples in {self.share:.3g} of each step" if self.share else "distil nothing"
        measure = (
            f"measure {self.form.name}, about {in_seconds(self.seconds_measuring)}, with sums of "
            f"{in_bytes(self.measuring)}{turns}"
        )
        hold = f"hold {self.weights:,} weights, a nat of the old worth {self.exchange_rate:g} of the new"
        lines = [
            f"Plan of protect(): about {in_seconds(self.seconds)}, and {in_bytes(self.kept)} kept{free}",
            write,
            *([measure, *(f"  {line}" for line in self.why), hold] if self.exchange_rate else ["hold no weights"]),
            distil,
        ]
        return "\n  ".join(lines)


def in_seconds(seconds: float) -> str:
    """Return a time in words."""
    count, unit = next(
        (seconds / each, name)
        for each, name in ((1, "s"), (60, "min"), (3600, "h"))
        if seconds < 90 * each or each == 3600
    )
    return f"{count:.2g} {unit}"


def measure_for(settings: Protection, outputs: torch.Size | None) -> Measure:
    """Return the measure: the Fisher information, exact for few classes and by drawn labels for many.

    Args:
        settings: of the user.
        outputs: the shape of the model's outputs, the classes last; ``None`` for a language model's.
    """
    if not settings.exchange_rate:
        return measure_by_name("fine-tune")
    if outputs is None:
        return Fisher(labels="sampled", seed=settings.seed)
    if len(outputs) > 2:
        return Fisher(labels="sampled", seed=settings.seed, class_dim=-1)
    if outputs[-1] == 1:
        raise ConfigurationError(
            "The model has one output, and protect() takes outputs for the logits of classes. For the logit of one of "
            "two classes give both: forward=lambda model, inputs: torch.cat([torch.zeros_like(z := model(inputs)), z], "
            "-1). For a regression make a guard: Guard(model, Fisher(likelihood='gaussian'), exchange_rate=1)."
        )
    return Fisher(labels="exact" if outputs[-1] <= FEW_CLASSES else "sampled", seed=settings.seed)


def candidates(model: nn.Module, device: torch.device) -> list[Form]:
    """Return the forms to choose from, the best first.

    In the studies a rotated form and a Kronecker one lost the same but for a standard error, and a diagonal twice as
    much (``results/recipes.md``, ``results/recipes-forms.md``); of adapters' merged weights likewise, where the
    Kronecker form's products are smaller (``results/adapter-recipes.md``). Forms in 16 bits lost what those in 32 did,
    and are faster where a device multiplies in bfloat16, which processors do slowly.
    """
    fast = device.type == "cuda"
    in_blocks = [Kronecker16(largest_block=2048)] if fast else []
    if has_adapters(model, {id(p) for p in model.parameters() if p.requires_grad}):
        return [Kronecker(), *in_blocks, Diagonal()]
    return [Rotated16(), Kronecker16(), *in_blocks, Diagonal()] if fast else [Rotated(), Kronecker(), Diagonal()]


def plan_for(model: nn.Module, settings: Protection, batch: Any, samples: int, measure: Measure, **told: Any) -> Plan:
    """Return the plan for a model, with the first form that memory and time have room for.

    Args:
        model: the network.
        settings: of the user.
        batch: some of what importance will be measured on, or the like of it.
        samples: how many samples importance will be measured on.
        measure: of the importance.
        told: what is known of the old samples, as :class:`Plan` has it.
    """
    device = next(model.parameters()).device
    free = settings.memory if settings.memory is not None else free_memory(device)
    may_take = free if settings.memory is not None or free is None else int(PART_OF_FREE * free)
    old = sum(p.nbytes for p in model.parameters() if p.requires_grad) if settings.share else 0
    told = {"memory": may_take, "exchange_rate": settings.exchange_rate, "share": settings.share, **told}
    if not settings.exchange_rate:
        trial = Guard(model, measure, protect=settings.protect, from_scratch=True)
        weights = sum(p.numel() for p in trial.parameters.values())
        return Plan(Diagonal(), (), weights, old + trial.cost().kept, 0, None, seconds_measuring=0.0, **told)
    passes = seconds_of_pass(model, settings, batch) * samples / BatchReader(device, model).read(batch).size
    given = settings.form
    why: list[str] = []
    tried = [given] if isinstance(given, Form) else candidates(model, device)
    for form in tried:
        trial = Guard(model, measure, strength=1.0, protect=settings.protect, form=form)
        cost = trial.cost()
        seconds = PASSES[kind_of(form)] * passes + seconds_of_eigenvectors(cost, form, device)
        kept = cost.kept + old
        largest = max((block.measuring for block in cost.blocks), default=0)
        left = None if may_take is None else may_take - kept
        within = None
        if left is not None and cost.measuring > left and largest <= left and isinstance(form, LayerForm):
            within = left
            seconds *= -(-cost.measuring // max(1, left))
        found = Plan(form, tuple(why), cost.weights, kept, cost.measuring, within, seconds_measuring=seconds, **told)
        if left is not None and (left < 0 or (cost.measuring > left and within is None)):
            need = in_bytes(kept + (cost.measuring if within is None else largest))
            why.append(f"{form.name} would take {need}, and {in_bytes(may_take or 0)} are there for it")
        elif seconds > settings.seconds:
            limit = in_seconds(settings.seconds)
            why.append(f"{form.name} would take about {in_seconds(seconds)} to measure, more than seconds={limit}")
        else:
            reason = "as asked for" if given else "keeps most of what was studied" if not why else "the best that fits"
            return dataclasses.replace(found, why=(*why, f"{form.name}: {reason}"))
        if form is tried[-1]:
            break
    raise ConfigurationError(
        f"No form fits: {'; '.join(why)}. Give more memory= or seconds=, fewer measured= samples, leave layers out by "
        "protect=, train an adapter, or give exchange_rate=0 to distil alone."
    )


def kind_of(form: Form) -> str:
    """Return by which of the forms that were timed another one's time is told."""
    if isinstance(form, Kronecker):
        return "kronecker"
    return "diagonal" if form.elementwise else "rotated"


def refuse_what_cannot_be_measured(guard: Guard, batch: Any, settings: Protection) -> None:
    """Raise what measuring would raise, by two samples and before anything is written.

    A base in few bits that gives no gradients to its inputs shows here, and layers that mix samples.
    """
    try:
        pass_over(guard.model, settings, batch)
    except AnchorholdError:
        raise
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ConfigurationError(
            "The importance of this model cannot be measured: a backward pass fails "
            f"({type(error).__name__}: {error}). Nothing was written or trained. Adapters of a quantised base need "
            "layers that give gradients to their inputs: load the base in 16 bits, or by bitsandbytes in 4 or 8."
        ) from error
    guard.rehearse([batch], forward=settings.forward)


def pass_over(model: nn.Module, settings: Protection, batch: Any) -> None:
    """Run the model forward and backward for a batch, and leave it as it was."""
    trained = [p for p in model.parameters() if p.requires_grad]
    read = BatchReader(trained[0].device, model).read(batch)
    with evaluation_with_gradients(model, trained):
        outputs: Tensor = (settings.forward or call_model)(model, read.inputs)
        torch.autograd.grad(outputs.float().square().mean(), trained, allow_unused=True)


def seconds_of_pass(model: nn.Module, settings: Protection, batch: Any) -> float:
    """Return how long the model takes forward and backward for a batch, by a second try."""
    pass_over(model, settings, batch)
    return timed(lambda: pass_over(model, settings, batch), next(model.parameters()).device)


def seconds_of_eigenvectors(cost: Costs, form: Form, device: torch.device) -> float:
    """Return how long the eigenvectors of all factors take, by those of one; a Kronecker form in 32 bits has none."""
    if not form.has_eigenbasis and getattr(form, "bits", 32) == 32:
        return 0.0
    factor = torch.randn(TIMED_SIZE, TIMED_SIZE, device=device, generator=torch.Generator(device).manual_seed(0))
    factor = factor @ factor.mT
    eigenbasis(factor)
    of_one = timed(lambda: eigenbasis(factor), device)
    # A block's sums are factors of m² and n² numbers, and in a rotated form one for each weight beside them.
    numbers = [block.measuring / 4 - (block.weights if form.has_eigenbasis else 0) for block in cost.blocks]
    return of_one * sum(math.pow(max(0.0, each) / TIMED_SIZE**2, 1.5) for each in numbers)


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return how long a call takes."""

    def settled() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    began = settled()
    call()
    return settled() - began
