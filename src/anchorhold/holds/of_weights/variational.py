r"""Variational continual learning: the posterior of one task is the prior of the next.

.. math::
    \mathcal L_t = \mathbb E_{q}\bigl[-\log p(y \mid x, \theta)\bigr] + \frac{\beta}{N_t}\,\mathrm{KL}(q\,\|\,q_{t-1}),
    \qquad q_0 = \mathcal N(0, \sigma_0^2)

The first term is the mean loss that the loop computes, with weights that are drawn
(:mod:`anchorhold.variational.mean_field`); the second is this hold. Nguyen, Li, Bui and Turner 2018 (arXiv 1710.10628);
with local reparametrisation Swaroop, Nguyen, Bui and Turner 2019 (arXiv 1905.02099).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError
from anchorhold.holds.base import Held, Hold
from anchorhold.settings import number, whole_number
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.storage import running_dtype, to_compute
from anchorhold.variational.coresets import refined
from anchorhold.variational.mean_field import (
    LOG_VARIANCE,
    Gaussian,
    checked_log_variance,
    kl,
    kl_gradient,
    mean_field_layers,
)
from anchorhold.variational.prediction import predictive

_MEAN, _VARIANCE, _LEARNED = "mean/", "log_variance/", "learned/"


class _Pulled(NamedTuple):
    """A weight that this step trains."""

    mean_name: str
    variance_name: str
    q: Gaussian
    p: Gaussian


class Variational(Hold):
    r"""Adds :math:`\frac{\beta}{N}\,\mathrm{KL}(q\,\|\,q_{t-1})`, from the first step on.

    >>> model = anchorhold.variational.mean_field(model)
    >>> hold = anchorhold.Variational(samples=len(first_task))
    >>> guard = anchorhold.Guard(model, "fine-tune", holds=[hold])
    ...
    >>> guard.consolidate()                    # the posterior becomes the prior
    >>> hold.samples = len(second_task)
    >>> probabilities = hold.predict(model, x).exp()

    A weight that no task has trained before, such as one of a new head, begins at :math:`q_0`; heads that a step does
    not use, and so have no gradient, or one of zeros, are left alone.

    Args:
        samples: N, how many training samples the task has: the loss is their mean, and the KL is counted once for all.
            It can be set before each task.
        strength: β; 1 is Bayes' rule.
        prior_variance: :math:`\sigma_0^2`.
        predictions: over how many draws ``predict`` averages.
        coreset: how many epochs ``refined`` takes.
        restart: the logarithm of all variances with which every task after the first begins, such as -6, as
            ``narrow`` sets them; ``None`` for those that the last one ended with. The prior is the last posterior
            either way. Where the last task has left wide weights, they are noise under which the next one is learned.
    """

    def __init__(
        self,
        samples: int | None = None,
        strength: float = 1.0,
        *,
        prior_variance: float = 1.0,
        predictions: int = 100,
        coreset: int = 0,
        restart: float | None = None,
    ) -> None:
        super().__init__(strength)
        self.samples = samples
        fits = "a number above 0"
        self.prior_variance = float(number("prior_variance", prior_variance, fits, lambda given: given > 0))
        self.predictions = whole_number("predictions", predictions, "a whole number of at least 1", least=1)
        self.coreset = whole_number("coreset", coreset, "a whole number, 0 or more", least=0)
        self.restart = None if restart is None else checked_log_variance("restart", restart)
        self.prior: dict[str, Gaussian] = {}
        """The last posterior, by the names of means."""
        self._learned: set[str] = set()
        """What the current task has trained."""
        self._points: list[str] = []
        """What it has trained that is no distribution."""
        self._begins = False
        """Whether the next step is a task's first."""
        self._untrained = False
        """Whether a task ended before anything was trained."""

    @property
    def samples(self) -> int | None:
        """N, how many training samples the current task has."""
        return self._samples

    @samples.setter
    def samples(self, given: int | None) -> None:
        self._samples = None if given is None else whole_number("samples", given, "a whole number above 0", least=1)

    def told(self) -> str:
        """Return what the posterior is held to."""
        return f"the KL to the last posterior of {len(self.prior)} tensors" if self.prior else "the KL to the prior"

    @torch.no_grad()
    def narrow(self, *trained: nn.Module) -> None:
        """Let a task begin with variances of ``restart``; the first one, which has no prior to go by, as it is.

        >>> hold.narrow(model)                            # before each task, the first too
        >>> hold.narrow(model.body, model.heads[task])    # heads of other tasks stay as they were learned

        Call it once a task, and not where a run goes on within one: it would undo what the task has learned.

        Args:
            trained: the parts of the model that the task trains.
        """
        if strange := [type(part).__name__ for part in trained if not isinstance(part, nn.Module)]:
            raise ConfigurationError(
                f"narrow() was given a {strange[0]}; expected the model, or parts of it: hold.narrow(model)."
            )
        layers = [layer for part in trained for layer in mean_field_layers(part).values()]
        if not layers:
            raise ConfigurationError(
                f"narrow() was given {len(trained)} parts of a model, and none has a distribution; expected those that "
                "the task trains, of a model from mean_field(model): hold.narrow(model)."
            )
        if self.restart is None:
            raise ConfigurationError(
                "narrow() of a hold without restart=, the logarithm of the variances to begin with; expected "
                "Variational(restart=-6.0)."
            )
        for layer in layers if self.prior else []:
            for q in layer.gaussians().values():
                q.log_variance.fill_(self.restart)

    def predict(self, model: nn.Module, *inputs: Any, **settings: Any) -> Tensor:
        """Return logarithms of predicted probabilities, averaged over draws, as ``variational.predictive`` does."""
        return predictive(model, *inputs, samples=self.predictions, **settings)

    def refined(self, model: nn.Module, batches: list[tuple[Any, ...]], **settings: Any) -> dict[str, Tensor]:
        """Return weights that have looked at a coreset too; see :func:`anchorhold.variational.refined`."""
        return refined(model, batches, epochs=self.coreset, **settings)

    def value(self, held: Held) -> Tensor | None:
        """Return β KL/N of what the step trains."""
        pulled = self._pulled(held)
        if not pulled:
            return None
        terms = [kl(each.q, each.p) for each in pulled.values()]
        device = terms[0].device
        return self._weight * torch.stack([term.to(device) for term in terms]).sum()

    def begin_task(self, held: Held) -> None:
        """Let the first step look at where the task begins."""
        self._begins = True

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return its gradient by means and by logarithms of variances."""
        pulled, found = self._pulled(held), dict[str, Tensor]()
        if self._begins:  # once, since a closure is asked again where its step has led
            self._begins = False
            known = [each.variance_name for name, each in pulled.items() if name in self.prior]
            self._check_narrow([held.trained[name] for name in known])
        for each in pulled.values():
            by = kl_gradient(each.q, each.p)
            found |= {each.mean_name: self._weight * by.mean, each.variance_name: self._weight * by.log_variance}
        self._learned |= pulled.keys()
        if not self._points:
            used = _used(held.trained.values())
            self._points = [n for n, p in held.trained.items() if n not in found and id(p) in used]
        return found

    def _check_narrow(self, variances: Sequence[Tensor]) -> None:
        """Refuse a task that was to begin with narrow weights, and begins with the last one's."""
        if self.restart is None or not variances or any(bool((each == self.restart).all()) for each in variances):
            return
        raise ConfigurationError(
            f"Variational(restart={self.restart:g}) and a task whose first step found the variances that the last one "
            "has left; expected hold.narrow(model) after each consolidate(), before the next task's first forward "
            "pass. Without it leave restart out."
        )

    @property
    def _weight(self) -> float:
        if self.samples is None:
            raise ConfigurationError(
                "Variational(samples=None): the KL counts once for all training samples of a task, so their number has "
                "to be known; expected Variational(samples=60_000), or hold.samples = 60_000 before the task's first "
                "step."
            )
        return self.strength / self.samples

    def _pulled(self, held: Held) -> dict[str, _Pulled]:
        """Return every weight that this step trains, by the name that its mean has in the model."""
        names = {id(parameter): name for name, parameter in held.trained.items()}
        every = _gaussians(held.model)
        if not every:
            raise ConfigurationError(
                f"The hold {self.name!r} for a model whose weights are numbers, not distributions; expected "
                "anchorhold.variational.mean_field(model) before the guard and the optimizer are made."
            )
        for place, q in every.items():
            if is_sharded(q.mean):
                raise ConfigurationError(
                    f"{place!r} is sharded over processes, which distributions cannot be yet; expected DDP, or one "
                    "process."
                )
        used = _used(part for q in every.values() for part in q)
        found = {}
        for place, q in every.items():
            mean, variance = q
            if id(mean) not in names or used.isdisjoint((id(mean), id(variance))):
                continue  # a head that this step does not use
            _check_trained(place, mean, variance, known=id(variance) in names)
            wide = Gaussian(*(part.to(running_dtype(part)) for part in q))
            found[place] = _Pulled(names[id(mean)], names[id(variance)], wide, self._prior_of(place, wide))
        return found

    def _prior_of(self, name: str, q: Gaussian) -> Gaussian:
        if name not in self.prior:
            zero = torch.zeros_like(q.mean)
            return Gaussian(zero, zero + math.log(self.prior_variance))
        p = self.prior[name]
        if p.mean.shape != q.mean.shape:
            raise ConfigurationError(
                f"{name!r} has shape {tuple(q.mean.shape)}, and {tuple(p.mean.shape)} in the last posterior. Restore "
                "it, or guard.forget it."
            )
        self.prior[name] = p = Gaussian(*(to_compute(part, q.mean).to(q.mean.dtype) for part in p))
        return p

    def end_task(self, held: Held) -> None:
        """Let the posterior be the prior from now on, of all that has been trained."""
        self._untrained = not self._learned and not self.prior
        for name, q in _gaussians(held.model).items():
            if name in self._learned or name in self.prior:
                self.prior[name] = Gaussian(*(part.detach().clone() for part in q))
        self._learned = set()

    def notices(self) -> list[str]:
        """Say which weights are no distributions, and so not held, and where there is no posterior."""
        messages = []
        if self._points:
            others = f" and {len(self._points) - 1} more" * (len(self._points) > 1)
            messages.append(
                f"{self._points[0]!r}{others} were trained as numbers, not as distributions, so that this hold does "
                "not keep them. Freeze them after the first task, or hold them by a measure beside it."
            )
        if self._untrained:
            messages.append(
                f"A task was consolidated before any step, so that the hold {self.name!r} knows no posterior: the "
                f"first prior holds on, with variance {self.prior_variance:g} around 0, and not around the weights as "
                "they are. To keep what a model knows already, train it on data of that with this hold before it is "
                "consolidated: variances are learned in training alone."
            )
        return messages

    def forget(self, name: str) -> None:
        self.prior.pop(name, None)
        self._learned.discard(name)

    def settings(self) -> dict[str, Any]:
        return {"prior_variance": self.prior_variance}

    def state(self) -> dict[str, Tensor]:
        """Return the prior, and what this task has trained."""
        found = {f"{_LEARNED}{name}": torch.ones(1) for name in sorted(self._learned)}
        for name, (mean, log_variance) in self.prior.items():
            found |= {f"{_MEAN}{name}": mean, f"{_VARIANCE}{name}": log_variance}
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        means = {key.removeprefix(_MEAN): tensor for key, tensor in state.items() if key.startswith(_MEAN)}
        self.prior = {name: Gaussian(mean, state[f"{_VARIANCE}{name}"]) for name, mean in means.items()}
        self._learned = {key.removeprefix(_LEARNED) for key in state if key.startswith(_LEARNED)}


def _gaussians(model: nn.Module) -> dict[str, Gaussian]:
    """Return all weights of a model that are distributions, by the names of their means."""
    layers = mean_field_layers(model).items()
    return {f"{path}.{own}".lstrip("."): q for path, layer in layers for own, q in layer.gaussians().items()}


def _used(parameters: Iterable[Tensor]) -> set[int]:
    """Return the ids of those that a step's loss has to do with, after one wait for the device.

    A gradient of zeros alone is what zero_grad(set_to_none=False) has left.
    """
    given = {id(parameter): parameter.grad for parameter in parameters if parameter.grad is not None}
    if not given:
        return set()
    flags = [gradient.any() for gradient in given.values()]
    told = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
    return {key for key, is_used in zip(given, told, strict=True) if is_used}


def _check_trained(name: str, mean: Tensor, variance: Tensor, *, known: bool) -> None:
    """Refuse a mean that is trained without its variance: the KL would shrink weights that are never drawn."""
    if not known:
        raise ConfigurationError(
            f"The optimizer moves {name!r} and not {name + LOG_VARIANCE!r}: it was made before mean_field(model). "
            "Expected an optimizer of all that model.parameters() has now."
        )
    if variance.grad is None or mean.grad is None:
        raise ConfigurationError(
            f"{name!r} was trained without being drawn: its {'variance' if variance.grad is None else 'mean'} has no "
            "gradient. The model was in evaluation mode, or uses the weight past its layer; expected model.train(), "
            "and mean_field() of layers that are called."
        )
