r"""One label out of C: a classifier, with the softmax q of its logits.

.. math:: \log q(y) = z_y - \log\sum_j e^{z_j}, \qquad \frac{\partial \log q(y)}{\partial z} = e_y - q

The Fisher information of the logits, :math:`\mathrm{diag}(q) - qq^T`, has rank C − 1, and as many rows: those of
``Softmax.factor``. The mean absolute gradient takes a row a label, weighted by its probability.
"""

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.scores.likelihoods.base import Likelihood, Targets, refuse_endless
from anchorhold.engine.scores.positions import (
    IGNORED,
    Positions,
    RowMaker,
    flattened,
    position_pieces,
    without_classes,
)
from anchorhold.engine.scores.softmax import Softmax, widened
from anchorhold.errors import BatchError, ConfigurationError

_LEARNED_PROMPT = (
    " If the model puts a learned prompt before its inputs, as PEFT's prompt tuning does, leave out the outputs there: "
    'forward=lambda model, inputs: model(**inputs).logits[:, -inputs["input_ids"].shape[1]:].'
)

_SUM = 1e-2
"""How far from 1 the sum of a position's probabilities may be: targets in 16 bits over many classes are that rough."""

_OTHER_MARKS = (-1, 255)
"""By which others mark what does not count, such as the borders in segmented images."""


class Categorical(Likelihood):
    """One label out of several."""

    def targets(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Targets:
        """Return labels where they are needed, or where they say which positions count."""
        labels = self._labels(targets, outputs, class_dim, needed)
        return Targets(labels, None if labels is None else (labels != IGNORED).unsqueeze(-1))

    def _labels(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Tensor | None:
        if targets.shape == outputs.shape:
            return _from_shares(targets, outputs, class_dim, needed)
        expected = without_classes(outputs, class_dim)
        if needed or targets.is_floating_point() or (1 < targets.ndim == len(expected) and targets.shape != expected):
            return checked_labels(targets, outputs, class_dim)
        # Other labels of whole samples, which are not needed, say nothing of positions.
        return targets.to(outputs.device).reshape(len(outputs), -1).long() if targets.shape == expected else None

    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return rows over labels, one fewer for a square."""
        classes = z.shape[-1]
        if phi.name == "square":
            refuse_endless(z, "labels", classes - 1, positions)
            return classes - 1, lambda i, j, places: Softmax(z[:, places]).factor(i, j).movedim(-2, 0)
        if z.shape[1] > 1 and positions == "joint":
            raise ConfigurationError(
                f"An exact mean of |gradient| over the joint labels of {z.shape[1]} positions has "
                f"{classes}^{z.shape[1]} terms. Use labels='sampled', or positions='separate'."
            )
        refuse_endless(z, "labels", classes, positions)

        def every_label(start: int, stop: int, places: slice) -> Tensor:
            softmax = Softmax(z[:, places])
            chosen = torch.arange(start, stop, device=z.device).expand(*softmax.q.shape[:-1], stop - start)
            weight = phi.inverse(softmax.q.gather(-1, chosen)).unsqueeze(-1)
            return (weight * softmax.label_gradients(chosen)).movedim(-2, 0)

        return classes, every_label

    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return a row for each label drawn."""
        return _of_labels(z, torch.cat([_drawn(z[:, here], draws, generator) for here in position_pieces(z)], dim=1))

    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return the row of the labels given."""
        return _of_labels(z, values.clamp(min=0).unsqueeze(-1))

    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Return the gradient of ``‖q‖²``, or of the largest q's square."""
        softmax = Softmax(z)
        return softmax.squared_maximum_gradient() if dominant else softmax.squared_norm_gradient()


def _of_labels(z: Tensor, chosen: Tensor) -> RowMaker:
    """Return a maker of the rows of labels ``[N, P, L]``."""

    def make(start: int, stop: int, places: slice) -> Tensor:
        return Softmax(z[:, places]).label_gradients(chosen[:, places, start:stop]).movedim(-2, 0)

    return make


def _drawn(z: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    """Return labels of every position, drawn from the model, as ``[N, P, draws]``."""
    q = Softmax(z).q.flatten(0, 1)
    return torch.multinomial(q, draws, replacement=True, generator=generator).view(*z.shape[:-1], draws)


def _from_shares(targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Tensor | None:
    """Return the labels of targets that give each class its share, as one-hot ones do; ``None`` if not needed."""
    shares = widened(flattened(targets.to(outputs.device), class_dim))
    if bool((shares < 0).any()) or not bool(((shares.sum(-1) - 1).abs() < _SUM).all()):
        raise BatchError(
            f"Targets of shape {tuple(targets.shape)}, that of the outputs, which are no shares of classes: some are "
            "negative, or do not sum to 1 over the classes (a categorical likelihood). Name another likelihood=, "
            "'gaussian' for a regression or 'bernoulli' for labels that are each 0 or 1."
        )
    if not needed:
        return None
    if not bool(((shares == 0) | (shares == 1)).all()):
        raise BatchError(
            f"Targets of shape {tuple(targets.shape)} that share a sample out between classes; labels='true' wants one "
            "class for each position. Use labels='exact' or 'sampled', which need none."
        )
    return shares.argmax(-1)


def checked_labels(targets: Tensor, outputs: Tensor, class_dim: int) -> Tensor:
    """Return integer labels as ``[N, P]``, or say what is wrong with them."""
    expected = tuple(without_classes(outputs, class_dim))
    if targets.is_floating_point() or tuple(targets.shape) != expected:
        longer = targets.ndim == 2 and outputs.ndim == 3 and outputs.shape[1] > targets.shape[1]
        place = "before the last dimension" if class_dim in (-1, outputs.ndim - 1) else f"beside dimension {class_dim}"
        raise BatchError(
            f"Labels of shape {tuple(targets.shape)} and type {targets.dtype}; the outputs {tuple(outputs.shape)} "
            f"want integer labels of shape {expected}, one for each position {place} (classes)."
            + (_LEARNED_PROMPT if longer else "")
        )
    if other := other_label(targets, outputs.shape[class_dim]):
        raise BatchError(
            f"{other} Give labels of these outputs, counted from a head's first class where it is one of several; or "
            "leave them out where labels='exact' or 'sampled' needs none."
        )
    return targets.to(outputs.device).reshape(len(outputs), -1).long()


def other_label(targets: Tensor, classes: int) -> str:
    """Return what is said of the first label that stands for no class; nothing where there is none."""
    labels = targets.reshape(len(targets), -1).long()
    bad = (labels != IGNORED) & ((labels < 0) | (labels >= classes))
    if not bool(bad.any()):
        return ""
    sample, position = bad.nonzero()[0].tolist()
    label = labels[sample, position].item()
    place = f"of sample {sample}" + (f", position {position}," if labels.shape[1] > 1 else "")
    ignored = f" Where {label} marks what does not count, replace your ignore_index by {IGNORED}."
    return (
        f"Label {label} {place} is outside 0..{classes - 1}, the classes of the model's {classes} outputs ({IGNORED} "
        f"marks a position that does not count; samples are counted from 0 in the {len(labels)} that are measured at "
        "once)." + (ignored if label in _OTHER_MARKS else "")
    )
