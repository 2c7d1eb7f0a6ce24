"""Measure a few layers of a decoder in rotated form, beside bergson's and kronfluence's EK-FAC of the same ones.

curvlinops has no rule for a sequence's summed gradient: its EK-FAC squares each position's, which is another matrix.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

import anchorhold
from anchorhold.engine.reductions import Basis, FactorReduction
from anchorhold.engine.reductions.layers import Block
from anchorhold.engine.rules.base import Products
from anchorhold.forms import Rotated16
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.data.locations import Datasets
from benchmarks.gpu.billion import FULL, SMALL, decoder, make_room
from benchmarks.gpu.measuring import AT_ONCE, WAYS, _q, _wait
from benchmarks.harness import Ratio, Report

SEQUENCES, LENGTH, LAYERS = 64, 512, 3
COMPARED = ("layers.0.self_attn.q_proj", "layers.1.mlp.up_proj")
GOAL = 0.5

Batch = tuple[Tensor, Tensor]


class Turned(NamedTuple):
    """S of a layer in the coordinates of its factors."""

    s: Tensor
    basis: Basis


Measured = Mapping[str, Turned]


def run(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Yield a report after each library, of all so far."""
    del datasets
    size = dataclasses.replace(SMALL if quick else FULL, layers=2 if quick else LAYERS)
    sequences, length = (8, 16) if quick else (SEQUENCES, LENGTH)
    notes = [
        (
            f"All linear layers in {size.layers} layers of a Llama of width {size.width}, without its head, random "
            f"weights in 16 bits; {sequences} sequences of {length} tokens with given labels, so that all find the "
            "same matrices. Nobody writes files."
        ),
        "Errors are of Q(D) against float64, from the δ and inputs that each library is given, for random D.",
    ]
    report = Report("gpu-measuring-peers", "EK-FAC of a decoder's layers, beside other libraries", notes, {})
    torch.manual_seed(0)
    model = decoder(size)
    config: Any = model.config
    config._attn_implementation = "eager"  # the same products for all, so that the same δ arrive
    model = model.to(torch.bfloat16)
    shape = (sequences, length)
    tokens, labels = (torch.randint(size.vocabulary, shape, device=device) for _ in range(2))
    batches = list(zip(tokens.split(AT_ONCE), labels.split(AT_ONCE), strict=True))
    weights = _linear_weights(model)
    d = {layer: torch.randn_like(weights[f"model.{layer}.weight"], dtype=torch.float64) for layer in COMPARED}
    exact = {
        whose: {layer: _exact(pieces, d[layer]) for layer, pieces in found(model, batches).items()}
        for whose, found in (("ours", _pieces_of_ours), ("theirs", _pieces_of_theirs))
    }
    cases: dict[str, Callable[[], Measured]] = {
        f"anchorhold, {way}": partial(_ours_in, entered, model, batches) for way, entered in WAYS.items()
    }
    cases |= {
        "bergson, float32": partial(by_bergson, model, batches),
        "kronfluence, float32": partial(by_kronfluence, model, batches),
        "bergson, TF32": partial(_in_tf32, device, partial(by_bergson, model, batches)),
    }
    by_ours(model, batches[:1])  # warm
    ours = list(WAYS)[-1]
    for name, case in cases.items():
        make_room(device)
        _wait(device)
        began = time.perf_counter()
        try:
            found = case()
        except ImportError as error:
            report.notes.append(f"{name}: not installed ({error})")
            continue
        _wait(device)
        report.seconds[name] = [time.perf_counter() - began]
        for layer, expected in exact["ours" if name.startswith("anchorhold") else "theirs"].items():
            basis, s = Basis(*(u.double() for u in found[layer].basis if u is not None)), found[layer].s.double()
            off = float((_q(basis, s.to(device), d[layer]) - expected).norm() / expected.norm())
            report.ratios.append(Ratio(f"Q(D) off float64, {name}, {layer}", off))
        if not name.startswith("anchorhold"):
            report.ratio(f"seconds, anchorhold / {name}", f"anchorhold, {ours}", name, GOAL)
        yield report


def _ours_in(entered: Callable[[], Any], model: nn.Module, batches: list[Batch]) -> Measured:
    with entered():
        return by_ours(model, batches)


def _in_tf32(device: torch.device, case: Callable[[], Measured]) -> Measured:
    with tf32_allowed(True, device):
        return case()


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens).logits
    return logits


def _linear_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}


def by_ours(model: nn.Module, batches: list[Batch]) -> Measured:
    """Return S of both passes."""
    form, measure, parameters = Rotated16(damping=0.0), anchorhold.Fisher(labels="true"), _linear_weights(model)
    blocks = form.blocks(model, parameters)
    known: dict[str, Tensor] = {}
    for _ in range(form.passes):
        collector = measure.accumulator(
            model, parameters, _logits, reduction=partial(form.reduction, measure, blocks, known=known)
        )
        known = form.prepare_next_pass(blocks, known | collector.result_of(batches).values, {}, 1.0)
    return {
        block.name.removeprefix("model.").removesuffix(".weight"): Turned(
            known[f"{block.name}/S"].bfloat16(), Basis(*(known[f"{block.name}/U{k}"].bfloat16() for k in "GA"))
        )
        for block in blocks
    }


Pieces = dict[str, list[tuple[Tensor, Tensor]]]
"""δ and the inputs of each batch, by layer."""


def _pieces_of_ours(model: nn.Module, batches: list[Batch]) -> Pieces:
    kept: Pieces = {layer: [] for layer in COMPARED}
    weights = _linear_weights(model)
    parameters = {name: weights[name] for name in (f"model.{layer}.weight" for layer in COMPARED)}
    original = FactorReduction.add_products

    def keeping(self: FactorReduction, block: Block, products: Products, *, first: bool) -> None:
        assert isinstance(products.a, Tensor)
        layer = block.name.removeprefix("model.").removesuffix(".weight")
        kept[layer].append((products.delta[0].bfloat16(), products.a.bfloat16()))
        original(self, block, products, first=first)

    form, measure = Rotated16(), anchorhold.Fisher(labels="true")
    blocks = form.blocks(model, parameters)
    with mock.patch.object(FactorReduction, "add_products", keeping):
        reduction = partial(form.reduction, measure, blocks, known={})
        measure.accumulator(model, parameters, _logits, reduction=reduction).result_of(batches)
    return kept


def _pieces_of_theirs(model: nn.Module, batches: list[Batch]) -> Pieces:
    """Return what reaches the layers by torch's own cross-entropy, whose rounding to 16 bits is another."""
    kept: Pieces = {layer: [] for layer in COMPARED}

    def keeping(layer: str, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        inputs = given[0].detach()
        output.register_hook(lambda delta: kept[layer].append((delta, inputs)))

    body: Any = model.base_model  # transformers' own
    handles = [body.get_submodule(layer).register_forward_hook(partial(keeping, layer)) for layer in COMPARED]
    for tokens, labels in batches:
        loss = nn.functional.cross_entropy(_logits(model, tokens).flatten(0, 1), labels.flatten(), reduction="sum")
        torch.autograd.grad(loss, body.get_input_embeddings().weight)
    for handle in handles:
        handle.remove()
    return kept


def _exact(pieces: list[tuple[Tensor, Tensor]], d: Tensor) -> Tensor:
    """Return Q(D) in float64."""
    sums = [sum(_outer(part) for part in parts) for parts in zip(*pieces, strict=True)]
    u_g, u_a = (torch.linalg.eigh(each)[1] for each in sums)
    squares = (
        (own.mT @ inputs).square()
        for delta, a in pieces
        for own, inputs in zip(delta.double() @ u_g, a.double() @ u_a, strict=True)
    )
    s = torch.zeros_like(d)
    for some in squares:
        s += some
    return _q(Basis(u_g, u_a), s / sum(len(delta) for delta, _ in pieces), d)


def _outer(part: Tensor) -> Tensor:
    rows = part.flatten(0, 1).double()
    return rows.mT @ rows


def by_bergson(model: nn.Module, batches: list[Batch]) -> Measured:
    """Return what its collectors find, without the files that they write."""
    from bergson.hessians import eigenvectors, kfac  # noqa: PLC0415 (who has it not has the other libraries' rows)

    base: Any = model.base_model  # transformers' own
    names = {name.removeprefix("model.").removesuffix(".weight") for name in _linear_weights(model)}
    base.requires_grad_(False)
    base.get_input_embeddings().weight.requires_grad_(True)  # so that a graph is made, without the weights' gradients

    def through(collector: Any) -> Any:
        for tokens, labels in batches:
            mask = torch.ones_like(tokens, dtype=torch.bool)
            with collector.with_batch(mask):
                logits = model(input_ids=tokens).logits
                nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
                model.zero_grad()
        return collector

    made = {"model": base, "target_modules": names, "dtype": torch.float32, "path": "/tmp"}
    try:
        with (
            mock.patch.object(kfac, "save_file", _nothing),
            mock.patch.object(eigenvectors, "save_file", _nothing),
            mock.patch("os.makedirs", _nothing),
        ):
            first = through(kfac.CovarianceCollector(**made))
            positions = sum(tokens.numel() for tokens, _ in batches)
            u_a, u_g = (
                eigenvectors.eigendecompose_owned(sums, shapes, None, positions, "", torch.float32)[0]
                for sums, shapes in ((first.A_cov_dict, first.A_shapes), (first.S_cov_dict, first.S_shapes))
            )
            second = through(eigenvectors.LambdaCollector(**made, eigenvectors=(u_a, u_g)))
            samples = sum(len(tokens) for tokens, _ in batches)
            corrections = second.eigenvalue_corrections
            return {name: Turned(corrections[name] / samples, Basis(u_g[name], u_a[name])) for name in names}
    finally:
        model.requires_grad_(True)


def _nothing(*_: object, **__: object) -> None:
    """Write no file, and make no folder."""


def by_kronfluence(model: nn.Module, batches: list[Batch]) -> Measured:
    """Return its Λ, by the functions below its ``Analyzer``, which would write all of it to files."""
    from kronfluence.arguments import FactorArguments  # noqa: PLC0415 (as above)
    from kronfluence.factor.covariance import fit_covariance_matrices_with_loader  # noqa: PLC0415
    from kronfluence.factor.eigen import fit_lambda_matrices_with_loader, perform_eigendecomposition  # noqa: PLC0415
    from kronfluence.module.utils import wrap_tracked_modules  # noqa: PLC0415
    from kronfluence.task import Task  # noqa: PLC0415
    from kronfluence.utils.state import State  # noqa: PLC0415

    names = [name.removesuffix(".weight") for name in _linear_weights(model)]

    class NextTokens(Task):  # type: ignore[misc]
        """Cross-entropy of given labels."""

        def compute_train_loss(self, batch: Batch, model: nn.Module, sample: bool = False) -> Tensor:
            logits = _logits(model, batch[0])
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), reduction="sum")

        def compute_measurement(self, batch: Batch, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return names

    task, state = NextTokens(), State(cpu=batches[0][0].device.type == "cpu")
    own = wrap_tracked_modules(copy.deepcopy(model).requires_grad_(False), task)
    arguments = FactorArguments(strategy="ekfac", use_empirical_fisher=True)
    loader = _Loader(batches)
    _, found = fit_covariance_matrices_with_loader(own, state, task, loader, arguments, disable_tqdm=True)
    eigen = perform_eigendecomposition(found, own, state, arguments, disable_tqdm=True)
    samples, fitted = fit_lambda_matrices_with_loader(own, state, task, loader, arguments, eigen, disable_tqdm=True)
    device = batches[0][0].device
    u_g, u_a = eigen["gradient_eigenvectors"], eigen["activation_eigenvectors"]
    return {
        name.removeprefix("model."): Turned(
            (s / samples.to(s.device)).to(device), Basis(u_g[name].to(device), u_a[name].to(device))
        )
        for name, s in fitted["lambda_matrix"].items()
    }


class _Loader:
    """Batches as kronfluence takes them, with the number of samples."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.dataset = range(sum(len(tokens) for tokens, _ in batches))

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)
