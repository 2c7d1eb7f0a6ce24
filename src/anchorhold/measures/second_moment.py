"""Second-Order Synapses, and the posterior precision built on the same running average (Benzing 2020)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.measures.base import Needs, PathMeasure, Seen, States
from anchorhold.measures.recurrences import (
    add_pairs_to_second_moment_,
    add_to_second_moment_,
    average_second_moment_,
    bias_corrected,
    posterior_precision,
    unbiased_alpha,
    window_rate,
)
from anchorhold.settings import added, number, require, whole_number, yes_or_no

_USUAL_BETA2 = 0.999


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecondMoment(PathMeasure):
    r"""A running average of the task gradient's square, :math:`v \leftarrow \beta_2 v + (1-\beta_2)(g-\alpha g')^2`.

    The average is the measure's own, starts anew with every task and is fed with the task's gradient alone. Adam's
    would contain the penalty too.

    Args:
        beta2: the average's decay.
        normalise: divide by :math:`1-\beta_2^n` after n steps, as the paper's table of formulas does (its authors'
            scripts do not). It matters for tasks of fewer than a few thousand steps.
        window: in place of β₂, the share of the task's steps so far that the average reaches back over, such as 0.1:
            whatever a task's length, v is then of its last part. With β₂ = 0.999 it reaches over 1000 steps, and so
            over the whole of a shorter task, whose first gradients are the largest. It is always normalised.
        skip: how many steps of each task are left out, the first ones.

    Units that are dead at a task's end have gradients in its first steps alone, and importance 0 with a window, with
    steps left out, or with a β₂ that is short for the task: damp the form then, ``form=Diagonal(damping=0.01)``.
    """

    beta2: float = _USUAL_BETA2
    normalise: bool = True
    window: float | None = added(None)
    skip: int = added(0)

    counts_on_device: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expected = "a number from 0 up to, but not, 1"
        self._set("beta2", number("beta2", self.beta2, expected, lambda given: 0 <= given < 1))
        yes_or_no("normalise", self.normalise)
        if self.window is not None:
            expected = "a share of a task's steps, above 0 and up to 1"
            self._set("window", number("window", self.window, expected, lambda given: 0 < given <= 1))
            both = f"beta2={self.beta2:g} and window={self.window:g}"
            require(self.beta2 == _USUAL_BETA2, both, "one of both, since a window takes the place of beta2")
            both = f"normalise={self.normalise} and window={self.window:g}"
            require(self.normalise, both, "normalise=True, since an average over a window always is")
        self._set("skip", whole_number("skip", self.skip, "a whole number of steps, 0 or more", least=0))

    @property
    def needs(self) -> Needs:
        """The step's gradient, and its number where the average depends on it."""
        return Needs(gradient=True, number=self._counts)

    @property
    def _counts(self) -> bool:
        return self.window is not None or self.skip > 0

    @property
    def running(self) -> Mapping[str, Literal["task", "lasting"]]:
        """The running average v."""
        return {"second_moment": "task"}

    def update_(self, states: States, seen: Seen) -> None:
        """Add this step's gradient, squared."""
        if self._counts:
            assert seen.number is not None
            average_second_moment_(states["second_moment"], seen.gradient, self.rate(seen.number, seen.gradient))
        else:
            add_to_second_moment_(states["second_moment"], seen.gradient, self.beta2)

    def rate(self, steps: int | Tensor, like: Tensor) -> Any:
        """Return r, what the next step counts for in v, after so many steps of the task: 0 for one that is left out."""
        if isinstance(steps, Tensor):
            counted = (steps - self.skip).clamp(min=0).to(like.dtype)
            return self._rate_after(counted) * (steps >= self.skip).to(like.dtype)
        return 0.0 if steps < self.skip else self._rate_after(steps - self.skip)

    def _rate_after(self, counted: int | Tensor) -> Any:
        return 1 - self.beta2 if self.window is None else window_rate(counted, self.window)

    def check_task(self, steps: int) -> None:
        """Refuse a task all of whose steps are left out, which would come out as worth nothing."""
        if steps <= self.skip and self.skip:
            raise ConfigurationError(
                f"{self!r} for a task of {steps} steps, all of which it leaves out; expected a skip below that."
            )

    def average(self, states: States, steps: int) -> Tensor:
        """Return v, normalised if so set."""
        self.check_task(steps)
        v = states["second_moment"]
        if self.window is not None:
            return v
        return bias_corrected(v, self.beta2, steps - self.skip) if self.normalise else v


@dataclasses.dataclass(frozen=True, kw_only=True)
class SOS(SecondMoment):
    r"""Second-Order Synapses, the paper's own measure: the root of the gradient's running second moment.

    .. math:: v \leftarrow \beta_2 v + (1-\beta_2)(g-\alpha g')^2, \qquad \omega = \sqrt{v}

    For large batches g² is mostly the mean gradient, not its noise. An independent estimate g′ removes it: with
    α = 1 approximately, with ``alpha="unbiased"`` exactly, such that v estimates :math:`(1-\alpha)^2` times the
    empirical Fisher. g′ comes from :meth:`~anchorhold.guard.views.Gradients.independent` (a second batch),
    :meth:`~anchorhold.guard.views.Gradients.halves` (the two halves of one) or
    :meth:`~anchorhold.guard.views.Gradients.ranks` (the processes of a DDP job). Benzing 2020, arXiv 2006.06357.

    Args:
        beta2: the average's decay.
        normalise: divide v by :math:`1-\beta_2^n`.
        window: in place of β₂, the share of the task's steps that the average reaches back over, such as 0.1.
        skip: how many of each task's first steps are left out.
        alpha: α, or ``"unbiased"`` for the exact :math:`\alpha(b) = (b+\sqrt{2b-1})/(b-1)`.
        batch_size: b, the samples in *each* gradient estimate, for ``alpha="unbiased"`` where the calls do not say.
    """

    alpha: float | Literal["unbiased"] = 0.0
    batch_size: int | None = None

    choose_when: ClassVar[str] = (
        "The default: no extra pass, and as good as SI; with large batches better, given a beta2 below 0.999 or an α."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha != "unbiased":
            self._set("alpha", number("alpha", self.alpha, "a number or 'unbiased'"))
        if self.batch_size is not None:
            self._set("batch_size", _batch_size(self.batch_size))

    @property
    def needs(self) -> Needs:
        """The step's gradient and, unless α is 0, a second one."""
        return Needs(gradient=True, independent=self.alpha != 0, number=self._counts)

    @property
    def takes_estimates(self) -> bool:
        """Whether α wants two gradients, which need be independent of each other alone."""
        return self.alpha != 0

    def check_step(self, samples: int | None) -> None:
        """Refuse a step whose α is unknown."""
        self.alpha_for(samples)

    def update_(self, states: States, seen: Seen) -> None:
        """Add this step's difference of gradients, squared."""
        if self.alpha != 0:
            assert seen.independent is not None
            seen = seen._replace(gradient=seen.gradient.sub(seen.independent, alpha=self.alpha_for(seen.samples)))
        super().update_(states, seen)

    def update_from_estimates_(
        self,
        states: States,
        mean: Tensor,
        mean_square: Tensor,
        estimates: int,
        samples: int | None,
        number: int | None = None,
    ) -> None:
        """Add the mean of the squared differences over all pairs of estimates."""
        alpha, beta2 = self.alpha_for(samples), self.beta2
        if self._counts:
            assert number is not None
            beta2 = 1 - self.rate(number, mean)
        add_pairs_to_second_moment_(states["second_moment"], mean, mean_square, estimates, alpha, beta2)

    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return √v."""
        return self.average(states, steps).sqrt()

    def alpha_for(self, samples: int | None) -> float:
        """Return α for gradients of so many samples each."""
        if not isinstance(self.alpha, str):
            return self.alpha
        samples = samples or self.batch_size
        if samples is None:
            raise ConfigurationError(
                "SOS(alpha='unbiased') needs to know how many samples each gradient estimate has. Give SOS(..., "
                "batch_size=b), or samples=b to gradients.independent(), gradients.halves() or gradients.ranks()."
            )
        return unbiased_alpha(samples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PosteriorPrecision(SecondMoment):
    r"""1/(K+R): the inverse variance of a weight's posterior when the optimum itself is uncertain.

    .. math:: \omega = \frac{b v}{1 + b\eta\sqrt{v}} \quad\text{or, scaled,}\quad
              \omega = \frac{b v}{1 + \eta'\sqrt{b v}}

    For small gradients this is the Fisher information, for large ones its square root. Benzing 2020, arXiv
    2006.06357, the appendix on the square root of the Fisher. b·v is the empirical Fisher information of one of the b
    things that the loss is a mean over, where the loss is at its optimum; it is never multiplied by the size N of the
    data. So an exchange rate counts those things: the samples of a classifier, or the scored tokens of a language
    model whose ``batch_size`` is in tokens.

    Args:
        beta2: the average's decay.
        normalise: divide v by :math:`1-\beta_2^n`.
        window: in place of β₂, the share of the task's steps that the average reaches back over.
        skip: how many of each task's first steps are left out.
        batch_size: b, the samples, or scored tokens, that the loss of each step is the mean over.
        scaled: take the form that shows the dependence on the batch size, with η′ for η.
        eta: η (0.001 by default) or, scaled, η′ (0.01).
    """

    batch_size: int = 256
    scaled: bool = False
    eta: float | None = None

    choose_when: ClassVar[str] = "For large gradients, to pass smoothly from Fisher to its square root; experimental."

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("batch_size", _batch_size(self.batch_size))
        yes_or_no("scaled", self.scaled)
        if self.eta is not None:
            self._set("eta", number("eta", self.eta, "a number not below 0", lambda given: given >= 0))

    @property
    def name(self) -> str:
        return "posterior-scaled" if self.scaled else "posterior"

    @property
    def is_in_nats(self) -> bool:
        """True, and less than the Fisher information where gradients are large."""
        return True

    def importance(self, states: States, displacement: Tensor, steps: int) -> Tensor:
        """Return 1/(K+R)."""
        eta = self.eta if self.eta is not None else (0.01 if self.scaled else 0.001)
        return posterior_precision(self.average(states, steps), self.batch_size, eta, scaled=self.scaled)


def _batch_size(samples: int) -> int:
    return whole_number("batch_size", samples, "a whole number of at least 1", least=1)
