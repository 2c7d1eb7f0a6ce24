"""Each layer rule against torch.func's per-sample gradients, for one score a sample and for the exact Fisher."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from benchmarks.harness import Ratio, Report, disagreement, interleaved


class Affine(nn.Module):
    """A scale and a shift written by hand."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features))
        self.shift = nn.Parameter(torch.rand(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "Linear 512→512": lambda: (nn.Linear(512, 512), torch.randn(128, 512)),
    "Linear 256→256 along 128 positions": lambda: (nn.Linear(256, 256), torch.randn(64, 128, 256)),
    "Conv1d 64→64, 5 wide, on 128": lambda: (nn.Conv1d(64, 64, 5, padding=2), torch.randn(64, 64, 128)),
    "Conv2d 32→64, 3×3, on 16×16": lambda: (nn.Conv2d(32, 64, 3, padding=1), torch.randn(128, 32, 16, 16)),
    "Conv2d 64→64, 3×3, 8 groups, on 16×16": lambda: (
        nn.Conv2d(64, 64, 3, padding=1, groups=8),
        torch.randn(128, 64, 16, 16),
    ),
    "Conv3d 8→16, 3×3×3, on 8×8×8": lambda: (nn.Conv3d(8, 16, 3, padding=1), torch.randn(64, 8, 8, 8, 8)),
    "Embedding 2000×64, 64 look-ups": lambda: (nn.Embedding(2000, 64), torch.randint(2000, (64, 64))),
    "LayerNorm 256 along 128 positions": lambda: (nn.LayerNorm(256), torch.randn(128, 128, 256)),
    "RMSNorm 256 along 128 positions": lambda: (nn.RMSNorm(256), torch.randn(128, 128, 256)),
    "GroupNorm 8×8 on 16×16": lambda: (nn.GroupNorm(8, 64), torch.randn(128, 64, 16, 16)),
    "BatchNorm2d 64 on 16×16": lambda: (nn.BatchNorm2d(64), torch.randn(128, 64, 16, 16)),
    "scale and shift of 256 along 128 positions": lambda: (Affine(256), torch.randn(128, 128, 256)),
}


CLASSES = 10


class Readout(nn.Module):
    """Ten outputs from whatever a layer gives, without parameters of its own."""

    matrix: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(features, CLASSES) / features**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.matrix


def run(quick: bool) -> Iterator[Report]:
    torch.manual_seed(0)
    report = Report("rules", "Layer rules against torch.func's vmap(grad)", [], {})
    for name, make in LAYERS.items():
        layer, inputs = make()
        layer.eval()
        model = nn.Sequential(layer, Readout(layer(inputs[:1]).numel())).eval()
        for score, cases in (("one score", _one_score(model, inputs)), ("Fisher", _fisher(model, inputs))):
            off = disagreement(cases["rule"](), cases["torch.func"]())
            report.ratios.append(Ratio(f"{name}, {score}: largest difference, relative", off, 1e-3))
            seconds = interleaved(cases, 1 if quick else 15)
            report.seconds |= {f"{name}, {score}: {way}": times for way, times in seconds.items()}
            report.ratio(
                f"{name}, {score}: rule / torch.func", f"{name}, {score}: rule", f"{name}, {score}: torch.func"
            )
    report.notes = [
        "Each layer is followed by a fixed random matrix to ten outputs; random inputs; all samples in one batch.",
        "One score: the mean over samples of the squared gradient of the outputs' squared norm, by vmap(grad).",
        "Fisher: exact, over all ten labels, by vmap(jacrev) of the log-probabilities.",
    ]
    yield report


Cases = dict[str, Callable[[], dict[str, Tensor]]]


def _one_score(model: nn.Module, inputs: Tensor) -> Cases:
    call, parameters = _functional(model)

    def by_rule() -> dict[str, Tensor]:
        return sample_importance(model, [inputs], OutputNorm("logits"), SQUARE).values

    def by_torch_func() -> dict[str, Tensor]:
        gradients = vmap(grad(lambda p, x: call(p, x).square().sum()), in_dims=(None, 0))(parameters, inputs)
        return {name: gradient.square().mean(0) for name, gradient in gradients.items()}

    return {"rule": by_rule, "torch.func": by_torch_func}


def _fisher(model: nn.Module, inputs: Tensor) -> Cases:
    call, parameters = _functional(model)

    def by_rule() -> dict[str, Tensor]:
        return sample_importance(model, [inputs], LogLikelihood(), SQUARE).values

    def by_torch_func() -> dict[str, Tensor]:
        scores = vmap(jacrev(lambda p, x: call(p, x).log_softmax(-1)), in_dims=(None, 0))
        q = model(inputs).softmax(-1).detach()
        return {
            name: torch.einsum("nc,nc...->...", q, gradient.square()) / len(inputs)
            for name, gradient in scores(parameters, inputs).items()
        }

    return {"rule": by_rule, "torch.func": by_torch_func}


def _functional(model: nn.Module) -> tuple[Callable[[dict[str, Tensor], Tensor], Tensor], dict[str, Tensor]]:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.detach() for name, b in model.named_buffers()}

    def call(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        value: Tensor = functional_call(model, (values, buffers), (sample.unsqueeze(0),))[0]
        return value

    return call, parameters
