r"""The per-sample engine: one way to every measure that is taken after training.

.. math:: \omega_i = E_x \sum_y w_y(x)\, \varphi\!\left(\frac{\partial s_y(x)}{\partial \theta_i}\right)

A chunk of samples goes forward once; the rows of its scores go backward together, as a batch dimension of their own;
and at each place where a parameter is used, a rule turns what arrives there into the sum over samples. What no rule
covers goes to :mod:`holdfast.importance.fallback`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BatchError, ModelError, NotFiniteError
from holdfast.importance.batches import Batch, Forward, call_model, read_batch
from holdfast.importance.fallback import Fallback
from holdfast.importance.isolation import isolated
from holdfast.importance.phi import Phi
from holdfast.importance.plan import Plan, Site, make_plan, record
from holdfast.importance.rules.base import Rule
from holdfast.importance.scores import Score

CPU_BUDGET = 48 * 2**20
"""Bytes that a chunk may take by default on a CPU: small enough for its tensors to be reused from cache."""

ACCELERATOR_BUDGET = 2**30
"""Bytes that a chunk may take by default on an accelerator, which wants large chunks."""


@dataclass
class SampleImportance:
    """The importances of one measurement, how many samples they are the mean of, and how they were found."""

    values: dict[str, Tensor]
    samples: int
    fallback: dict[str, str] = field(default_factory=dict)
    """The parameters that no rule covered, with the way they were measured instead."""


class SampleAccumulator:
    """Adds up a measure's importance, batch after batch.

    Args:
        model: the network; it is measured in eval mode and left as it was.
        score: what is differentiated.
        phi: what is done to each element of a gradient before it is averaged.
        parameters: which parameters to measure, by name; all of the model's by default.
        forward: how the model is called, ``forward(model, inputs)``; by default ``model(inputs)``, with the logits
            taken from an output that has them.
        samples: stop after this many samples; ``None`` takes every one that is given.
        budget: bytes that a chunk of samples may take; chosen for the device by default.
        generator: the source of drawn labels.
    """

    def __init__(
        self,
        model: nn.Module,
        score: Score,
        phi: Phi,
        *,
        parameters: Mapping[str, nn.Parameter] | None = None,
        forward: Forward | None = None,
        samples: int | None = None,
        budget: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.model = model
        self.score = score
        self.phi = phi
        self.parameters = dict(model.named_parameters()) if parameters is None else dict(parameters)
        if not self.parameters:
            raise ModelError("There is no parameter to measure: the model, or the choice of parameters, is empty.")
        self.device = next(iter(self.parameters.values())).device
        self.forward = forward or call_model
        self.limit = samples
        self.budget = budget or (CPU_BUDGET if self.device.type == "cpu" else ACCELERATOR_BUDGET)
        self.generator = generator
        self.samples = 0
        self.seen = 0
        self._totals = {
            name: torch.zeros_like(p, dtype=_at_least_single(p.dtype), requires_grad=False)
            for name, p in self.parameters.items()
        }
        self._plan: Plan | None = None
        self._fallback = Fallback(model, self.forward, phi, self.budget)
        self._without_rule: set[str] = set()
        self._rows_batched = True

    @property
    def full(self) -> bool:
        """Whether as many samples have been seen as were asked for."""
        return self.limit is not None and self.seen >= self.limit

    def update(self, batch: Any) -> None:
        """Add a batch, or what is still wanted of it."""
        if self.full:
            return
        read = read_batch(batch, self.device)
        if self.limit is not None:
            read = read[: self.limit - self.seen]
        with isolated(self.model, self.parameters.values()):
            step = self._samples_per_chunk(read)
            for first in range(0, read.size, step):
                self._add_chunk(read[first : first + step])
        self.seen += read.size

    def result(self) -> SampleImportance:
        """Return the mean over the samples so far."""
        if self.samples == 0:
            raise BatchError(
                "No sample to measure importance from: the batches were empty. Give an iterable of inputs or of "
                "(inputs, targets); an iterator that was used before is at its end."
            )
        values = {name: total / self.samples for name, total in self._totals.items()}
        for name, value in values.items():
            if not bool(value.isfinite().all()):
                raise NotFiniteError(
                    f"The importance of {name!r} is not finite after {self.samples} samples: the model's outputs or "
                    "gradients overflow. Check the inputs for NaN, and the weights for divergence."
                )
        return SampleImportance(values, self.samples, dict.fromkeys(sorted(self._without_rule), self._fallback.way))

    def _samples_per_chunk(self, batch: Batch) -> int:
        if batch.size == 1:
            return 1
        if self._plan is None:
            self._plan = make_plan(self.model, self.parameters, self.forward, batch[:2])
        rows = self.score.rows(self._plan.outputs, _first(batch.targets), self.phi, self.generator).count
        return self._plan.samples_within(self.budget, rows)

    def _add_chunk(self, batch: Batch) -> None:
        uses, outputs = record(self.model, self.parameters, self.forward, batch.inputs)
        if len(outputs) != batch.size:
            raise ModelError(
                f"The model returned outputs of shape {tuple(outputs.shape)} for {batch.size} samples; expected "
                f"[{batch.size}, ...]. Give a `forward` whose outputs have one row a sample."
            )
        if batch.size == 1:
            plan = Plan.of_one_sample(uses, outputs, self.parameters)
        else:
            if self._plan is None or not self._plan.fits(uses):
                self._plan = make_plan(self.model, self.parameters, self.forward, batch[:2])
            plan = self._plan
        sites = plan.sites(uses)
        self._without_rule |= plan.without_rule
        rows = self.score.rows(outputs.detach(), batch.targets, self.phi, self.generator)
        step = plan.rows_within(self.budget, batch.size)
        for start in range(0, rows.count, step):
            u = rows.block(start, min(rows.count, start + step))
            if outputs.requires_grad and sites:
                self._add_rows(outputs, u, sites)
            if plan.without_rule:
                chosen = {name: self.parameters[name] for name in plan.without_rule}
                self._fallback.add(self._totals, chosen, batch, u)
        self.samples += rows.samples

    def _add_rows(self, outputs: Tensor, u: Tensor, sites: list[Site]) -> None:
        """Send rows backward and let the rules collect what arrives."""
        arrived = self._backward(outputs, [edge for site in sites for edge in site.edges], u)
        collected: dict[str, list[tuple[Rule, str, Tensor, Tensor]]] = {}
        for site in sites:
            deltas = [arrived.pop(0) for _ in site.edges]
            delta = site.delta(deltas, len(outputs))
            if delta is None:
                continue
            a = site.input(len(outputs))
            dtype = _at_least_single(delta.dtype)
            delta = delta.to(dtype)
            a = a.to(dtype) if a.is_floating_point() else a
            for role, name in site.use.names.items():
                if name in site.wanted:
                    collected.setdefault(name, []).append((site.use.rule, role, a, delta))
        for name, found in collected.items():
            if len(found) == 1:
                rule, role, a, delta = found[0]
                self._totals[name].add_(rule.importance(role, a, delta, self.phi))
            else:
                self._add_shared(name, found)

    def _add_shared(self, name: str, found: list[tuple[Rule, str, Tensor, Tensor]]) -> None:
        """Add a parameter that is used in several places: its gradient is their sum, and only then comes φ."""
        total = self._totals[name]
        rows, samples = found[0][3].shape[:2]
        deep = max(1, min(rows, self.budget // (2 * total.numel() * total.element_size())))
        for n in range(samples):
            for row in range(0, rows, deep):
                gradient = sum(
                    rule.gradients(role, a[n : n + 1], delta[row : row + deep, n : n + 1])
                    for rule, role, a, delta in found
                )
                assert isinstance(gradient, Tensor)
                total.add_(self.phi.sum(gradient, (0, 1)))

    def _backward(self, outputs: Tensor, edges: list[Any], u: Tensor) -> list[Tensor | None]:
        """Return the gradients ``[V, ...]`` at each edge for output gradients ``u`` of ``[V, ...]``."""
        if self._rows_batched and len(u) > 1:
            try:
                return list(
                    torch.autograd.grad(
                        outputs, edges, u, retain_graph=True, allow_unused=True, is_grads_batched=True
                    )
                )
            except RuntimeError:
                # Some backward pass cannot be batched; one row at a time either works or raises its own error.
                self._rows_batched = False
        found = [torch.autograd.grad(outputs, edges, row, retain_graph=True, allow_unused=True) for row in u]
        return [None if parts[0] is None else torch.stack(parts) for parts in zip(*found, strict=True)]


def sample_importance(
    model: nn.Module,
    batches: Iterable[Any],
    score: Score,
    phi: Phi,
    *,
    parameters: Mapping[str, nn.Parameter] | None = None,
    forward: Forward | None = None,
    samples: int | None = None,
    budget: int | None = None,
    generator: torch.Generator | None = None,
) -> SampleImportance:
    """Return ``E_x Σ_y w_y(x) φ(∂s_y(x)/∂θ)`` over the samples of ``batches``.

    The arguments are those of :class:`SampleAccumulator`.
    """
    accumulator = SampleAccumulator(
        model,
        score,
        phi,
        parameters=parameters,
        forward=forward,
        samples=samples,
        budget=budget,
        generator=generator,
    )
    for batch in batches:
        accumulator.update(batch)
        if accumulator.full:
            break
    return accumulator.result()


def _first(targets: Tensor | None) -> Tensor | None:
    return None if targets is None else targets[:1]


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
