"""The measures that are taken from data after training: the Fisher information and its relatives, and MAS."""

import dataclasses
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from anchorhold.engine.phi import ABSOLUTE, SQUARE, Phi
from anchorhold.engine.scores import Labels, LikelihoodName, LogLikelihood, OutputNorm, Per, Positions, Score
from anchorhold.measures.base import Finished, SampleMeasure, TaskRecord
from anchorhold.settings import added, number, whole_number, yes_or_no

K = TypeVar("K", bound="LikelihoodMeasure")


@dataclasses.dataclass(frozen=True)
class LikelihoodMeasure(SampleMeasure):
    """A mean over samples and labels of some function of the log-likelihood's gradient.

    Args:
        samples: how many samples to use, the first ones that are given (so shuffle them); ``None`` for all.
        labels: ``"exact"`` sums over every label, weighted by the model's probability, and is refused where that takes
            more than 100,000 backward passes for each sample, as with a large vocabulary; ``"sampled"`` draws labels
            from the model; ``"true"`` takes the data's own.
        positions: for outputs ``[N, *positions, C]``, whether a sample is scored jointly over its positions or each
            position is a sample of its own (``"separate"``).
        draws: how many labels are drawn for each sample with ``labels="sampled"``.
        seed: the seed of drawn labels.
        likelihood: what the outputs are: logits of one class out of several (``"categorical"``), logits of labels that
            are each 0 or 1 (``"bernoulli"``), or the values of a regression (``"gaussian"``, with noise of variance 1).
            ``None`` lets the batches tell: by the model's ``config.problem_type``, or by the targets' type, shape and
            values, whether the measure needs them or not; without targets, one class out of several. What is unclear is
            refused.
        class_dim: the dimension of the outputs that holds the classes, or the outputs of one position: 1 for
            ``[N, C, H, W]``. ``None`` for the last one, or the second where integer labels fit that alone; outputs of
            four and more dimensions are refused where nothing tells.
        per: divide the sum over samples by their number, or by that of the positions that count (``"token"``), so that
            the scale does not depend on how long texts are, or how they are packed.
        average: whether the total is the mean over tasks, and not their sum.
    """

    samples: int | None = None
    labels: Labels = "exact"
    positions: Positions = "joint"
    draws: int = 1
    seed: int = 0
    likelihood: LikelihoodName | None = added(None)  # noqa: RUF009 (a field, as its docstring says)
    class_dim: int | None = added(None)
    per: Per = added("sample")  # noqa: RUF009
    average: bool = added(False)

    def __post_init__(self) -> None:
        yes_or_no("average", self.average)
        self._set("samples", _sample_limit(self.samples))
        self._set("draws", whole_number("draws", self.draws, "a whole number of at least 1", least=1))
        self._set("seed", whole_number("seed", self.seed, "a whole number"))
        _ = self.score  # checks the rest

    @property
    def score(self) -> Score:
        return LogLikelihood(self.labels, self.positions, self.draws, self.likelihood, self.class_dim, self.per)

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        return "average" if self.average else "add"

    @property
    def sample_limit(self) -> int | None:
        return self.samples

    @property
    def draw_seed(self) -> int | None:
        return self.seed if self.labels == "sampled" else None


def with_settings(kind: type[K]) -> type[K]:
    """Let a measure's own docstring say what its settings are, after those of its own that it names."""
    settings = (LikelihoodMeasure.__doc__ or "").partition("    Args:\n")[2]
    own = (kind.__doc__ or "").rstrip()
    begun = "" if "\n    Args:\n" in own else "\n\n    Args:"
    kind.__doc__ = f"{own}{begun}\n{settings}"
    return kind


@with_settings
@dataclasses.dataclass(frozen=True)
class Fisher(LikelihoodMeasure):
    r"""The diagonal of the Fisher information, EWC's importance.

    .. math:: \omega = E_x\, E_{y\sim q_x}\!\left[\left(\frac{\partial \log q_x(y)}{\partial\theta}\right)^2\right]

    With ``labels="true"`` this is the empirical Fisher, which is another thing (Kunstner, Balles and Hennig 2019, arXiv
    1905.12558). With several output positions, the exact joint Fisher is the sum of the positions' own. Kirkpatrick et
    al. 2017, arXiv 1612.00796; in its online form, with ``decay``, Schwarz et al. 2018, arXiv 1805.06370.
    """

    choose_when: ClassVar[str] = "The one with a Bayesian reason; also for a pretrained model, from proxy data."

    @property
    def name(self) -> str:
        """EWC, or what it becomes with other labels."""
        return {"exact": "EWC", "sampled": "EWC-sampled", "true": "EWC-empirical"}[self.labels]

    @property
    def phi(self) -> Phi:
        return SQUARE

    @property
    def is_in_nats(self) -> bool:
        """True of the mean of squares itself; one derived from it that makes something else of the mean says so."""
        kind = type(self)
        return kind.transform is SampleMeasure.transform and kind.finish is SampleMeasure.finish


@with_settings
@dataclasses.dataclass(frozen=True)
class RootFisher(Fisher):
    r"""The square root of each task's Fisher information, which SI and MAS approximate.

    .. math:: \omega = \sqrt{F}, \quad\text{taken for each task, then added up}

    Benzing 2020, arXiv 2006.06357.
    """

    choose_when: ClassVar[str] = "As EWC, with a much smaller spread between important and unimportant weights."

    @property
    def name(self) -> str:
        """√Fisher, in letters that a command line takes."""
        return "sqrtFisher"

    def transform(self, mean: Tensor) -> Tensor:
        """Return √F."""
        return mean.sqrt()


@with_settings
@dataclasses.dataclass(frozen=True)
class AbsoluteFisher(LikelihoodMeasure):
    r"""AF: the mean absolute gradient of the log-likelihood, the paper's bridge between MAS and the Fisher.

    .. math:: \omega = E_x\, E_{y\sim q_x}\!\left[\left|\frac{\partial \log q_x(y)}{\partial\theta}\right|\right]

    Benzing 2020, arXiv 2006.06357.
    """

    choose_when: ClassVar[str] = "Like √Fisher, and less sensitive to a few samples with large gradients."

    @property
    def name(self) -> str:
        return "AF"

    @property
    def phi(self) -> Phi:
        return ABSOLUTE


@dataclasses.dataclass(frozen=True)
class MAS(SampleMeasure):
    r"""Memory Aware Synapses: how much each weight moves the network's output, whatever the labels.

    .. math:: \omega = E_x\left|\frac{\partial \|q_x\|^2}{\partial\theta}\right|

    Aljundi et al. 2018, arXiv 1711.09601, on the network's outputs; on probabilities, and MASX, Benzing 2020, arXiv
    2006.06357.

    Args:
        samples: how many samples to use, the first ones that are given (so shuffle them); ``None`` for all.
        output: ``"probabilities"`` for the softmax q, or the sigmoid of labels that are each 0 or 1; ``"logits"`` for
            the network's output as it is, which the original code uses and which is the one for regression.
        dominant: keep the largest output alone (MASX): :math:`(\max_y q_x(y))^2` in place of :math:`\|q_x\|^2`.
        positions: for outputs ``[N, *positions, C]``, whether a sample is scored jointly over its positions or each
            position is a sample of its own (``"separate"``).
        likelihood: whose probabilities: the softmax of ``"categorical"`` outputs, or the sigmoid of ``"bernoulli"``
            ones; those of a regression (``"gaussian"``) have none. ``None`` as in :class:`Fisher`. It makes no
            difference to ``output="logits"``.
        class_dim: as in :class:`Fisher`.
        per: as in :class:`Fisher`.
        average: as in :class:`Fisher`.
    """

    samples: int | None = None
    output: Literal["probabilities", "logits"] = "probabilities"
    dominant: bool = False
    positions: Positions = "joint"
    likelihood: LikelihoodName | None = added(None)  # noqa: RUF009 (a field, as its docstring says)
    class_dim: int | None = added(None)
    per: Per = added("sample")  # noqa: RUF009
    average: bool = added(False)

    choose_when: ClassVar[str] = "No labels, one backward pass instead of one a class; regression with output='logits'."

    def __post_init__(self) -> None:
        yes_or_no("average", self.average)
        yes_or_no("dominant", self.dominant)
        self._set("samples", _sample_limit(self.samples))
        _ = self.score  # checks the rest

    @property
    def name(self) -> str:
        """MAS or MASX, on probabilities or on logits."""
        return ("MASX" if self.dominant else "MAS") + ("-logits" if self.output == "logits" else "")

    @property
    def score(self) -> Score:
        return OutputNorm(self.output, self.dominant, self.positions, self.likelihood, self.class_dim, self.per)

    @property
    def phi(self) -> Phi:
        return ABSOLUTE

    @property
    def total(self) -> Literal["add", "replace", "average"]:
        return "average" if self.average else "add"

    @property
    def sample_limit(self) -> int | None:
        return self.samples


def _sample_limit(samples: int | None) -> int | None:
    expected = "a whole number of at least 1, or None for all"
    return None if samples is None else whole_number("samples", samples, expected, least=1)


@with_settings
@dataclasses.dataclass(frozen=True)
class OnlineEWC(Fisher):
    r"""EWC's importance, each task's scaled to a mean of 1, and old ones faded by γ.

    .. math:: F^* \leftarrow \gamma\,F^* + \frac{F}{\operatorname{mean} F}

    The mean is over all protected weights. Schwarz et al. 2018, arXiv 1805.06370.

    Args:
        decay: γ, by which the total is multiplied before a task's importance is added; times the guard's own.
        normalise: whether each task's importance is divided by its mean, so that tasks count alike.
    """

    decay: float = 0.95
    normalise: bool = True

    choose_when: ClassVar[str] = "Many tasks, of which old ones may fade; or tasks whose Fishers differ in size."

    def __post_init__(self) -> None:
        super().__post_init__()
        yes_or_no("normalise", self.normalise)
        expected = "a number from 0 to 1 (1 keeps all)"
        self._set("decay", float(number("decay", self.decay, expected, lambda gamma: 0 <= gamma <= 1)))

    @property
    def name(self) -> str:
        """Its name, whatever its labels."""
        return "online-EWC"

    @property
    def is_in_nats(self) -> bool:
        """False where each task's importance is divided by its mean."""
        return not self.normalise

    def finish(self, task: TaskRecord) -> Finished:
        """Return the Fisher information of the task, scaled."""
        found = super().finish(task).importance
        if not self.normalise:
            return Finished(found)
        weights = task.sum({name: torch.ones_like(omega) for name, omega in found.items()})
        mean = task.sum(found) / max(1.0, weights)
        return Finished({name: omega / (mean or 1.0) for name, omega in found.items()})
