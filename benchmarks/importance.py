"""The exact Fisher, AF and MAS of the paper's networks, against other ways to the exact Fisher."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from benchmarks import networks, peers
from benchmarks.harness import Ratio, Report, disagreement, interleaved


def run(quick: bool) -> Iterator[Report]:
    torch.manual_seed(0)
    images = networks.digits(100 if quick else 1000)
    report = _measure("importance-mlp", networks.mlp(), images, 2 if quick else 10, (100, 250), 100, 1 if quick else 7)
    report.title = f"784-2000-2000-10 on {len(images)} images"
    report.ratio("batch-1 loop / Fisher", LOOP, FISHER, 55, at_least=True)
    report.ratio("Fisher / BackPACK's fastest", FISHER, _fastest(report, "BackPACK"), 0.8)
    _against_fisher(report)
    yield report
    images = networks.photographs(20 if quick else 500)
    report = _measure("importance-cnn", networks.cnn(), images, 2 if quick else 10, (10, 25), 25, 1 if quick else 5)
    report.title = f"Split CIFAR's network on {len(images)} images"
    report.ratio("batch-1 loop / Fisher", LOOP, FISHER)
    report.ratio("Fisher / BackPACK's fastest (must)", FISHER, _fastest(report, "BackPACK"), 1.0)
    report.ratio("Fisher / BackPACK's fastest (aim)", FISHER, _fastest(report, "BackPACK"), 0.6)
    _against_fisher(report)
    yield report


LOOP = "batch-1 loop over all labels"
FISHER = "anchorhold Fisher"
AF = "anchorhold AF"
MAS = "anchorhold MAS"


def _measure(
    name: str, model: nn.Module, images: Tensor, few: int, batches: tuple[int, ...], batch: int, repeats: int
) -> Report:
    def fisher(some: Tensor = images) -> dict[str, Tensor]:
        return sample_importance(model, [some], LogLikelihood(), SQUARE).values

    whole = len(images)
    backpacks = {f"BackPACK, batches of {b}": peers.by_backpack(model, images, b) for b in (*batches, whole)}
    nngeometry = peers.by_nngeometry(model, images, batch)
    cases: dict[str, Callable[[], object]] = {
        FISHER: fisher,
        AF: lambda: sample_importance(model, [images], LogLikelihood(), ABSOLUTE),
        MAS: lambda: sample_importance(model, [images], OutputNorm(), ABSOLUTE),
        **backpacks,
        f"nngeometry, batches of {batch}": nngeometry,
        LOOP: lambda: peers.one_by_one(model, images[:few]),
    }
    report = Report(name, "", [], interleaved(cases, repeats), {LOOP: whole / few})
    found = fisher()
    agreement = {
        "BackPACK": disagreement(found, backpacks[f"BackPACK, batches of {batches[0]}"]()),
        "nngeometry": disagreement(found, nngeometry()),
        "the batch-1 loop, on its images": disagreement(fisher(images[:few]), peers.one_by_one(model, images[:few])),
    }
    report.ratios += [Ratio(f"largest difference from {who}, relative", off, 1e-3) for who, off in agreement.items()]
    report.notes = [
        "Inputs are random pixels, weights as initialised; dropout is off.",
        f"The batch-1 loop was run on {few} images and its time multiplied by {whole / few:g}.",
        "BackPACK is given all images at once and in two sizes of batches; the comparison takes the fastest of them.",
        "nngeometry's PMatDiag of the FIM with 'classif_logits' is the exact Fisher too.",
    ]
    return report


def _fastest(report: Report, start: str) -> str:
    return min((case for case in report.seconds if case.startswith(start)), key=report.median)


def _against_fisher(report: Report) -> None:
    report.ratio("Fisher / nngeometry", FISHER, _fastest(report, "nngeometry"))
    report.ratio("AF / Fisher", AF, FISHER, 1.2)
    report.ratio("MAS / Fisher", MAS, FISHER, 0.5)
