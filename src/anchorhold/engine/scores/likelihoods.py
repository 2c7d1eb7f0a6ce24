"""Whose log-likelihood a score is: of one class out of several, of labels each 0 or 1, or of real values."""

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anchorhold.engine.phi import SQUARE, Phi
from anchorhold.engine.scores.outputs import (
    IGNORED,
    Positions,
    RowMaker,
    Sigmoid,
    Softmax,
    flattened,
    in_wider_dtype,
    position_pieces,
    without_classes,
)
from anchorhold.errors import BatchError, ConfigurationError

LikelihoodName = Literal["categorical", "gaussian", "bernoulli"]

MOST_PASSES = 100_000
"""Backward passes that the exact score of a sample may take: minutes for a small model, days for a large one."""


class Targets(NamedTuple):
    """What the targets of some outputs ``[N, P, C]`` say."""

    values: Tensor | None
    """Labels as ``[N, P]``, or a value for every output as ``[N, P, C]``; ``None`` where they are not needed."""
    counted: Tensor | None
    """Which outputs count, as ``[N, P, 1]`` or ``[N, P, C]``; ``None`` where all do."""


class Likelihood(ABC):
    """How probable targets are, given a network's outputs z of ``[N, P, C]``.

    Its rows are gradients of the log-likelihood with respect to z, with their weights folded in for φ.
    """

    softmax = True
    """Whether it is made of a softmax or a sigmoid, which wants precise outputs."""

    @abstractmethod
    def targets(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Targets:
        """Return what targets say, or refuse those that cannot belong to these outputs."""

    @abstractmethod
    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return how many rows a position has, and a maker of them, for the mean over all that could be observed."""

    @abstractmethod
    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return a maker of one row a draw, for targets drawn from the likelihood itself."""

    @abstractmethod
    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return a maker of one row, for the targets given."""

    @abstractmethod
    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Return the gradient of the squared norm of the probabilities, or of the largest one's square: MAS's score."""

    def as_classes(self, z: Tensor) -> Tensor:
        """Return logits ``[M, C]`` as those of a softmax over the last dimension, for an estimate of their digits."""
        return z


class EveryOutput(Likelihood):
    """A likelihood in which the outputs are independent: targets have the outputs' own shape."""

    expected: str
    """What the targets are, in words."""

    def targets(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Targets:
        """Return a value for every output, and which of them count."""
        if targets.shape != outputs.shape:
            if outputs.shape[class_dim] != 1 or targets.shape != without_classes(outputs, class_dim):
                raise BatchError(
                    f"Targets of shape {tuple(targets.shape)} and type {targets.dtype}; {self.expected} for outputs "
                    f"{tuple(outputs.shape)} have that same shape. Name another likelihood="
                    + ("." if needed else ", or leave the targets out, which are not needed here.")
                )
            targets = targets.unsqueeze(class_dim)
        values = flattened(targets.to(outputs.device), class_dim)
        return Targets(values, self._counted(values))

    @abstractmethod
    def _counted(self, values: Tensor) -> Tensor | None:
        """Return which values count."""


def one_output_each(scale: Tensor, start: int, stop: int) -> Tensor:
    """Return rows ``scale_k e_k`` for outputs k from ``start`` to ``stop``, as ``[k, N, P, C]``."""
    rows = scale.new_zeros((stop - start, *scale.shape))
    for row, k in enumerate(range(start, stop)):
        rows[row, ..., k] = scale[..., k]
    return rows


def refuse_endless(z: Tensor, what: str, rows: int, positions: Positions) -> None:
    """Refuse to go through every label or output of every position, in so many rows each, if there is no end to it."""
    places = z.shape[1]
    passes = places * rows
    if passes > MOST_PASSES:
        sampled = "one" if positions == "joint" or places == 1 else "one a position"
        raise ConfigurationError(
            f"Every one of {z.shape[-1]:,} {what} at {places:,} position{'s' if places > 1 else ''}, as labels='exact' "
            f"has it, takes {passes:,} backward passes for each sample; {MOST_PASSES:,} is the most that is begun. "
            f"Use labels='sampled', which takes {sampled} and is the same on average."
        )


def refuse_joint_absolute(z: Tensor, positions: Positions, because: str) -> None:
    """Refuse an exact mean of absolute values unless it is over one output, where it is a single row."""
    separable = z.shape[-1] == 1
    if not separable or (z.shape[1] > 1 and positions == "joint"):
        raise ConfigurationError(
            f"An exact mean of |gradient| over {z.shape[1] * z.shape[-1]} outputs {because}. Use labels='sampled'"
            + (", or positions='separate'." if separable else ".")
        )


_LEARNED_PROMPT = (
    " If the model puts a learned prompt before its inputs, as PEFT's prompt tuning does, leave out the outputs there: "
    'forward=lambda model, inputs: model(**inputs).logits[:, -inputs["input_ids"].shape[1]:].'
)

_SUM = 1e-2
"""How far from 1 the sum of a position's probabilities may be: targets in 16 bits over many classes are that rough."""

_OTHER_MARKS = (-1, 255)
"""By which others mark what does not count, such as the borders in segmented images."""


class Categorical(Likelihood):
    r"""One label out of C: a classifier, with the softmax q of its logits.

    .. math:: \log q(y) = z_y - \log\sum_j e^{z_j}, \qquad \frac{\partial \log q(y)}{\partial z} = e_y - q

    The Fisher information of the logits, :math:`\mathrm{diag}(q) - qq^T`, has rank C − 1, and as many rows: those of
    ``Softmax.factor``. The mean absolute gradient takes a row a label, weighted by its probability.
    """

    def targets(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Targets:
        """Return labels where they are needed, or where they say which positions count."""
        expected = without_classes(outputs, class_dim)
        wrong = 1 < targets.ndim == len(expected) and targets.shape != expected
        # Other labels of whole samples, which are not needed, say nothing of positions.
        labels: Tensor | None = None
        if targets.shape == outputs.shape:
            labels = _from_shares(targets, outputs, class_dim, needed)
        elif needed or targets.is_floating_point() or wrong:
            labels = checked_labels(targets, outputs, class_dim)
        elif targets.shape == expected:
            labels = targets.to(outputs.device).reshape(len(outputs), -1).long()
        return Targets(labels, None if labels is None else (labels != IGNORED).unsqueeze(-1))

    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return rows over labels, one fewer for a square."""
        classes = z.shape[-1]
        if phi == SQUARE:
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
        drawn = []  # labels of every position, as [N, P, draws]
        for here in position_pieces(z):
            q = Softmax(z[:, here]).q
            labels = torch.multinomial(q.flatten(0, 1), draws, replacement=True, generator=generator)
            drawn.append(labels.view(*q.shape[:-1], draws))
        return _of_labels(z, torch.cat(drawn, dim=1))

    def true(self, z: Tensor, values: Tensor) -> RowMaker:
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


def _from_shares(targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Tensor | None:
    """Return the labels of targets that give each class its share, as one-hot ones do; ``None`` if not needed."""
    shares = in_wider_dtype(flattened(targets.to(outputs.device), class_dim))
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


class Bernoulli(EveryOutput):
    r"""Labels that are each 0 or 1, independent of each other: several labels a sample, or one logit for two classes.

    .. math:: \log q(t \mid z) = \sum_k \log \sigma\bigl((2t_k - 1) z_k\bigr), \qquad
              \frac{\partial \log q}{\partial z_k} = t_k - p_k, \quad p = \sigma(z)

    The Fisher information of the outputs is diagonal, :math:`p_k(1 - p_k) = \sigma(z_k)\,\sigma(-z_k)`: one row
    :math:`\sqrt{p_k(1 - p_k)}\, e_k` an output. For one output the mean absolute gradient is :math:`2p(1 - p)` times
    that of the logit; for K of them it has :math:`2^K` terms. One logit z is the same as the softmax of the logits 0
    and z.
    """

    expected = "labels that are each 0 or 1 (a Bernoulli likelihood)"

    def _counted(self, values: Tensor) -> Tensor:
        """Return which labels count: those that are not marked."""
        return (values if values.is_floating_point() else values.long()) != IGNORED

    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return one row an output."""
        refuse_endless(z, "outputs", z.shape[-1], positions)
        if phi == SQUARE:
            return z.shape[-1], lambda i, j, places: one_output_each(Sigmoid(z[:, places]).deviation(), i, j)
        refuse_joint_absolute(z, positions, f"that are each 0 or 1 has 2^{z.shape[1] * z.shape[-1]} terms")
        return 1, lambda i, j, places: (2 * Sigmoid(z[:, places]).variance()).unsqueeze(0)[i:j]

    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return ``t − p`` for labels t drawn from the model."""
        drawn = torch.empty((draws, *z.shape), dtype=torch.bool, device=z.device)
        for here in position_pieces(z):
            p = Sigmoid(z[:, here]).p
            for draw in drawn:
                draw[:, here] = torch.bernoulli(p, generator=generator).bool()
        return lambda i, j, places: Sigmoid(z[:, places]).label_gradients(drawn[i:j, :, places])

    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return ``t − p`` for the labels given."""
        return lambda i, j, places: Sigmoid(z[:, places]).label_gradients(values[:, places]).unsqueeze(0)[i:j]

    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Return the gradient of ``‖p‖²``, or of the largest p's square."""
        sigmoid = Sigmoid(z)
        return sigmoid.squared_maximum_gradient() if dominant else sigmoid.squared_norm_gradient()

    def as_classes(self, z: Tensor) -> Tensor:
        """Return each logit as those of two classes, of which the other has 0."""
        return torch.nn.functional.pad(z.reshape(-1, 1), (1, 0))


NO_PROBABILITIES = (
    "A regression's outputs are values and have no probabilities (a Gaussian likelihood, from {why}). Use "
    "MAS(output='logits'), which takes the outputs as they are."
)


class Gaussian(EveryOutput):
    r"""Real values with independent normal noise of variance 1: a regression.

    .. math:: \log p(y \mid z) = -\tfrac12 \|y - z\|^2 + \text{const}, \qquad \frac{\partial \log p}{\partial z} = y - z

    With y drawn from the model, :math:`y - z = \varepsilon \sim N(0, I)`, so the Fisher information of the outputs is
    the identity: a sample's own is :math:`\sum_k (\partial z_k / \partial\theta)^2`, one row :math:`e_k` an output. For
    one output the mean absolute gradient is :math:`E|\varepsilon| = \sqrt{2/\pi}` times that of the output; for several
    it is no sum over rows. Noise of another variance divides every importance by it, as the strength does.
    """

    softmax = False
    expected = "the values of a regression (a Gaussian likelihood)"

    def _counted(self, values: Tensor) -> Tensor | None:
        """Return which values count: of real numbers all do, of whole ones those that are not marked."""
        return None if values.is_floating_point() else values.long() != IGNORED

    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return one row an output."""
        scale = 1.0
        if phi != SQUARE:
            refuse_joint_absolute(z, positions, "with normal noise is no finite sum of gradients")
            scale = math.sqrt(2 / math.pi)
        refuse_endless(z, "outputs", z.shape[-1], positions)
        return z.shape[-1], lambda i, j, places: one_output_each(torch.full_like(z[:, places], scale), i, j)

    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return rows of normal noise."""
        dtype = torch.promote_types(z.dtype, torch.float32)
        noise = torch.randn((draws, *z.shape), dtype=dtype, device=z.device, generator=generator)
        return lambda i, j, places: noise[i:j, :, places]

    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return the residuals."""
        return lambda i, j, places: (in_wider_dtype(values[:, places]) - in_wider_dtype(z[:, places])).unsqueeze(0)[i:j]

    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Refuse: there are no probabilities."""
        raise ConfigurationError(NO_PROBABILITIES.format(why="likelihood='gaussian'"))


LIKELIHOODS: dict[LikelihoodName, Likelihood] = {
    "categorical": Categorical(),
    "gaussian": Gaussian(),
    "bernoulli": Bernoulli(),
}
"""Each likelihood by its name."""
