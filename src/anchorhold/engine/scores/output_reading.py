"""Decide how a batch's outputs are read: by which likelihood, and in which dimension their classes lie.

Both may be named. Otherwise the model says it, or the targets do, by their type, shape and values. What is unclear is
refused, since the wrong reading gives importances that look like any others. The first batch's reading stays, and a
later batch that contradicts it is refused too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from anchorhold.engine.scores.likelihoods import LikelihoodName
from anchorhold.engine.scores.outputs import IGNORED, in_wider_dtype, without_classes
from anchorhold.errors import BatchError, ConfigurationError

LIKELIHOOD_OF: dict[str, LikelihoodName] = {
    "regression": "gaussian",
    "single_label_classification": "categorical",
    "multi_label_classification": "bernoulli",
}
"""The likelihood of which the loss of each of Hugging Face's problem types is the negative logarithm."""

_CHOICES = (
    "Name it: likelihood='categorical' for one class out of several, 'bernoulli' for labels that are each 0 or 1, "
    "'gaussian' for the values of a regression (of which MAS takes output='logits')."
)

_ONE_OUTPUT = (
    "The model has one output, whose softmax is 1 whatever the weights, so every importance would be 0. Name what it "
    "is: likelihood='gaussian' for a regression, 'bernoulli' for the logit of one of two classes; or use "
    "MAS(output='logits'), which takes it as it is."
)


SHARES_TOLERANCE = 1e-3
"""How far from 1 the sum of a sample's shares may be."""


@dataclass(frozen=True)
class OutputReading:
    """How outputs are read."""

    likelihood: LikelihoodName | None
    """Whose parameters the outputs are; ``None`` for a score that takes them as they are."""
    class_dim: int | None
    """The dimension of the classes; ``None`` while it makes no difference."""
    why: str
    """What decided it, for messages."""

    @property
    def description(self) -> str | None:
        """The likelihood in words, and what decided it; ``None`` where outputs are taken as they are."""
        return None if self.likelihood is None else f"{self.likelihood} ({self.why})"

    @cached_property
    def dim(self) -> int:
        """The dimension that holds the outputs of one position."""
        return -1 if self.class_dim is None else self.class_dim


class ReadingEvidence:
    """What a whole batch says of its outputs beside its shapes: the model's problem type, and its targets' values.

    A few of its samples would say less: some targets of a regression are 0 and 1. Values are read when asked for.
    """

    def __init__(self, targets: Tensor | None, problem: str | None = None) -> None:
        self.targets = targets
        self.problem = problem
        self._shares: dict[int, bool] = {}

    @cached_property
    def values(self) -> "TargetValues":
        """What numbers the targets are."""
        assert self.targets is not None
        given = self.targets.detach()
        numbers = given if given.is_floating_point() else given.long()
        finite = not given.is_floating_point() or bool(numbers.isfinite().all())
        rest = numbers[numbers != IGNORED]
        odd = rest[(rest != 0) & (rest != 1)]
        outside = odd[(odd < 0) | (odd > 1)]
        shown = (outside if len(outside) else odd)[:1].tolist()
        return TargetValues(
            finite, not len(odd), not len(outside), len(rest) < numbers.numel(), shown[0] if shown else None
        )

    @property
    def look_like_marks(self) -> bool:
        """Whether whole numbers are those of a mask, or two classes by other names (0 and 255, -1 and 1), not ages."""
        assert self.targets is not None
        found = set(self.targets.unique().tolist()) - {IGNORED}
        return found <= {-1, 0, 1, 255} or (len(found) == 2 and self.targets.numel() > 3)

    def are_shares(self, dims: Iterable[int]) -> bool:
        """Return whether targets sum to 1 all along one of these dimensions, as one-hot and soft labels do."""
        assert self.targets is not None
        for dim in dims:
            if dim not in self._shares:
                several = self.targets.shape[dim] > 1
                sums = in_wider_dtype(self.targets).sum(dim)
                rough = 10 if self.targets.dtype.itemsize < 4 else 1  # in 16 bits sums are no better
                self._shares[dim] = several and bool(((sums - 1).abs() < rough * SHARES_TOLERANCE).all())
        return any(self._shares[dim] for dim in dims)

    def shapes(self, outputs: Tensor, targets: Tensor) -> str:
        """Return the shapes of targets and outputs in words, as the whole batch has them."""
        samples = len(outputs) if self.targets is None else len(self.targets)
        given, made = (samples, *targets.shape[1:]), (samples, *outputs.shape[1:])
        return f"of shape {given} and type {targets.dtype} for outputs {made}"


class TargetValues(NamedTuple):
    """What numbers some targets are, those that are marked as not counting left out."""

    finite: bool
    binary: bool
    """All are 0 or 1."""
    inside: bool
    """All are within 0..1."""
    marked: bool
    """Some are −100."""
    odd: float | None
    """One that is neither 0 nor 1, one outside 0..1 if there is any."""


class _TargetEvidence(NamedTuple):
    """What a batch's targets speak for."""

    choice: LikelihoodName | None
    possible: tuple[LikelihoodName, ...]
    description: str


def read_outputs(
    outputs: Tensor,
    targets: Tensor | None,
    evidence: ReadingEvidence,
    before: OutputReading | None,
    *,
    likelihood: LikelihoodName | None,
    class_dim: int | None,
    asks_likelihood: bool,
    asks_classes: bool,
) -> OutputReading:
    """Return how these outputs are read, or refuse what is unclear.

    Args:
        outputs: the model's, of some samples.
        targets: of the same samples; what the whole batch has is in ``evidence``.
        evidence: what else the batch says.
        before: how the batches before it were read.
        likelihood: the likelihood that was named, if any.
        class_dim: the dimension of the classes that was named, if any.
        asks_likelihood: whether the score is made of a likelihood.
        asks_classes: whether it makes a difference to the score, whatever the likelihood, which outputs belong to one
            position.
    """
    if outputs.ndim < 2:
        raise BatchError(
            f"The model's outputs have shape {tuple(outputs.shape)}; expected [N, ..., C] with one row a sample. "
            "Where a model gives one number a sample: forward=lambda model, inputs: model(inputs).unsqueeze(1)."
        )
    if class_dim is not None and (not -outputs.ndim < class_dim < outputs.ndim):
        raise ConfigurationError(
            f"class_dim={class_dim} for outputs of shape {tuple(outputs.shape)}; expected one of their dimensions, and "
            "not the first, which is the samples'."
        )
    if targets is not None and targets.is_complex():
        raise BatchError(f"Targets of type {targets.dtype}; expected labels or real numbers.")
    chosen, why = None, ""
    if asks_likelihood:
        chosen, why = _likelihood(outputs, targets, evidence, before, likelihood, class_dim)
        _check_values(chosen, evidence, why)
    asks_classes = asks_classes or chosen == "categorical"
    dim = _class_dim(outputs, targets, chosen, class_dim, before, asks_classes)
    if chosen == "categorical" and outputs.shape[-1 if dim is None else dim] == 1:
        raise ConfigurationError(_ONE_OUTPUT)
    return OutputReading(chosen, dim, why)


def _likelihood(
    outputs: Tensor,
    targets: Tensor | None,
    evidence: ReadingEvidence,
    before: OutputReading | None,
    named: LikelihoodName | None,
    class_dim: int | None,
) -> tuple[LikelihoodName, str]:
    """Return the likelihood, and what decided it."""
    if named is not None:
        return named, f"likelihood={named!r}"
    if evidence.problem is not None:
        return LIKELIHOOD_OF[evidence.problem], f"the model's problem type {evidence.problem!r}"
    found = None if targets is None else _evidence_of_targets(outputs, targets, evidence, class_dim)
    if before is not None and before.likelihood is not None:
        if found is not None and before.likelihood not in found.possible:
            raise BatchError(
                f"{found.description}, which speaks for {' or '.join(map(repr, found.possible))}; the batches before "
                f"it were read as {before.likelihood!r}, by {before.why}. {_CHOICES}"
            )
        return before.likelihood, before.why
    if found is None:
        return "categorical", "default, as no targets say otherwise"
    if found.choice is None:
        raise BatchError(f"{found.description}: they do not tell what the model's outputs are. {_CHOICES}")
    return found.choice, found.description[0].lower() + found.description[1:]


def _evidence_of_targets(
    outputs: Tensor, targets: Tensor, evidence: ReadingEvidence, class_dim: int | None
) -> _TargetEvidence | None:
    """Return what targets speak for; ``None`` for integer ones of another shape, as of other tasks."""
    shape = evidence.shapes(outputs, targets)
    dims = _candidates(outputs, class_dim)
    fitting = [dim for dim in dims if targets.shape == without_classes(outputs, dim)]
    own = targets.shape == outputs.shape
    if own or any(outputs.shape[dim] == 1 for dim in fitting):
        several = own and any(outputs.shape[dim] > 1 for dim in dims)
        return _evidence_of_values(evidence, shape, whole=not targets.is_floating_point(), several=several, dims=dims)
    if not targets.is_floating_point():
        return _TargetEvidence("categorical", ("categorical",), f"Integer labels {shape}") if fitting else None
    raise BatchError(
        f"Targets {shape}; expected the outputs' own shape for a regression or for labels that are each 0 or 1, and "
        "integer labels without the dimension of the classes for one class out of several (targets.long(), where they "
        "are class numbers). Give targets of such a shape, or none where labels='exact' or 'sampled' needs none."
    )


def _evidence_of_values(
    evidence: ReadingEvidence, shape: str, *, whole: bool, several: bool, dims: list[int]
) -> _TargetEvidence:
    """Return what targets speak for that have a value for every output."""
    values = evidence.values
    _refuse_unless_finite(values)
    both: tuple[LikelihoodName, ...] = ("bernoulli", "gaussian")
    shares = several and evidence.are_shares(dims)
    if values.marked and values.inside and not whole:
        return _TargetEvidence(None, both, f"Targets {shape}, some -100 and the others within 0..1")
    if values.binary:
        if shares:
            either: tuple[LikelihoodName, ...] = ("categorical", *both)
            return _TargetEvidence(
                None, either, f"Targets {shape}, all 0 or 1 with one 1 in each row, as one-hot labels have"
            )
        return _TargetEvidence("bernoulli", both, f"Targets {shape}, all 0 or 1")
    if shares and values.inside:
        return _TargetEvidence(
            "categorical", ("categorical", "gaussian"), f"Targets {shape} that share each row out between classes"
        )
    if values.inside:
        return _TargetEvidence(
            None, ("gaussian",), f"Targets {shape}, within 0..1 and not only 0 and 1 (such as {values.odd:g})"
        )
    choice: LikelihoodName | None = None if whole and (several or evidence.look_like_marks) else "gaussian"
    return _TargetEvidence(choice, ("gaussian",), f"Targets {shape}, not only 0 and 1 (such as {values.odd:g})")


def _check_values(likelihood: LikelihoodName, evidence: ReadingEvidence, why: str) -> None:
    """Refuse targets with values that the likelihood cannot have."""
    if likelihood == "categorical" or evidence.targets is None:
        return
    values = evidence.values
    _refuse_unless_finite(values)
    if likelihood == "bernoulli" and not values.inside:
        raise BatchError(
            f"A target of {values.odd:g}; labels that are each 0 or 1 (a Bernoulli likelihood, from {why}) are within "
            "0..1. Give (targets + 1) / 2 where they are -1 and 1, or name likelihood='gaussian' for a regression."
        )


def _refuse_unless_finite(values: TargetValues) -> None:
    if not values.finite:
        raise BatchError(
            "Targets with NaN or infinity among them; expected numbers. Leave out the samples whose targets are "
            "missing, or give batches without targets where labels='exact' or 'sampled' needs none."
        )


def _class_dim(
    outputs: Tensor,
    targets: Tensor | None,
    likelihood: LikelihoodName | None,
    named: int | None,
    before: OutputReading | None,
    asks_classes: bool,
) -> int | None:
    """Return the dimension of the classes, or ``None`` where it makes no difference."""
    if named is not None or outputs.ndim == 2:
        return named if named is not None else -1
    known = None if before is None else before.class_dim
    fitting: list[int] = []  # the dimensions without which the outputs have the targets' shape
    if targets is not None:
        are_labels = likelihood in ("categorical", None) and not targets.is_floating_point()
        same = [dim for dim in _candidates(outputs, None) if targets.shape == without_classes(outputs, dim)]
        fitting = [dim for dim in same if are_labels or outputs.shape[dim] == 1]
    if len(fitting) == 1:
        if known not in (None, fitting[0]):
            given = () if targets is None else tuple(targets.shape)
            raise BatchError(
                f"Labels of shape {given} for outputs {tuple(outputs.shape)}: their classes lie in dimension "
                f"{fitting[0]}, and those of the batches before were read in dimension {known}. Name the dimension: "
                "class_dim=1 or class_dim=-1."
            )
        return fitting[0]
    if known is not None:
        return known
    if outputs.ndim > 3 and (asks_classes or fitting):
        labels = "there are no labels to tell"
        if targets is not None:
            labels = f"targets of shape {tuple(targets.shape)} fit {'both' if fitting else 'neither without it'}"
        raise ConfigurationError(
            f"Outputs of shape {tuple(outputs.shape)}, in which classes may lie second, as image models have them, or "
            f"last; {labels}. Name the dimension: class_dim=1 or class_dim=-1."
        )
    return -1 if asks_classes or fitting else None


def _candidates(outputs: Tensor, class_dim: int | None) -> list[int]:
    """Return where classes may lie: last, or second as image models have them."""
    if class_dim is not None:
        return [class_dim]
    return [-1] if outputs.ndim == 2 else [-1, 1]
