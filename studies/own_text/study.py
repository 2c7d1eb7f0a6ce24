"""A small GPT's own text as the data for its Fisher information: how near that comes to the importances on real text.

`python -m studies.own_text` writes results/own-text.md: a GPT over bytes learns the English of Python's own help,
and its importances are measured on real text that it has not seen, on text that it writes, and on what is neither; some
minutes on a core.
"""

import argparse
import json
import pydoc
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold_lab.analysis.pearson import CoMoments
from benchmarks.harness import surroundings
from benchmarks.language.gpt import GPT

WIDTH, LAYERS, HEADS, CONTEXT = 64, 2, 4, 96
STEPS, BATCH, RATE = 800, 32, 3e-3
PIECES, LENGTH, PROMPT, DRAWS = 192, 64, 8, 4
SEEDS = range(3)
NEW_LINE = 10


def as_bytes(text: str) -> Tensor:
    """Return the bytes of a text as tokens."""
    return torch.tensor(list(text.encode()))


def windows(text: Tensor, count: int, length: int, seed: int) -> Tensor:
    """Return pieces of a text, from anywhere in it."""
    starts = torch.randint(len(text) - length, (count,), generator=torch.Generator().manual_seed(seed))
    return text[starts[:, None] + torch.arange(length)]


def trained(text: Tensor) -> GPT:
    """Return a GPT that has learned a text."""
    torch.manual_seed(0)
    model = GPT(WIDTH, LAYERS, HEADS, CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    for step in range(STEPS):
        rows = windows(text, BATCH, LENGTH + 1, step)
        optimizer.zero_grad()
        cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def of_rows(rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return batches of inputs and targets."""
    return [(part[:, :-1], part[:, 1:]) for part in rows.split(64)]


def data_for(model: GPT, kept: Tensor, python: Tensor, seed: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Return what the importances are measured on, by its name."""
    length = LENGTH + 1
    prompts = windows(kept, PIECES, PROMPT, 300 + seed)
    noise = torch.randint(256, (PIECES, length), generator=torch.Generator().manual_seed(400 + seed))

    write = partial(anchorhold.write_text, model, PIECES, LENGTH, seed=seed, end=None)
    return {
        "other real text": of_rows(windows(kept, PIECES, length, 200 + seed)),
        "own text": write(start=NEW_LINE).batches(64),
        "own text, top_p=0.9": write(start=NEW_LINE, top_p=0.9).batches(64),
        "own text, temperature=0.7": write(start=NEW_LINE, temperature=0.7).batches(64),
        f"own text after {PROMPT} real bytes": write(prompts=list(prompts)).batches(64),
        "Python source": of_rows(windows(python, PIECES, length, 500 + seed)),
        "random bytes": of_rows(noise),
    }


def importance(model: GPT, batches: list[tuple[Tensor, Tensor]], seed: int) -> Tensor:
    """Return the Fisher information of all weights as one vector."""
    found = anchorhold.Fisher(labels="sampled", draws=DRAWS, seed=seed, per="token").measure(model, batches)
    return torch.cat([omega.flatten() for omega in found.values()])


@torch.no_grad()
def loss(model: GPT, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Return the mean loss in nats a byte."""
    total, count = 0.0, 0
    for tokens, targets in batches:
        total += float(cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum"))
        count += int((targets != -100).sum())
    return total / count


def compared(real: Tensor, other: Tensor) -> dict[str, float]:
    """Return two correlations of importances, and the ratio of their means."""
    plain, logarithmic = CoMoments(2), CoMoments(2)
    plain.add(torch.stack([real, other]))
    both = (real > 0) & (other > 0)
    logarithmic.add(torch.stack([real[both].log(), other[both].log()]))
    return {
        "correlation": float(plain.correlations()[0, 1]),
        "of logarithms": float(logarithmic.correlations()[0, 1]),
        "size": float(other.mean() / real.mean()),
    }


def run() -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """Train, measure and compare, and return what the model is and the rows."""
    text = as_bytes("\n\n".join(topics[name] for name in sorted(topics)))
    python = as_bytes(Path(pydoc.__file__).read_text(encoding="utf-8"))
    cut = int(0.9 * len(text))
    model = trained(text[:cut])
    kept = text[cut:]
    said = {"learned bytes": cut, "loss": loss(model, of_rows(windows(kept, PIECES, LENGTH + 1, 1)))}
    said["weights"] = sum(parameter.numel() for parameter in model.parameters())
    rows: dict[str, dict[str, list[float]]] = {}
    for seed in SEEDS:
        real = importance(model, of_rows(windows(kept, PIECES, LENGTH + 1, 100 + seed)), seed)
        for name, batches in data_for(model, kept, python, seed).items():
            found = {"loss": loss(model, batches), **compared(real, importance(model, batches, 10 + seed))}
            for key, value in found.items():
                rows.setdefault(name, {}).setdefault(key, []).append(value)
    return said, rows


def table(said: dict[str, float], rows: dict[str, dict[str, list[float]]], where: dict[str, str]) -> str:
    """Return the rows as a page."""
    lines = [
        "# Own text as the data for the Fisher information",
        "",
        *(f"- {key}: {value}" for key, value in where.items()),
        "",
        (
            f"A GPT over bytes ({said['weights']:,} weights, {STEPS} steps of {BATCH} × {LENGTH} bytes) learns "
            f"{said['learned bytes']:,} bytes of Python's help and has a loss of {said['loss']:.2f} nats a byte on the "
            f"rest. Its Fisher information ({DRAWS} drawn texts a piece, per token, {PIECES} pieces of {LENGTH} bytes) "
            "on real text that it has not seen is compared with that on other data: the correlation over all weights, "
            f"that of the logarithms, and the ratio of the means. Mean of {len(SEEDS)} seeds, the least and the most. "
            "Other real text is the best that can be reached with as many pieces."
        ),
        "",
        "| measured on | loss there, nats a byte | correlation | of logarithms | mean importance, of real text's |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        mean = sum(row["loss"]) / len(row["loss"])
        cells = [f"{mean:.2f}", *(cell(row[key]) for key in ("correlation", "of logarithms", "size"))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(values: list[float]) -> str:
    """Return the mean of some values, with the least and the most."""
    return f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Run the study, and write its results."""
    parser = argparse.ArgumentParser(prog="python -m studies.own_text", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    said, rows = run()
    where = surroundings("own-text") | {"command": "python -m studies.own_text"}
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "own-text.md").write_text(table(said, rows, where), encoding="utf-8")
    document = {**where, "model": said, "rows": rows}
    (options.results / "own-text.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
