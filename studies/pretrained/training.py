"""One run: a model learns a lesson, and is evaluated on it and on what is to be kept.

Weights are in float32 and computed with in bfloat16 on a GPU. Each evaluation is a line of JSON with the recipe and the
digests of the weights and the texts.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from anchorhold import Fisher, Guard
from anchorhold.guard.arguments.strengths import strength_of_rate
from anchorhold.seeding import generator_for
from anchorhold.whole_files import whole_file, write_whole
from benchmarks.language.lora import Adapted
from studies.pretrained.losses import DocumentLosses, divergence, evaluate, token_losses
from studies.pretrained.recipes import GUARDS, Recipe
from studies.pretrained.texts import KEPT
from studies.pretrained.tokens import CONTEXT, Rows, Tokens

WARM_UP = 0.03
CLIPPED_AT = 1.0
LOOKS = (0.25, 0.5)
"""After which parts of its steps a run is evaluated on the validation text, besides before and after."""
SHARES = (0.2, 0.4, 0.6, 0.8)
"""Shares of the trained weights in averages with those before (WiSE-FT: Wortsman et al. 2022, arXiv 2109.01903)."""
OWN_TEXT = "own"
"""Under which name a line has the loss on own text that no guard has measured."""
MEASURED = 256
"""The first rows of own text, which guards measure."""
JUDGED = 128
"""The last rows of own text, which guards are judged by."""
AVERAGED_FROM = 3
"""Epochs from which on a run's end is averaged: what a mild run loses is too little to be shared out."""
Line = dict[str, Any]


@dataclass
class Learner:
    """A pretrained model on a device, and what it was before any run.

    Args:
        model: the network; each run begins from its weights before.
        tokens: the texts.
        digest: of the weights before.
        own: rows that the model wrote itself, where a recipe asks for them.
        rows_together: of a step's rows, how many are in memory at once.
        context: tokens that are predicted in a row of training.
    """

    model: nn.Module
    tokens: Tokens
    digest: str
    own: Tensor | None = None
    rows_together: int = 16
    context: int = CONTEXT

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.before = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        self._evaluated: dict[tuple[str, str], DocumentLosses] = {}
        self._reference: nn.Module | None = None
        self._measured: dict[tuple[Any, ...], dict[str, Any]] = {}

    def restart(self) -> None:
        """Put the weights back to what they were before any run, without an adapter."""
        for block in _blocks(self.model):
            for name, layer in [each for each in block.named_modules() if isinstance(each[1], Adapted)]:
                block.set_submodule(name, layer.layer)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(self.before[name]).requires_grad_()

    def losses_before(self, part: str, texts: Sequence[str]) -> dict[str, DocumentLosses]:
        """Return the losses on one part of some texts before any run; the weights must be those."""
        for text in texts:
            if (text, part) not in self._evaluated:
                self._evaluated[text, part] = evaluate(self.model, self._rows(part, [text]))[text]
        return {text: self._evaluated[text, part] for text in texts}

    def _rows(self, part: str, texts: Sequence[str]) -> dict[str, Rows]:
        found = self.tokens.chosen(part, [text for text in texts if text != OWN_TEXT])
        return {text: rows.to(self.device) for text, rows in (found | self._judged(texts)).items()}

    def _judged(self, texts: Sequence[str]) -> dict[str, Rows]:
        """Return own text that no guard has measured, if it is one of some texts; nobody has counted its bytes."""
        if OWN_TEXT not in texts:
            return {}
        rows = self.require_own()[-JUDGED:]
        return {OWN_TEXT: Rows(rows, torch.zeros(len(rows), dtype=torch.long))}

    def losses(self, part: str, texts: Sequence[str]) -> dict[str, DocumentLosses]:
        """Return the losses on one part of some texts, with the weights as they are."""
        return evaluate(self.model, self._rows(part, texts))

    def guard(self, recipe: Recipe) -> Guard | None:
        """Return the guard that a recipe asks for, with its strength; the model must be as it is before training."""
        if recipe.keep not in GUARDS:
            return None
        own = self.require_own()
        measured, context = own[: min(MEASURED, len(own) - JUDGED)].long(), own.shape[1] - 1
        lora = recipe.weights == "lora"
        measure = Fisher(len(measured), labels="sampled")
        guard = Guard(self.model, measure, strength=1.0, form=recipe.keep)
        key = (recipe.keep, recipe.weights, recipe.rank, recipe.seed if lora else None)
        if key in self._measured:
            guard.load_state_dict(self._measured[key])
        else:
            # Of a mapping for a causal model every token but the first is predicted: as many as the context has.
            guard.consolidate([{"input_ids": rows.to(self.device)} for rows in measured.split(8)])
            self._measured = {key: guard.state_dict()}  # the latest alone: they are large
        guard.strength = strength_of_rate(recipe.strength, context)
        return guard

    def require_own(self) -> Tensor:
        """Return the model's own text. Raise SystemExit if there is none."""
        if self.own is None:
            raise SystemExit("This recipe needs the model's own text: run `python -m studies.pretrained write` first.")
        return self.own

    @property
    def reference(self) -> nn.Module:
        """Return a copy of the model with the weights before any run, in bfloat16."""
        if self._reference is None:
            made = type(self.model)(cast("Any", self.model).config)
            made.load_state_dict(self.before, strict=False)  # the output layer's weight is the embedding's
            self._reference = made.to(self.device, torch.bfloat16).requires_grad_(False).eval()
        return self._reference


def _blocks(model: nn.Module) -> nn.ModuleList:
    found: nn.ModuleList = cast("Any", model).model.layers
    return found


def adapt(model: nn.Module, rank: int, seed: int) -> list[nn.Parameter]:
    """Give every linear layer of a model's blocks an adapter, and return what is to be trained."""
    generator = generator_for(seed, "adapter")
    model.requires_grad_(False)
    trained = []
    for block in _blocks(model):
        for name, layer in [each for each in block.named_modules() if isinstance(each[1], nn.Linear)]:
            adapted = Adapted(layer, rank, generator).to(layer.weight.device)
            block.set_submodule(name, adapted)
            trained += [adapted.lora_a, adapted.lora_b]
    return trained


def rows_of(stream: Tensor, begin: int, context: int) -> Tensor:
    """Return a stream of tokens as rows, each after the token that rows begin with; what is left over is left out."""
    whole = stream[: len(stream) // context * context].view(-1, context)
    return torch.cat([whole.new_full((len(whole), 1), begin), whole], dim=1)


def steps_of(recipe: Recipe, rows: int) -> int:
    """Return how many steps a recipe takes: each epoch's last rows that fill no batch are left out."""
    return recipe.epochs * (rows // recipe.batch)


def batches(recipe: Recipe, rows: Tensor) -> Iterator[Tensor]:
    """Yield the rows of each step, in an order of its own in each epoch."""
    generator = generator_for(recipe.seed, "order")
    for _ in range(recipe.epochs):
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        whole = len(rows) // recipe.batch * recipe.batch
        for chosen in order[:whole].view(-1, recipe.batch):
            yield rows[chosen]


def rate_at(step: int, steps: int) -> float:
    """Return the learning rate of a step, as a share of the highest."""
    rising = max(1, round(WARM_UP * steps))
    return min((step + 1) / rising, (steps - step) / max(1, steps - rising), 1.0)


def run(learner: Learner, recipe: Recipe, write: Callable[[Line], None], save_to: Path | None = None) -> None:
    """Run a recipe and write its lines; the last has ``"end": true``.

    Args:
        learner: the model, which is as it was before when this returns.
        recipe: the recipe.
        write: is given each line.
        save_to: a file for the trained weights, by their names in the trained model.
    """
    began = time.perf_counter()
    learner.restart()
    texts = (recipe.lesson, *KEPT, *([OWN_TEXT] if recipe.keep in GUARDS else []))
    before = {part: learner.losses_before(part, texts) for part in ("validation", "test")}
    stream = learner.tokens.train[recipe.lesson]
    rows = rows_of(stream, learner.tokens.begin, learner.context).to(learner.device)
    steps = steps_of(recipe, len(rows))
    common = {
        "run": recipe.name,
        "recipe": asdict(recipe),
        "weights": learner.digest,
        "tokens": learner.tokens.digest,
        "machine": _machine(learner.device),
        "date": datetime.now(UTC).date().isoformat(),
        "steps": steps,
    }
    if recipe.strength:
        common["own"] = _digest(learner)

    def look(step: int, part: str, share: float, *, documents: bool = False) -> None:
        now = learner.losses(part, texts)
        changes = {text: _told(now[text], before[part][text], documents=documents) for text in texts}
        place = {"step": step, "part": part, "share": share, "seconds": round(time.perf_counter() - began, 1)}
        write({**common, **place, "texts": changes})

    trained = to_train(learner, recipe)
    guard = learner.guard(recipe)
    measured = time.perf_counter() - began
    training_loss = teach(learner, recipe, trained, rows, guard, lambda step: look(step, "validation", 1.0))
    if guard is not None:
        common["guard"] = {**_about(guard, recipe, learner), "measured_after": round(measured, 1)}
    seconds = time.perf_counter() - began
    common["trained_seconds"] = round(seconds, 1)
    common["training_loss"] = [round(float(each), 3) for each in training_loss[:: max(1, steps // 20)]]
    look(steps, "validation", 1.0)
    look(steps, "test", 1.0, documents=True)
    del common["training_loss"]
    after = [weight.detach().clone() for weight in trained]
    # An adapter's product is linear in B, so a share of B is a share of the whole change.
    names = {id(weight): name for name, weight in learner.model.named_parameters()}
    if save_to is not None:
        write_whole(save_to, save({names[id(weight)]: weight.detach().cpu() for weight in trained}))
    for share in SHARES if recipe.epochs >= AVERAGED_FROM else ():
        _average(learner, names, trained, after, share)
        for part in ("validation", "test"):
            look(steps, part, share)
    learner.restart()
    peak = torch.cuda.max_memory_allocated() / 2**30 if learner.device.type == "cuda" else 0.0
    write({**common, "end": True, "seconds": round(time.perf_counter() - began, 1), "peak_gib": round(peak, 1)})


def teach(
    learner: Learner,
    recipe: Recipe,
    trained: Sequence[nn.Parameter],
    rows: Tensor,
    guard: Guard | None,
    look: Callable[[int], None],
) -> Tensor:
    """Train on a lesson's rows, look at the model on the way, and return the lesson's loss at each step."""
    steps = steps_of(recipe, len(rows))
    own = _own_batches(learner, recipe)
    # The fused step is one launch for many weights; on a CPU it is as exact.
    optimizer = AdamW(trained, lr=recipe.rate, weight_decay=0.0, fused=True)
    if guard is not None:
        guard.attach(optimizer)
    looks = {round(part * steps) for part in LOOKS}
    learner.model.train()
    training_loss = []
    for step, batch in enumerate(batches(recipe, rows)):
        if step in looks:
            look(step)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * rate_at(step, steps)
        training_loss.append(_accumulate(learner, recipe, batch, own))
        clip_grad_norm_(trained, CLIPPED_AT)
        optimizer.step()
        optimizer.zero_grad()
    if guard is not None:
        guard.detach()
    return torch.stack(training_loss)


@torch.no_grad()
def _average(
    learner: Learner, names: Mapping[int, str], trained: Sequence[nn.Parameter], after: Sequence[Tensor], share: float
) -> None:
    """Take a share of what training has changed."""
    for weight, end in zip(trained, after, strict=True):
        name = names[id(weight)]
        if name.endswith("lora_b"):
            weight.copy_(share * end)
        elif not name.endswith("lora_a"):
            weight.copy_(learner.before[name].lerp(end, share))


def _about(guard: Guard, recipe: Recipe, learner: Learner) -> Line:
    """Return what a line says of a guard, with the weights as they are after training."""
    return {
        "c": guard.strength,
        "T": learner.require_own().shape[1] - 1,
        "trace": sum(float(omega.double().sum()) for omega in guard.held.importance.values()),
        "space": guard.options.space,
        # c⟨D, Q(D)⟩ is the exchange rate times the nats that are lost per token, to second order.
        "predicted": float(guard.penalty(batches=False).detach()) / recipe.strength,
    }


def _accumulate(learner: Learner, recipe: Recipe, batch: Tensor, own: Iterator[Tensor]) -> Tensor:
    """Accumulate the gradients of a step, and return the lesson's mean loss."""
    total = torch.zeros((), device=batch.device)
    for some in batch.split(learner.rows_together):
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=batch.is_cuda):
            loss = token_losses(learner.model, some).sum() / batch[:, 1:].numel()
        loss.backward()
        total += loss.detach()
    if recipe.keep == "own text":
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=batch.is_cuda):
            kept = recipe.strength * divergence(learner.model, learner.reference, next(own))
        kept.backward()
    return total


def _digest(learner: Learner) -> str:
    """Return a digest of the model's own text."""
    return hashlib.sha256(learner.require_own().int().numpy().tobytes()).hexdigest()[:16]


def to_train(learner: Learner, recipe: Recipe) -> list[nn.Parameter]:
    """Return what a recipe trains, with an adapter where it asks for one."""
    if recipe.weights == "lora":
        return adapt(learner.model, recipe.rank, recipe.seed)
    return list(learner.model.parameters())


def _own_batches(learner: Learner, recipe: Recipe) -> Iterator[Tensor]:
    """Yield rows of own text for each step, endlessly; none where a recipe asks for none."""
    if recipe.keep != "own text":
        return
    own = learner.require_own().to(learner.device)
    generator = generator_for(recipe.seed, "own text")
    while True:
        yield own[torch.randint(len(own), (recipe.kept_rows,), generator=generator).to(own.device)]


def _told(now: DocumentLosses, before: DocumentLosses, *, documents: bool) -> Line:
    """Return what a line says of one text: values and changes, each with its standard error."""
    change, error = now.change(before)
    nats, nats_error = now.per_token()
    told: Line = {
        "change": round(change, 5),
        "change_error": round(error, 5),
        "nats": round(nats, 5),
        "nats_error": round(nats_error, 5),
    }
    if sum(now.sizes):  # or else nobody has counted the bytes
        bits, bits_error = now.per_byte()
        old_bits, _ = before.per_byte()
        told["bits"] = round(bits, 5)
        told["bits_change"] = round(bits - old_bits, 5)
        told["bits_error"] = round(bits_error, 5)
    if documents:
        told["documents"] = [round(each, 1) for each in now.nats]
        told["documents_before"] = [round(each, 1) for each in before.nats]
        told["tokens"], told["bytes"] = list(now.tokens), list(now.sizes)
    return told


def _machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}, transformers {transformers.__version__}"


@torch.no_grad()
def write_own_text(model: nn.Module, begin: int, rows: int, seed: int, context: int = CONTEXT) -> Tensor:
    """Return rows that a model writes itself, drawn at temperature 1 after the token that rows begin with."""
    device = next(model.parameters()).device
    start = torch.full((rows, 1), begin, device=device)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
    ):
        torch.manual_seed(seed)
        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "use_cache": True}
        lengths = {"min_new_tokens": context, "max_new_tokens": context, "eos_token_id": None, "pad_token_id": begin}
        found: Tensor = cast("Any", model).generate(start, **settings, **lengths)
    return found.int().cpu()


def save_rows(rows: Tensor, path: Path) -> None:
    """Write rows of tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        np.savez_compressed(file, rows=rows.numpy())
