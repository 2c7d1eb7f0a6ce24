"""Kronecker factors, and the diagonal in their eigenbases, against curvlinops and kronfluence."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anchorhold import Fisher, Guard
from anchorhold.engine.reductions import Basis, RotatedReduction
from anchorhold.engine.scores.standard import Labels
from anchorhold.forms import KroneckerMatrix, Matrix
from anchorhold.forms.factors import KeptFactor
from benchmarks import networks
from benchmarks.factor_peers import Data, Factors, Turned, by_curvlinops, by_kronfluence
from benchmarks.harness import Ratio, Report, interleaved
from benchmarks.undamped import undamped

LABELS: dict[Labels, str] = {"exact": "all labels", "sampled": "one drawn label"}
PEERS: dict[str, Callable[..., Callable[[], Any]]] = {"curvlinops": by_curvlinops, "kronfluence": by_kronfluence}

NAMES = ("kronecker", "rotated")
"""Of both forms, by whether they are rotated. The other libraries damp nothing, so nothing is damped here."""


def run(quick: bool) -> Iterator[Report]:
    torch.manual_seed(0)
    few = 40 if quick else None
    samples = {"mlp": few or 1000, "cnn": few or 200, "small mlp": few or 500, "small cnn": few or 200}
    targets = {name: torch.randint(10, (count,)) for name, count in samples.items()}
    mlp = Data(networks.mlp(), networks.digits(samples["mlp"]), targets["mlp"])
    cnn = Data(networks.cnn(), networks.photographs(samples["cnn"]), targets["cnn"])
    small_mlp = Data(networks.mlp(500), networks.digits(samples["small mlp"]), targets["small mlp"])
    small_cnn = Data(networks.cnn(16), networks.photographs(samples["small cnn"], 16), targets["small cnn"])
    report = Report("factors", "Kronecker factors, and the diagonal in their eigenbases", NOTES, {})
    sizes: dict[str, list[str]] = {}
    repeats = 1 if quick else 5
    _measure(report, sizes, mlp, "784-2000-2000-10", (100, 250, samples["mlp"]), repeats, rotated=False)
    _measure(report, sizes, cnn, "Split CIFAR's network", (25, 100), repeats, rotated=False)
    _measure(report, sizes, small_mlp, "784-500-500-10", (100, samples["small mlp"]), repeats, rotated=True)
    _measure(report, sizes, small_cnn, "Split CIFAR's network for 16×16", (25, 100), repeats, rotated=True)
    report.details["Batch sizes that were tried, one repetition each"] = [
        "| case | seconds by batch size |", "|---|---|",
        *(f"| {case} | {', '.join(tried)} |" for case, tried in sizes.items()),
    ]  # fmt: skip
    yield report


NOTES = [
    "Inputs are random pixels, weights as initialised; dropout is off; single precision throughout.",
    (
        "anchorhold is timed by its passes over the data and the eigenvectors between them, which is what the others "
        'do, and by Guard(...).consolidate(batches) with form="kronecker" and form="rotated", which takes an anchor '
        "and the importance's diagonal besides. curvlinops is timed by its operators' compute_kronecker_factors and "
        "compute_eigenvalue_correction, kronfluence by its functions for covariances, eigenvectors and Λ, and no files."
    ),
    (
        "All take [W b] of a layer as one matrix and convolutions by expand, and square a sample's gradient summed "
        "over positions in the eigenbasis. kronfluence's G is the mean over positions, and is multiplied by their "
        "number."
    ),
    (
        "kronfluence has no exact labels; drawn ones differ between libraries, so it is compared in numbers with the "
        "data's own labels. S is compared in the other's eigenbasis, since eigenvectors of equal eigenvalues are "
        "arbitrary."
    ),
    "Each takes the batch size that was fastest for it in a trial.",
    (
        "The rotated form is timed on smaller networks: kronfluence rotates each sample's gradient, which takes "
        "minutes on 784-2000-2000-10, and the eigenvectors of the paper's CNN, of up to 4097 inputs, are most of "
        "anyone's time. Where they do not converge in single precision, all take double, which the others would not "
        "by themselves."
    ),
]


def by_passes(data: Data, batch: int, labels: Labels, *, rotated: bool) -> Callable[[], dict[str, Matrix]]:
    """Return what a guard's form makes of the data, without the guard."""
    batches, fisher, form = data.batches(batch), Fisher(labels=labels), undamped(NAMES[rotated])

    def measure() -> dict[str, Matrix]:
        blocks = form.blocks(data.model, dict(data.model.named_parameters()))
        known: dict[str, Tensor] = {}
        for _ in range(form.passes):
            reduction = partial(form.reduction, fisher, blocks, known=known)
            collector = fisher.accumulator(data.model, reduction=reduction)
            known = form.prepare_next_pass(blocks, known | collector.result_of(batches).values, {}, 1.0)
        return form.matrices(fisher, blocks, known)

    return measure


def by_guard(data: Data, batch: int, labels: Labels, *, rotated: bool) -> Callable[[], Guard]:
    """Return a guard that has consolidated the data."""
    batches = data.batches(batch)

    def measure() -> Guard:
        guard = Guard(data.model, Fisher(labels=labels), form=undamped(NAMES[rotated]), from_scratch=True)
        guard.consolidate(batches)
        return guard

    return measure


def _measure(
    report: Report,
    sizes: dict[str, list[str]],
    data: Data,
    network: str,
    batches: tuple[int, ...],
    repeats: int,
    *,
    rotated: bool,
) -> None:
    """Time one network's factors, or their rotated form, with all labels and with one."""
    what = "rotated" if rotated else "factors"
    for labels, said in LABELS.items():
        able = {name: peer for name, peer in PEERS.items() if labels == "sampled" or name != "kronfluence"}
        cases: dict[str, Callable[[], object]] = {}
        for name, library in {"anchorhold": by_passes, "anchorhold, consolidate()": by_guard, **able}.items():
            case = f"{name}: {what} of {network} on {len(data.images)} samples, {said}"
            tried = {batch: _seconds(library(data, batch, labels, rotated=rotated)) for batch in batches}
            sizes[case] = [f"{batch}: {seconds:.3g}" for batch, seconds in tried.items()]
            cases[case] = library(data, min(tried, key=tried.__getitem__), labels, rotated=rotated)
        report.seconds |= interleaved(cases, repeats)
        ours, guard, *theirs = cases
        for name, case in zip(able, theirs, strict=True):
            ratio = f"{what} of {network}, {said}: anchorhold / {name}"
            report.ratio(f"{ratio} (must)", ours, case, 1.0)
            report.ratio(f"{ratio} (aim)", ours, case, 0.5)
            report.ratio(f"{what} of {network}, {said}: consolidate() / {name}", guard, case)
    compared: tuple[tuple[str, Labels], ...] = (("curvlinops", "exact"), ("kronfluence", "true"))
    for name, labels in compared:
        theirs = PEERS[name](data, min(batches), labels, rotated=rotated)()
        off = _rotated_off(data, labels, theirs) if rotated else _factors_off(data, labels, theirs)
        report.ratios.append(Ratio(f"{what} of {network}: largest difference from {name}, relative", off, 1e-3))


def _seconds(case: Callable[[], object]) -> float:
    case()
    start = time.perf_counter()
    case()
    return time.perf_counter() - start


def _factors_off(data: Data, labels: Labels, theirs: dict[str, Factors]) -> float:
    """Return the largest difference of any factor, relative to its largest entry."""
    matrices = by_guard(data, len(data.images), labels, rotated=False)().held.matrices
    found = []
    for name, factors in theirs.items():
        own = matrices[f"{name}.weight"]
        assert isinstance(own, KroneckerMatrix)
        found += [_off(mine, other) for mine, other in zip((own.g, own.a), factors, strict=True)]
    return max(found)


def _rotated_off(data: Data, labels: Labels, theirs: dict[str, Turned]) -> float:
    """Return the largest difference of any S in the other's eigenbasis, relative to its largest entry."""
    measure, form = Fisher(labels=labels), undamped("rotated")
    blocks = form.blocks(data.model, dict(data.model.named_parameters()))
    bases = {f"{name}.weight": Basis(turned.u_g, turned.u_a) for name, turned in theirs.items()}
    collector = measure.accumulator(
        data.model, reduction=lambda parameters: RotatedReduction(measure.phi, blocks, parameters, bases)
    )
    means = collector.result_of(data.batches(len(data.images))).values
    return max(_off(means[f"{name}.weight/S"], turned.s) for name, turned in theirs.items())


def _off(found: KeptFactor, expected: Tensor) -> float:
    assert isinstance(found, Tensor)
    return float((found - expected).abs().max() / expected.abs().max())
