r"""The quadratic hold after a step: which weights are pulled how far, and how that is found in each form.

It may act after every k-th step alone, for k steps at once: with h the effective rate of each step,

.. math:: D \leftarrow \Bigl(1 + 2\sum_{i=1}^{k} c_i h_i\,Q\Bigr)^{-1} D.

That is Lie's splitting of the task's flow and the hold's (Trotter 1959), with an implicit Euler step for the hold's, so
that no strength and no k makes it overshoot. It is no reuse of an old gradient, which would be an explicit step as
large as k of them. Weights settle where the mean of the task's gradient over k steps balances the hold, and not at each
of them: the distance from there is of the order of k·h.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.adapters import refuse_merged_adapters
from anchorhold.errors import OptimizerError
from anchorhold.forms import DiagonalMatrix, Matrix
from anchorhold.guard.core import Core, Waiting
from anchorhold.guard.stepping.bundles import Bundle, Several
from anchorhold.guard.stepping.default_pull import give_up
from anchorhold.guard.stepping.optimizers.effective_rate import (
    EffectiveRate,
    check_blocks,
    check_effective_rate,
    check_pull_every,
    effective_rates,
)
from anchorhold.holds.base import displacement
from anchorhold.holds.of_weights.quadratic import pull_implicitly_, pulled
from anchorhold.tensors.pieces import in_pieces
from anchorhold.tensors.storage import running_dtype, to_compute

_NONE = Waiting(0, 0.0)


class ImplicitPull:
    """Pull weights after steps, where the quadratic hold is implicit."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def check(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> None:
        """Raise :class:`OptimizerError` if the pull after a step could not be found, while nothing has changed.

        Where the hold acts after steps by default, it joins the gradient from now on instead, with a warning.
        """
        core = self.core
        if not core.state.pulled_after:
            return
        form = core.state.driving.form
        try:
            check_pull_every(optimizer, core.state.pull_every.value)
            check_effective_rate(optimizer, form)  # a schedule may have set another momentum since attach()
            if not form.elementwise:
                held = core.state.driving.held.values()
                blocks = [matrix.block.parameters for matrix in held if not isinstance(matrix, DiagonalMatrix)]
                check_blocks(optimizer, form, blocks, owned)
        except OptimizerError as error:
            if not core.state.implicit.is_open:
                raise
            give_up(core.state, error)

    def begin(self, bundles: Sequence[Bundle]) -> None:
        """Give held parameters without a gradient one of 0, so that a step moves them by the pull alone."""
        for bundle in bundles:
            for i, (name, parameter) in enumerate(zip(bundle.names, bundle.parameters, strict=True)):
                if parameter.grad is None and name in self.core.state.driving.held_names:
                    bundle.handed[i] = parameter.grad = torch.zeros_like(parameter)

    def is_next(self, owned: Mapping[str, nn.Parameter]) -> bool:
        """Return whether some of these parameters are to be pulled after the step that they are about to take."""
        every, waiting = self.core.state.pull_every.value, self.core.task.waiting
        return every == 1 or any(waiting.get(name, _NONE).steps + 1 >= every for name in owned)

    def due(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> dict[str, EffectiveRate]:
        """Count the step that was taken; return, by parameter that is to be pulled now, the rate to pull it with.

        That is the step's own or, for several steps, the sum of theirs, each weighted by its strength against today's.
        """
        core = self.core
        rates, every, waiting = effective_rates(optimizer, owned), core.state.pull_every.value, core.task.waiting
        if every == 1 and not waiting:
            return rates
        found = {}
        held = core.state.driving.held_names
        for name, each in rates.items():
            if name not in held:
                continue
            assert each.rate is not None  # others are refused
            before = waiting.pop(name, _NONE)
            now = Waiting(before.steps + 1, before.way + core.state.strength * each.rate)
            if now.steps < every:
                waiting[name] = now
            else:
                found[name] = EffectiveRate(None, (now.way / core.state.strength,))
        return found

    @torch.no_grad()
    def finish(self) -> None:
        """Pull weights for all steps that still wait for it: training has ended, or pauses."""
        core, waiting = self.core, self.core.task.waiting
        if not waiting:
            return
        refuse_merged_adapters(core.runtime.model, {id(p) for p in core.runtime.parameters.values()})
        if core.state.implicit.value and core.state.anchor:
            parameters = core.runtime.parameters
            rates = {n: EffectiveRate(None, (w.way / self._strength,)) for n, w in waiting.items() if n in parameters}
            if core.state.driving.form.elementwise:
                for name in rates.keys() & core.state.driving.held.keys():
                    self._pull_alone(name, parameters[name], rates[name])
            else:
                self._pull_blocks(rates, parameters)
        waiting.clear()

    @property
    def _strength(self) -> float:
        """Return the strength that rates are told by; where none is left, any will do for steps that were held."""
        return self.core.state.strength or 1.0

    def pull(
        self, rates: Mapping[str, EffectiveRate], bundles: Sequence[Bundle], owned: Mapping[str, nn.Parameter]
    ) -> None:
        """Pull all weights that are held, after the steps that they have taken."""
        core = self.core
        if core.state.driving.form.elementwise:
            for bundle in bundles:
                if bundle.held:
                    self._pull_bundle(bundle, rates)
        else:
            self._pull_blocks(rates, owned)

    def _pull_blocks(self, rates: Mapping[str, EffectiveRate], owned: Mapping[str, nn.Parameter]) -> None:
        for matrix in self.core.state.driving.held.values():
            first = next((rates[name] for name in matrix.block.parameters if name in rates), None)
            if first is None:
                continue
            if isinstance(matrix, DiagonalMatrix):
                self._pull_alone(matrix.name, owned[matrix.name], first)
            else:
                self._pull_block(matrix, owned, first.rate)

    # Element by element

    def _pull_bundle(self, bundle: Bundle, rates: Mapping[str, EffectiveRate]) -> None:
        own = list(map(rates.get, bundle.names))
        first = own[0]
        alike = [rate for rate in own if rate and first and (rate is first or rate.is_like(first))]
        if isinstance(bundle, Several) and not self.core.state.linear_term and first and len(alike) == len(own):
            kept = [bundle.side_by_side(f"kept {i}", [rate.kept[i] for rate in alike]) for i in range(len(first.kept))]
            self._pull_in_pieces(bundle.weights("weights"), *bundle.anchored(), first, kept, None)
            bundle.move()
            return
        for name, parameter, rate in zip(bundle.names, bundle.parameters, own, strict=True):
            if rate is not None:
                self._pull_alone(name, parameter, rate)

    def _pull_alone(self, name: str, parameter: nn.Parameter, rate: EffectiveRate) -> None:
        core = self.core
        matrix = core.state.driving.held[name]
        assert isinstance(matrix, DiagonalMatrix)
        omega, anchor = to_compute(matrix.omega, parameter), to_compute(core.state.anchor[name], parameter)
        linear_term = self._linear_term(name, parameter) if name in core.state.linear_term else None
        self._pull_in_pieces(parameter.detach(), omega, anchor, rate, rate.kept, linear_term)

    def _pull_in_pieces(
        self,
        theta: Tensor,
        omega: Tensor,
        anchor: Tensor,
        rate: EffectiveRate,
        kept: Sequence[Tensor],
        linear_term: Tensor | None,
    ) -> None:
        """Pull weights as ``pull_implicitly_`` does, in pieces that stay in cache."""
        dtype, factor = running_dtype(theta), 2 * self._strength
        linear = [] if linear_term is None else [linear_term]
        for here, *more in in_pieces([theta, omega, anchor, *kept, *linear]):
            own_omega, own_anchor, *rest = [each.to(dtype) for each in more]
            own_linear = rest.pop() if linear else None
            wide = here.to(dtype)
            pull_implicitly_(wide, own_omega, own_anchor, factor, rate.of(tuple(rest)), own_linear)
            # .to() returns the very tensor where it has that precision already.
            if wide is not here:
                here.copy_(wide)

    # Block by block

    def _pull_block(self, matrix: Matrix, owned: Mapping[str, nn.Parameter], rate: float | None) -> None:
        assert rate is not None
        d = displacement(matrix, owned, self.core.state.anchor)
        # An infinite factor would be NaN times an eigenvalue of 0.
        factor = min(2 * self._strength * rate, torch.finfo(next(iter(d.values())).dtype).max)
        known = self.core.state.linear_term
        linear_term = None
        if known.keys() & d.keys():
            linear_term = {
                n: self._linear_term(n, x).to(x.dtype) if n in known else torch.zeros_like(x) for n, x in d.items()
            }
        for name, pull in pulled(matrix.to_compute(d), d, factor, linear_term).items():
            if name not in owned:  # its layer has lost it since
                continue
            theta = owned[name].detach()
            # In the precision of the pull, and rounded once.
            theta.copy_(theta.to(pull.dtype) - pull)

    def _linear_term(self, name: str, like: Tensor) -> Tensor:
        """Return r of a parameter, by as much less as its strength is less than the largest: Q is so already."""
        strengths = self.core.state.driving.strengths
        own = to_compute(self.core.state.linear_term[name], like)
        return own if strengths is None else own * strengths.factor([name])
