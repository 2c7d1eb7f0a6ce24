r"""The per-sample engine: one way to every measure that is taken after training.

.. math:: \omega_i = E_x \sum_y w_y(x)\, \varphi\!\left(\frac{\partial s_y(x)}{\partial \theta_i}\right)

A chunk of samples goes forward once; the rows of its scores go backward together, as a batch dimension of their own;
and at each place where a parameter is used, a rule turns what arrives there into the sum over samples. What no rule
covers goes to :mod:`anchorhold.engine.backward`.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.backward import BackwardRows, Fallback
from anchorhold.engine.batches import (
    Batch,
    Forward,
    KeptInputs,
    call_model,
    check_batches,
    describe_inputs,
)
from anchorhold.engine.conventions import BatchReader, problem_type
from anchorhold.engine.isolation import isolated
from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions import Arrival, DiagonalReduction, Reduction, at_least_single
from anchorhold.engine.refusals import (
    check_outputs,
    checked_real,
    real_parameters,
    refuse_merged,
    refuse_nested_backward,
    refuse_replaced,
    warn_of_probabilities,
)
from anchorhold.engine.rules.base import Part, disjoint, without
from anchorhold.engine.scores import OutputReading, ReadingEvidence, Score
from anchorhold.engine.scores.outputs import precise_outputs
from anchorhold.engine.tracing.plan import Plan, Plans, Site, check_independent, make_plan, plan_for_one, plan_key
from anchorhold.engine.tracing.samples import SampleOrder
from anchorhold.engine.tracing.uses import Use, record
from anchorhold.errors import AnchorholdError, BatchError, ModelError, NotFiniteError
from anchorhold.tensors.gathered_at_use import GatheredAtUse
from anchorhold.tensors.storage import free_bytes

CPU_BUDGET = 192 * 2**20
"""Bytes that a chunk may take by default on a CPU."""

CPU_SAMPLES = 256
"""Samples that a chunk of that budget may hold: matrix products run at full speed; more would only take memory."""

ACCELERATOR_BUDGET = 2**30
"""Bytes that a chunk may take by default on an accelerator, which wants large chunks."""

LARGE_SAMPLES = 16
"""So many samples of a large model may take more than that, where memory is free: one by one, each layer's few products
would leave an accelerator waiting for Python."""

FREE_SHARE = 4
"""Of the memory that is free, one part in so many at most."""


@dataclass
class SampleImportance:
    """The importances of one measurement, how many samples they are the mean of, and how they were found."""

    values: dict[str, Tensor]
    samples: int
    fallback: dict[str, str] = field(default_factory=dict)
    """The parameters that no rule covered, with the way they were measured instead."""
    outputs: str | None = None
    """What the model's outputs were read as, and what decided it."""
    tokens: float = 1.0
    """T, how many positions are scored for each of what the values are a mean of: 1 where that is a position."""


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
        reduction: what is made of inputs and δs, from the parameters that are measured; the diagonal by default.
        plans: those of the measurement that this is a part of, where it has several passes or measures; they hold as
            long as the model's weights stay as they are.
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
        reduction: Callable[[Mapping[str, nn.Parameter]], Reduction] | None = None,
        plans: Plans | None = None,
    ) -> None:
        self.model = model
        self.score = score
        self.phi = phi
        chosen = real_parameters(model) if parameters is None else checked_real(parameters)
        if not chosen:
            raise ModelError("There is no parameter to measure: the model, or the choice of parameters, is empty.")
        # A tensor may go by several names (tied weights): it is measured once, by the first of them.
        first_name: dict[int, str] = {}
        self._names = {name: first_name.setdefault(id(parameter), name) for name, parameter in chosen.items()}
        self.parameters = {name: parameter for name, parameter in chosen.items() if self._names[name] == name}
        present = {id(parameter) for parameter in model.parameters()}
        self._of_the_model = [name for name, parameter in self.parameters.items() if id(parameter) in present]
        refuse_merged(model, self.parameters)
        self.device = next(iter(self.parameters.values())).device
        self.forward = KeptInputs(forward or call_model)
        self._forward_given = forward or call_model
        self._chooses_outputs = forward is not None  # such as those of a head, of whose classes labels need not be
        self.limit = samples
        self.budget = budget or (CPU_BUDGET if self.device.type == "cpu" else ACCELERATOR_BUDGET)
        self._least_budget = self.budget
        # Processes that gather layers together have to take the same chunks, whatever each of them has free.
        self._widens = budget is None and GatheredAtUse not in map(type, model.parameters())
        if generator is None:  # one that follows from torch's global random state, and leaves that as it is
            with torch.random.fork_rng(devices=[]):
                generator = torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))
        self.generator = generator
        self.samples = 0
        self.positions = 0
        self.seen = 0
        self.classes: int | None = None
        """How many classes plain outputs ``[N, C]`` tell apart, once seen; ``None`` where some are masked out."""
        self.reduction = reduction(self.parameters) if reduction else DiagonalReduction(phi, self.parameters)
        self._reader = BatchReader(self.device, model)
        self._plans = plans or Plans()
        self._plan: Plan | None = None
        self._planned_shapes: list[torch.Size] = []
        self._unchecked_key: tuple[object, ...] | None = None
        self._fallback = Fallback(model, self.forward, self.reduction, self.budget)
        self._without_rule: set[str] = set()
        self._backward = BackwardRows()
        self._routes = SampleOrder()
        self._evidence = ReadingEvidence(None)

    @property
    def reading(self) -> OutputReading | None:
        """How outputs are read, by the batches so far; ``None`` for a score that leaves nothing open."""
        return self.score.reading

    @property
    def full(self) -> bool:
        """Whether as many samples have been seen as were asked for."""
        return self.limit is not None and self.seen >= self.limit

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums over samples so far, by the reduction's names: for the diagonal, by parameter.

        Where several processes measure, each its own samples, their sums may be put here, and the numbers of their
        samples and positions into ``samples``, ``positions`` and ``seen``.
        """
        self.reduction.finish()
        return self.reduction.sums

    def read(self, batch: Any) -> Batch:
        """Return a batch as this model's are measured: a row may hold several samples, or a part may not count."""
        return self._reader.read(batch)

    def update(self, batch: Any) -> None:
        """Add a batch, or what is still wanted of it."""
        if self.full:
            return
        with isolated(self.model, self.parameters.values()):
            read = self.read(batch)
            own = read.targets if read.named else None  # as the model's own loss would be given them
            problem = problem_type(self.model, own) if self.score.reading is None else self._evidence.problem
            self._evidence = ReadingEvidence(read.targets, problem)
            if self.limit is not None:
                read = read[: self.limit - self.seen]
            with _explaining(read):
                step = self._samples_per_chunk(read)
                for first in range(0, read.size, step):
                    self._add_chunk(read[first : first + step])
            if not self.seen:
                refuse_replaced(self.model, {name: self.parameters[name] for name in self._of_the_model})
        self.seen += read.size

    def result_of(self, batches: Iterable[Any]) -> SampleImportance:
        """Add batches until there are no more or enough samples have been seen, and return the mean."""
        for batch in check_batches(batches):
            self.update(batch)
            if self.full:
                break
        return self.result()

    def result(self) -> SampleImportance:
        """Return the mean over the samples so far."""
        if self.samples == 0:
            raise BatchError(
                f"No sample to measure importance from: {self.seen} were given, all of them with ignored labels. Give "
                "batches with labels that count."
                if self.seen
                else "No sample to measure importance from: there were no batches. Give an iterable of inputs or of "
                "(inputs, targets); an iterator that was used before is at its end."
            )
        sums = self.sums
        known = {key: key for key in sums} | {key: key for key in self._names if self._names[key] in sums}
        values = {key: sums[self._names.get(key, key)] / self.samples for key in known}
        for name, value in values.items():
            if value.numel() and not all(map(math.isfinite, map(float, value.aminmax()))):
                raise NotFiniteError(
                    f"The importance of {name!r} is not finite after {self.samples} samples: the model's outputs or "
                    "gradients overflow. Check the inputs for NaN, and the weights for divergence."
                )
        fallback = dict.fromkeys(sorted(self._without_rule), self._fallback.way)
        outputs = None if self.reading is None else self.reading.description
        return SampleImportance(values, self.samples, fallback, outputs, self.positions / self.samples)

    def _samples_per_chunk(self, batch: Batch) -> int:
        """Return how many samples go forward together: 1 where samples cannot be told apart in the model's tensors."""
        if batch.size == 1:
            return 1
        shapes, rows = batch.sample_shapes(), None
        is_new = self._plan is None or shapes != self._planned_shapes
        if is_new:
            rows = self._find_or_make_plan(batch)
            self._planned_shapes = shapes
        if self._plan is None:
            return 1
        if rows is None:
            rows = self._rows_of_one(batch, self._plan.outputs)
        if is_new and self._widens:
            self.budget = enlarged_budget(self._least_budget, self._plan.bytes_of_sample(rows), free_bytes(self.device))
        most = self._plan.samples_within(self.budget, rows)
        if self.budget == CPU_BUDGET:
            most = min(most, CPU_SAMPLES)
        return math.ceil(batch.size / math.ceil(batch.size / most))  # chunks of one size, as nearly as can be

    def _rows_of_one(self, batch: Batch, outputs: Tensor) -> int:
        """Return how many rows the first sample has. Raise if the score does not fit its outputs."""
        targets = batch[:1].labels_for(outputs)
        return self._settled(outputs, targets).rows(outputs, targets, self.phi, None).count

    def _settled(self, outputs: Tensor, targets: Tensor | None) -> Score:
        """Return the score with what it leaves open settled by the batches so far."""
        self.score = self.score.settled(outputs, targets, self._evidence)
        return self.score

    def _find_or_make_plan(self, batch: Batch) -> int | None:
        """Plan with two samples of a batch. Raise ModelError if the model takes the batch and none of its parts.

        Returns how many rows the first sample has, where a plan was made: that was looked at on the way.
        """
        pair, rows = batch.pair(), None

        def accept(outputs: Tensor) -> None:
            nonlocal rows
            rows = self._rows_of_one(batch, outputs)

        key = plan_key(self.model, self.parameters, self._forward_given, pair.inputs)
        self._unchecked_key = None
        self._plan = self._plans.find(key)
        if self._plan is not None:
            return None
        try:
            self._plan = make_plan(self.model, self.parameters, self.forward, pair, accept)
        except AnchorholdError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            takes_whole = False
            with contextlib.suppress(Exception):  # the batch itself may be what it cannot take, and it has said so
                record(self.model, self.parameters, self.forward, batch.inputs)
                takes_whole = True
            if not takes_whole:
                raise
            raise ModelError(
                f"The model can be called with the {batch.size} samples of this batch, and not with one or two of them "
                f"({type(error).__name__}: {error}): they belong together, as the nodes of one graph do, or an input "
                "that belongs to no sample happens to have as many entries as the batch has samples (then use another "
                "batch size). Give samples that stand alone along the first dimension of every input: graphs, say, "
                "padded to one size."
            ) from error
        self._unchecked_key = key
        return rows

    def _plan_for(self, batch: Batch, uses: list[Use], outputs: Tensor) -> Plan | None:
        """Return a plan that fits this chunk, or ``None`` where only single samples can be told apart."""
        if batch.size == 1:
            return plan_for_one(uses, outputs)
        fits = self._plan is not None and self._plan.fits(uses, batch.size)
        if not fits:
            self._find_or_make_plan(batch)
            fits = self._plan is not None and self._plan.fits(uses, batch.size)
        if self._plan is not None and self._unchecked_key is not None:
            # The plan was made with this chunk's first sample. Two do not show what reaches further: so does the last.
            check_independent(self.model, self._plan.outputs, outputs[:1])
            if batch.size > 2:
                alone = record(self.model, self.parameters, self.forward, batch[batch.size - 1 :].inputs)[1]
                check_independent(self.model, alone, outputs[-1:])
            # Only now may others use the plan: chunks of one sample check nothing, and theirs may have several.
            self._plans.keep(self._unchecked_key, self._plan)
            self._unchecked_key = None
        return self._plan if fits else None

    def _add_chunk(self, batch: Batch) -> None:
        uses, outputs = record(self.model, self.parameters, self.forward, batch.inputs)
        check_outputs(outputs, batch.size)
        if not self.samples:
            refuse_nested_backward(outputs, self.parameters)
        self.classes = outputs.shape[1] if outputs.ndim == 2 and bool(outputs.isfinite().all()) else None
        plan = self._plan_for(batch, uses, outputs)
        sites: list[Site] = []
        without_rule: set[str] = set()
        if plan is not None:
            sites, without_rule = plan.sites(uses, outputs, self.parameters, self.reduction.coupled_parameters)
        if plan is None or (batch.size > 1 and not self._routes.keep_apart(outputs, sites)):
            for n in range(batch.size):
                self._add_chunk(batch[n : n + 1])
            return
        self._without_rule |= without_rule
        precise, labels = outputs.detach(), batch.labels_for(outputs)
        score = self._settled(outputs, labels)
        if labels is not None and not self._chooses_outputs:
            score.check_labels(outputs, labels, self.phi)
        if score.softmax:
            if not self.samples:
                warn_of_probabilities(next(score.logits(outputs)))
            precise = precise_outputs(self.model, self.forward, batch.inputs, outputs, score.logits(outputs.detach()))
        rows = score.rows(precise, labels, self.phi, self.generator)
        step = plan.rows_within(self.budget, batch.size)
        for start in range(0, rows.count, step):
            u = rows.block(start, min(rows.count, start + step)).to(outputs.dtype)
            if sites:
                together = plan.rows_together(self.budget, batch.size)
                self._add_rows(outputs, u, sites, together, first=start == 0)
            if without_rule:
                chosen = {name: self.parameters[name] for name in sorted(without_rule)}
                self._fallback.add(chosen, batch, u)
        self.samples += rows.samples
        self.positions += rows.positions

    def _add_rows(self, outputs: Tensor, u: Tensor, sites: list[Site], together: int, *, first: bool) -> None:
        """Send rows backward, and let the reduction add up what arrives at each use."""
        edges = [edge for site in sites for edge in site.edges]
        arrived = iter(self._backward.gradients_at(outputs, edges, u, together))
        arrivals = []
        used: dict[str, list[Part]] = {}
        for site in sites:
            delta = site.delta(list(itertools.islice(arrived, len(site.edges))))
            if delta is None:
                continue
            a = site.input(len(outputs))
            dtype = at_least_single(delta.dtype)
            a = a.to(dtype) if a.is_floating_point() else a
            arrivals.append(Arrival(site.use.rule, site.wanted, a, delta.to(dtype), first))
            for part in site.wanted.values():
                used.setdefault(part.name, []).append(part)
        apart = {name for name, parts in used.items() if len(parts) > 1 and not disjoint(parts)}
        coupled = self.reduction.coupled_parameters
        for arrival in arrivals:
            if not self.reduction.supports(arrival._replace(parts=without(arrival.parts, apart))):
                apart |= {part.name for part in arrival.parts.values() if part.name in coupled}
        apart |= {other for name in apart for other in coupled.get(name, ()) if other in used}
        for arrival in arrivals:
            alone = without(arrival.parts, apart)
            if alone:
                self.reduction.add(arrival._replace(parts=alone))
        for names in dict.fromkeys(coupled.get(name, (name,)) for name in used if name in apart):
            self._add_summed([name for name in names if name in used], arrivals)

    def _add_summed(self, names: list[str], arrivals: list[Arrival]) -> None:
        """Add parameters by their gradients. Those of several uses are summed first, since φ is of the sum."""
        found = [
            (part, role, arrival) for arrival in arrivals for role, part in arrival.parts.items() if part.name in names
        ]
        rows, samples = found[0][-1].delta.shape[:2]
        parameters = {name: self.parameters[name] for name in names}
        one = sum(p.numel() * at_least_single(p.dtype).itemsize for p in parameters.values())
        deep = max(1, min(rows, self.budget // max(1, 3 * one)))
        wide = 1 if self.reduction.one_sample_at_a_time else max(1, self.budget // max(1, 3 * one * deep))
        for n in range(0, samples, wide):
            for row in range(0, rows, deep):
                some = min(deep, rows - row), min(wide, samples - n)
                gradients = {
                    name: torch.zeros((*some, *p.shape), dtype=at_least_single(p.dtype), device=p.device)
                    for name, p in parameters.items()
                }
                for part, role, (rule, _, a, delta, _) in found:
                    own = rule.gradients(role, a[n : n + wide], delta[row : row + deep, n : n + wide])
                    part.within(gradients[part.name], lead=2).add_(own)
                self.reduction.add_gradients(gradients, lead=2)


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
    return accumulator.result_of(batches)


@contextlib.contextmanager
def _explaining(batch: Batch) -> Iterator[None]:
    """Add to an error of the model's own what it was called with."""
    try:
        yield
    except AnchorholdError:
        raise
    except Exception as error:
        error.add_note(
            f"This happened while importance was measured, with {batch.size} samples as inputs of shape "
            f"{describe_inputs(batch.inputs)}. Batches are inputs, (inputs, targets) or mappings with 'labels', as a "
            "DataLoader gives them; forward=lambda model, inputs: ... says how the model is called with the inputs."
        )
        raise


def enlarged_budget(budget: int, one: int, free: int | None) -> int:
    """Return how many bytes a chunk may take, given what one sample takes and what is free, if that is known."""
    return budget if free is None else max(budget, min(LARGE_SAMPLES * one, free // FREE_SHARE))
