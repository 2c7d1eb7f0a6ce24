r"""The share of a merge that inputs kept from before allow.

What is lost is measured, and not predicted: :math:`KL(p_{old}\|p_{new})`, in nats a sample or token, from the outputs
of the model before to those of the merged one, at every share that is tried.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from anchorhold.engine.batches import Batch, Forward, call_model, check_batches
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.isolation import isolated
from anchorhold.engine.scores import IGNORED
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, warn
from anchorhold.merging.between import DAMPING, Merging, Normalise
from anchorhold.merging.given_forms import GivenForm
from anchorhold.merging.given_models import Model
from anchorhold.merging.shares import EXPECTED
from anchorhold.settings import checked_share, number, whole_number

SHARES = tuple(k / 10 for k in range(11))
"""The shares that are tried first."""


@dataclasses.dataclass(frozen=True)
class Tried:
    """What a share came to."""

    share: float
    lost: float
    """KL(p_old‖p_new) on the kept inputs, in nats a sample or token."""
    new_loss: float | None = None
    """The cross-entropy on new data, where any was given."""


@dataclasses.dataclass(frozen=True)
class ChosenShare:
    """A share, and all that were tried."""

    share: float
    lost: float
    weights: dict[str, Any] = dataclasses.field(repr=False)
    """The merged state dict."""
    tried: tuple[Tried, ...] = dataclasses.field(repr=False)
    """By share, from 0 up."""


def choose_share(
    before: nn.Module,
    after: Model,
    kept: Iterable[Any],
    tolerance: float,
    *,
    new: Iterable[Any] | None = None,
    by: "GivenForm | Sequence[GivenForm]" = None,
    normalise: Normalise = "network",
    damping: float = DAMPING,
    shares: Sequence[float] = SHARES,
    halvings: int = 4,
    forward: Forward | None = None,
) -> ChosenShare:
    r"""Return the largest share of ``after`` at which no more is lost of ``before`` than a tolerance.

    >>> chosen = choose_share(before, after, kept=old_inputs, tolerance=0.02)
    >>> model.load_state_dict(chosen.weights)

    The shares of a grid are all tried, since what is lost need not rise with the share, and from the largest one that
    is within the tolerance the interval up to the next is halved a few times. Whatever is chosen has been measured.
    With labelled new data, it is the share, of those within the tolerance, at which the loss on that data is least.

    Args:
        before: the module whose outputs are to be kept; it is evaluated with dropout off, and stays as it is.
        after: a module, state dict or file of the same network.
        kept: batches of inputs kept from before, as for ``consolidate``; labels are not looked at, but for where a
            language model's are left out.
        tolerance: the most that may be lost, in nats a sample or token.
        new: labelled batches of what ``after`` has learned.
        by: forms, as for :func:`anchorhold.merge`.
        normalise: as there.
        damping: as there.
        shares: those of the grid.
        halvings: how many times the interval is halved.
        forward: how the model is called, ``forward(model, inputs)``, returning logits ``[N, ..., C]``.
    """
    most = float(number("tolerance", tolerance, "a number of at least 0", lambda value: value >= 0))
    times = whole_number("halvings", halvings, "a whole number of at least 0", least=0)
    grid = sorted({0.0, *(checked_share("shares", share, EXPECTED) for share in shares)})
    if not isinstance(before, nn.Module):
        raise ConfigurationError(
            f"before is of type {type(before).__name__}; expected a module, whose outputs are to be kept."
        )
    between = Merging(before, after, by=by, normalise=normalise, damping=damping)
    trial = _Trial(before, between, kept, new, forward)
    tried = {share: trial.at(share) for share in grid}
    within = [share for share in grid if tried[share].lost <= most]
    low = max(within)
    high = next((share for share in grid if share > low), None)
    for _ in range(times if high is not None else 0):
        assert high is not None
        middle = (low + high) / 2
        tried[middle] = trial.at(middle)
        low, high = (middle, high) if tried[middle].lost <= most else (low, middle)
    chosen = tried[low]
    if new is not None:
        allowed = [each for each in tried.values() if each.lost <= most]
        chosen = min(allowed, key=lambda each: (each.new_loss, -each.share))
    if low == 0:
        least = min(share for share in tried if share)
        warn(
            f"More than {most:g} nats are lost at every share that was tried, {tried[least].lost:.3g} at {least:g}, so "
            "the result is the model before. Allow more, or hold the model while it learns."
        )
    state = between.at(chosen.share)
    assert isinstance(state, dict)
    return ChosenShare(chosen.share, chosen.lost, state, tuple(tried[share] for share in sorted(tried)))


class _Trial:
    """Measures merged weights in the place of the model's own, which stay as they are."""

    def __init__(
        self,
        model: nn.Module,
        between: Merging,
        kept: Iterable[Any],
        new: Iterable[Any] | None,
        forward: Forward | None,
    ) -> None:
        self._between = between
        self._called = _Called(model, forward or call_model)
        reader = BatchReader(next(model.parameters()).device, model)
        self._kept = [reader.read(batch) for batch in check_batches(kept)]
        self._new = None if new is None else [reader.read(batch) for batch in check_batches(new)]
        if not self._kept or self._new == []:
            raise BatchError("No batch to choose a share by; expected at least one. Was an iterator used up before?")
        own = model.state_dict()
        # The model's own tensors, by the names that merged ones have.
        self._names = {
            name: between.models[0].names[bare] for bare, name in between.models[-1].names.items() if bare in own
        }
        if len(self._names) < len(between.models[-1].names):
            raise ConfigurationError(
                "before has its weights under other names than it is merged by, as a wrapper or an adapter has; "
                "expected the bare model."
            )
        with self._called.evaluating(), torch.no_grad():
            self._old = [self._log_probabilities(batch, {}) for batch in self._kept]

    def at(self, share: float) -> Tried:
        """Return what is lost at a share, and the loss on new data."""
        state = self._between.at(share)
        assert isinstance(state, dict)
        weights = {self._names[name]: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
        with self._called.evaluating(), torch.no_grad():
            pairs = zip(self._kept, self._old, strict=True)
            lost = _mean(share, (self._lost(batch, old, weights) for batch, old in pairs))
            if self._new is None:
                return Tried(share, lost)
            return Tried(share, lost, _mean(share, (self._new_loss(batch, weights) for batch in self._new)))

    def _lost(self, batch: Batch, old: Tensor, weights: Mapping[str, Tensor]) -> tuple[float, int]:
        """Return the sum of KL(p_old‖p_new) over samples or tokens, and how many there are."""
        found = F.kl_div(self._log_probabilities(batch, weights), old, reduction="sum", log_target=True)
        return float(found), len(old)

    def _new_loss(self, batch: Batch, weights: Mapping[str, Tensor]) -> tuple[float, int]:
        outputs = self._called(weights, batch)
        labels = batch.labels_for(outputs)
        if labels is None:
            raise BatchError("new= has a batch without labels; expected (inputs, targets), or a mapping with 'labels'.")
        flat = labels.reshape(-1)
        found = F.cross_entropy(outputs.flatten(0, -2).double(), flat, ignore_index=IGNORED, reduction="sum")
        return float(found), int((flat != IGNORED).sum())

    def _log_probabilities(self, batch: Batch, weights: Mapping[str, Tensor]) -> Tensor:
        """Return log p of every sample or token, less those that a language model's labels leave out."""
        outputs = self._called(weights, batch)
        rows = outputs.flatten(0, -2)
        labels = batch.labels_for(outputs)
        if labels is not None and labels.shape == outputs.shape[:-1] and not labels.is_floating_point():
            rows = rows[labels.reshape(-1) != IGNORED]
        return F.log_softmax(rows.double(), -1)


class _Called:
    """A model, called with other weights."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        self._model = model
        self._forward = forward

    def __call__(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the outputs, ``[N, ..., C]``."""
        outputs = self._forward(_WithWeights(self._model, weights), batch.inputs)  # type: ignore[arg-type]
        if outputs.ndim < 2 or outputs.shape[-1] < 2:
            raise BatchError(
                f"The model's outputs have shape {tuple(outputs.shape)}; expected logits [N, ..., C] of at least two "
                "classes. Give forward=lambda model, inputs: ... that returns them."
            )
        return outputs

    def evaluating(self) -> AbstractContextManager[None]:
        """Switch dropout off and leave no trace."""
        return isolated(self._model, self._model.parameters())


class _WithWeights:
    """What ``forward(model, inputs)`` is given as the model."""

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        self._model = model
        self._weights = weights

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return functional_call(self._model, dict(self._weights), inputs, named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _mean(share: float, parts: Iterable[tuple[float, int]]) -> float:
    found = list(parts)
    total, count = sum(lost for lost, _ in found), sum(samples for _, samples in found)
    if not total < float("inf") or not count:
        raise NotFiniteError(
            f"At share {share:g} the outputs differ by {total} nats over {count} samples; expected numbers. The models "
            "are too far apart, or every label is left out."
        )
    return total / count
