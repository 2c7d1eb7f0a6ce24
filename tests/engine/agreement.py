"""How the tests compare the engine with the oracles."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.accumulator import SampleImportance, sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE, Phi
from anchorhold.engine.scores import CustomScore, LogLikelihood, OutputNorm, Score
from tests import oracles

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


class Measure(NamedTuple):
    score: Score
    phi: Phi
    oracle: oracles.Scores


def _margins(outputs: Tensor, target: Tensor | None = None) -> Tensor:
    return torch.stack([outputs[..., 0] * outputs[..., 1], outputs.sin().sum(-1)], -1)


def _margin_weights(outputs: Tensor, target: Tensor | None = None) -> Tensor:
    return torch.stack([outputs[..., 0].square(), outputs[..., 1].exp()], -1)


def _custom_terms(outputs: Tensor, target: Tensor | None) -> list[oracles.Terms]:
    return [list(zip(_margin_weights(outputs).detach(), _margins(outputs), strict=True))]


MEASURES = {
    "Fisher": Measure(LogLikelihood(), SQUARE, oracles.every_label),
    "AF": Measure(LogLikelihood(), ABSOLUTE, oracles.every_label),
    "empirical Fisher": Measure(LogLikelihood("true"), SQUARE, oracles.true_label),
    "empirical AF": Measure(LogLikelihood("true"), ABSOLUTE, oracles.true_label),
    "MAS": Measure(OutputNorm(), ABSOLUTE, oracles.squared_norm),
    "MASX": Measure(OutputNorm(dominant=True), ABSOLUTE, oracles.squared_maximum),
    "MAS on logits": Measure(OutputNorm("logits"), ABSOLUTE, oracles.squared_logits),
    "MASX on logits": Measure(OutputNorm("logits", dominant=True), ABSOLUTE, oracles.squared_maximum_logit),
    "custom": Measure(CustomScore(_margins, _margin_weights), SQUARE, _custom_terms),
    "custom, absolute": Measure(CustomScore(_margins, _margin_weights), ABSOLUTE, _custom_terms),
}
FOR_POSITIONS = {
    "Fisher": Measure(LogLikelihood(), SQUARE, oracles.summed_over_positions(oracles.every_label)),
    "Fisher, separate": Measure(LogLikelihood(positions="separate"), SQUARE, oracles.separately(oracles.every_label)),
    "AF, separate": Measure(LogLikelihood(positions="separate"), ABSOLUTE, oracles.separately(oracles.every_label)),
    "empirical Fisher": Measure(LogLikelihood("true"), SQUARE, oracles.joint_true_label),
    "empirical Fisher, separate": Measure(
        LogLikelihood("true", positions="separate"), SQUARE, oracles.separately(oracles.true_label)
    ),
    "MAS": Measure(OutputNorm(), ABSOLUTE, oracles.squared_norm),
    "MASX, separate": Measure(
        OutputNorm(dominant=True, positions="separate"), ABSOLUTE, oracles.separately(oracles.squared_maximum)
    ),
    "MAS on logits": Measure(OutputNorm("logits"), ABSOLUTE, oracles.squared_logits),
}


def call(model: nn.Module, inputs: Any) -> Tensor:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def assert_agrees(
    model: nn.Module,
    inputs: Any,
    targets: Tensor | None,
    measure: Measure,
    *,
    fallback: set[str] | None = None,
    batch: int | None = None,
    budget: int | None = None,
    data: list[tuple[Any, Tensor | None]] | None = None,
    forward: Callable[[nn.Module, Any], Tensor] = call,
    tolerance: float | None = None,
) -> SampleImportance:
    """Compare the engine with the oracle on every parameter, and what it had no rule for with ``fallback``."""
    data = data or oracles.one_by_one(inputs, targets)
    expected = oracles.importance(model, data, measure.oracle, measure.phi, forward)
    if batch is None:
        batches = [(inputs, targets)]
    else:
        assert isinstance(inputs, Tensor)
        labels = [None] * len(inputs.split(batch)) if targets is None else targets.split(batch)
        batches = list(zip(inputs.split(batch), labels, strict=True))
    found = sample_importance(
        model, [b if b[1] is not None else (b[0],) for b in batches], measure.score, measure.phi, budget=budget
    )
    assert set(found.fallback) == (fallback or set())
    largest = max(float(value.norm()) for value in expected.values())
    for name, value in expected.items():
        limit = tolerance or TOLERANCE[dict(model.named_parameters())[name].dtype]
        info = torch.finfo(found.values[name].dtype)
        # Less than the type has numbers for; or 0 but for rounding, as the bias of a layer before a norm has.
        smallest = max(1e6 * info.tiny, largest * float(measure.phi(torch.tensor(1e3 * info.eps, dtype=torch.float64))))
        if float(value.norm()) < smallest:
            assert float(found.values[name].norm()) < 2 * smallest
            continue
        error = oracles.relative_error(found.values[name], value)
        assert error < limit, f"{name}: relative error {error:.1e}"
        WORST[found.values[name].dtype] = max(WORST.get(found.values[name].dtype, 0.0), error)
    return found


WORST: dict[torch.dtype, float] = {}
"""The worst relative error seen so far, for the curious."""
