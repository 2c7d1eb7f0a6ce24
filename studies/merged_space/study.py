"""An adapter held by its merged weights, against one held by its factors: digits, and then letters.

A tiny Llama learns to go on with sequences of digits by a rule, all of its weights trained; it sees letters too, drawn
by chance. Then a LoRA adapter of all linear layers learns letters by another rule. What is held is the old model,
measured on digits by EWC before the adapter has learned anything. How much of the digits is lost is read off where the
adapter has a share of what it gains on letters without a guard, between the two nearest strengths, seed by seed; and
beside averaging, which scales the adapter down.

``python -m studies.merged_space`` writes results/merged-space.md; ``--quick`` rehearses it.
"""

import argparse
import copy
import itertools
import json
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import anchorhold
from anchorhold.spaces import SpaceName
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.harness import interleaved
from benchmarks.language.frontier import Mean, lost_at
from benchmarks.undamped import undamped

CHOSEN = (
    "The rule of the letters was chosen after a look at two, with seed 0, Kronecker factors and four strengths. By the "
    "other, (1, 7), which the adapter learned less of, the difference was smaller: at 88 to 89 % of the gain digits "
    "lost 0.25 with merged weights and 0.38 with factors, at 82 % 0.03 and, between two strengths, 0.30."
)
"""What has to be known of a toy that somebody chose."""
DIGITS, LETTERS = 10, 10
LENGTH = 16
RULE = (7, 0)
"""Of letters: how much of the last one and of the one before it make the next."""
SHARES = (0.5, 0.9, 0.95)
"""Of what the adapter gains on letters without a guard."""
AVERAGED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FORMS = ("diagonal", "rotated", "kronecker")
SPACES: dict[SpaceName, str] = {"weights": "factors", "merged": "merged weights"}


@dataclass(frozen=True)
class Sizes:
    """How large, how long, and how often."""

    width: int = 64
    layers: int = 2
    rank: int = 4
    old_steps: int = 800
    new_steps: int = 300
    batch: int = 32
    samples: int = 256
    tested: int = 512
    strengths: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 3e-1, 1.0, 10.0)
    """Relative to the mean importance of what is held."""
    seeds: tuple[int, ...] = (0, 1, 2)


QUICK = Sizes(width=16, layers=1, rank=2, old_steps=5, new_steps=5, batch=4, samples=8, tested=8, strengths=(0.1,))


@dataclass(frozen=True)
class Found:
    """What one training came to: cross-entropy in nats a token, before and after."""

    seed: int
    way: str
    strength: float
    lost: float
    """By how much the loss on digits rose."""
    gained: float
    """By how much that on letters fell."""


def sequences(count: int, kind: str, generator: torch.Generator) -> Tensor:
    """Return sequences of digits, each by the two before it, or of letters by another rule; one in ten by chance.

    Those of the kind ``"both"`` are of digits, and one in four of letters that are all by chance.
    """
    if kind == "both":
        letters = torch.randint(DIGITS, DIGITS + LETTERS, (count // 4, LENGTH), generator=generator)
        return torch.cat([sequences(count - count // 4, "digits", generator), letters])
    size, first, by = (DIGITS, 0, (3, 1)) if kind == "digits" else (LETTERS, DIGITS, RULE)
    tokens = torch.randint(size, (count, LENGTH), generator=generator)
    chance = torch.rand(count, LENGTH, generator=generator) < 0.1
    for t in range(2, LENGTH):
        ruled = (by[0] * tokens[:, t - 1] + by[1] * tokens[:, t - 2] + 1) % size
        tokens[:, t] = torch.where(chance[:, t], tokens[:, t], ruled)
    return tokens + first


class Toy:
    """One seed's model, as it was after digits, and with an adapter."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes, self.seed = sizes, seed
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=DIGITS + LETTERS,
            hidden_size=sizes.width,
            intermediate_size=2 * sizes.width,
            num_hidden_layers=sizes.layers,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            pad_token_id=None,
        )
        base = LlamaForCausalLM(config)
        train(base, list(self.batches("both", sizes.old_steps)), 3e-3)
        lora = LoraConfig(r=sizes.rank, lora_alpha=2 * sizes.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(base, lora)
        self.start = copy.deepcopy(self.model.state_dict())
        self.before = self.losses()

    def batches(self, kind: str, steps: int) -> Iterator[Tensor]:
        """Yield the same batches at each call."""
        generator = torch.Generator().manual_seed(1000 * self.seed + (kind == "letters"))
        for _ in range(steps):
            yield sequences(self.sizes.batch, kind, generator)

    def losses(self) -> dict[str, float]:
        """Return the loss on sequences that nobody trains on."""
        generator = torch.Generator().manual_seed(77 + self.seed)
        found = {}
        for kind in ("digits", "letters"):
            with torch.no_grad():
                found[kind] = float(loss_of(self.model, sequences(self.sizes.tested, kind, generator)))
        return found

    def guard(self, form: str, space: Any) -> anchorhold.Guard:
        """Return a guard that has looked at digits, with a relative strength of 1."""
        self.model.load_state_dict(self.start)
        fisher = anchorhold.Fisher(self.sizes.samples, labels="sampled")
        guard = RelativeGuard(
            self.model, fisher, relative_strength=1.0, form=undamped(form), options=anchorhold.GuardOptions(space=space)
        )
        guard.consolidate([{"input_ids": batch} for batch in self.batches("digits", 1 + self.sizes.samples // 4)])
        return guard

    def taught(self, way: str, strength: float = 0.0, guard: anchorhold.Guard | None = None) -> Found:
        """Return what is lost and gained by learning letters."""
        self.model.load_state_dict(self.start)
        if guard is not None:
            guard.gradients.restart_task()
        train(self.model, list(self.batches("letters", self.sizes.new_steps)), 3e-3, guard)
        return self.found(way, strength)

    def found(self, way: str, strength: float) -> Found:
        """Return how far the model is from where it was."""
        after = self.losses()
        lost, gained = after["digits"] - self.before["digits"], self.before["letters"] - after["letters"]
        return Found(self.seed, way, strength, lost, gained)

    def averaged(self) -> Iterator[Found]:
        """Yield what scaling an adapter down comes to, the one that the model has."""
        trained = copy.deepcopy(self.model.state_dict())
        for share in AVERAGED:
            self.model.load_state_dict({k: share * t if "lora_B" in k else t for k, t in trained.items()})
            yield self.found("averaging", share)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of the tokens that a rule has decided."""
    logits = model(input_ids=tokens).logits[:, 1:-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())


def train(model: nn.Module, batches: Sequence[Tensor], rate: float, guard: anchorhold.Guard | None = None) -> None:
    """Train with AdamW, its rate falling to 0."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(batches))
    if guard is not None:
        guard.attach(optimizer)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        rates.step()
    if guard is not None:
        guard.detach()
    model.eval()


def run(sizes: Sizes, lines: Path | None = None) -> list[Found]:
    """Return all that was trained; what a file has already is not trained again, and the rest is added to it."""
    found = read(lines)
    for seed in sizes.seeds:
        done = {(each.way, each.strength) for each in found if each.seed == seed}
        if len(done) < 1 + len(AVERAGED) + len(FORMS) * len(SPACES) * len(sizes.strengths):
            for each in _of_seed(sizes, seed, done):
                found.append(each)
                print(each, flush=True)
                if lines is not None:
                    with lines.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(each)) + "\n")
    return found


def read(lines: Path | None) -> list[Found]:
    """Return what a file has, which may be none yet."""
    if lines is None or not lines.exists():
        return []
    return [Found(**json.loads(line)) for line in lines.read_text(encoding="utf-8").splitlines()]


def _of_seed(sizes: Sizes, seed: int, done: set[tuple[str, float]]) -> Iterator[Found]:
    """Yield what is not done yet of one seed."""
    toy = Toy(sizes, seed)
    if ("fine-tuning", 0.0) not in done or ("averaging", AVERAGED[-1]) not in done:
        every = [toy.taught("fine-tuning"), *toy.averaged()]
        yield from (each for each in every if (each.way, each.strength) not in done)
    for form, (space, said) in itertools.product(FORMS, SPACES.items()):
        way = f"{form}, {said}"
        wanted = [strength for strength in sizes.strengths if (way, strength) not in done]
        if not wanted:
            continue
        guard = toy.guard(form, space)
        unit = float(guard.strength)  # type: ignore[arg-type]
        for strength in wanted:
            guard.strength = strength * unit
            yield toy.taught(way, strength, guard)


def step_costs(sizes: Sizes, repeats: int) -> dict[str, float]:
    """Return how long a step takes for one without a guard, by way of holding."""
    toy = Toy(Sizes(**(asdict(sizes) | {"old_steps": 2})), 0)
    batch = next(toy.batches("letters", 1))
    cases: dict[str, Callable[[], object]] = {}
    ways = [None, *((form, space) for form in FORMS for space in SPACES)]
    for way in ways:
        model = copy.deepcopy(toy.model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        if way is not None:
            guard = anchorhold.Guard(
                model,
                anchorhold.Fisher(16, labels="sampled"),
                strength=1e-3,
                form=way[0],
                options=anchorhold.GuardOptions(space=way[1]),
            )
            guard.consolidate([{"input_ids": each} for each in toy.batches("digits", 1)])
            guard.attach(optimizer)
        cases["without a guard" if way is None else f"{way[0]}, {SPACES[way[1]]}"] = _stepping(model, optimizer, batch)
    seconds = {name: statistics.median(found) for name, found in interleaved(cases, repeats).items()}
    free = seconds.pop("without a guard")
    return {name: found / free for name, found in seconds.items()}


def _stepping(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    return steps


def lost_by(found: Sequence[Found], way: str, share: float) -> list[float]:
    """Return what each seed loses where it has a share of what fine-tuning gains; none if some seed's is not known."""
    free = {each.seed: each for each in found if each.way == "fine-tuning"}
    lost = []
    for seed, whole in free.items():
        line = [(each.gained, each.lost) for each in found if each.seed == seed and each.way == way]
        if way == "averaging":
            line += [(0.0, 0.0), (whole.gained, whole.lost)]
        there = lost_at(line, share * whole.gained)
        if there is None:
            return []
        lost.append(there)
    return lost


def page(found: Sequence[Found], costs: dict[str, float], sizes: Sizes) -> str:
    """Return the page."""
    free = [each for each in found if each.way == "fine-tuning"]
    ways = [way for way in dict.fromkeys(each.way for each in found) if way != "fine-tuning"]
    lost, gained = (Mean.over([getattr(each, what) for each in free]) for what in ("lost", "gained"))
    lines = [
        "# An adapter held by its merged weights, and by its factors",
        "",
        (
            f"`python -m studies.merged_space`, torch {torch.__version__}, a CPU. A Llama of {sizes.layers} layers "
            f"of width {sizes.width} learns sequences of digits, then by a LoRA adapter of rank {sizes.rank} sequences "
            f"of letters ({sizes.new_steps} steps of AdamW); {len(sizes.seeds)} seeds, ± the standard error. EWC from "
            f"{sizes.samples} sequences of digits with the adapter fresh, {len(sizes.strengths)} relative strengths "
            f"from {min(sizes.strengths):g} to {max(sizes.strengths):g}. Without a guard the loss on letters falls by "
            f"{gained} nats a token and that on digits rises by {lost}. By how much the loss on digits rises where "
            "letters have so much of that gain, between the two nearest strengths (“–”: some seed's strengths do not "
            "reach there); and a step's time for one without a guard, the two side by side in one process."
        ),
        "",
        f"| held | {' | '.join(f'{share:.0%}' for share in SHARES)} | a step |",
        f"|---{'|---' * (len(SHARES) + 1)}|",
    ]
    for way in ways:
        cells = [str(Mean.over(values)) if (values := lost_by(found, way, share)) else "–" for share in SHARES]
        lines.append(f"| {way} | {' | '.join(cells)} | {f'{costs[way]:.2f}' if way in costs else ''} |")
    return "\n".join([*lines, "", CHOSEN]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.merged_space", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a rehearsal at a tiny size; nothing is written")
    parser.add_argument("--lines", type=Path, help="a file that keeps what was trained, to go on from")
    parser.add_argument("--only", type=int, help="train this seed, into the file, and write nothing else")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)
    sizes = QUICK if options.quick else Sizes()
    if options.only is not None:
        run(replace(sizes, seeds=(options.only,)), options.lines)
        return
    found = run(sizes, options.lines)
    costs = step_costs(sizes, 2 if options.quick else 25)
    text = page(found, costs, sizes)
    print(text)
    if not options.quick:
        (options.results / "merged-space.md").write_text(text, encoding="utf-8")
        kept = {"found": [asdict(each) for each in found], "steps": costs, "sizes": asdict(sizes)}
        kept["torch"] = torch.__version__
        (options.results / "merged-space.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
