"""The quadratic hold after a step: which weights are pulled how far, and how that is found in each form."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.errors import OptimizerError
from holdfast.forms import DiagonalMatrix, Matrix
from holdfast.guard.memory import Memory
from holdfast.guard.steps.bundles import Bundle, Several
from holdfast.guard.steps.reach import Reach, reaches_of, same_for_all_weights
from holdfast.holds.implicit import meeting, pull_implicitly_, pulled
from holdfast.holds.quadratic import displacement, matrix_at_hand
from holdfast.tensors.pieces import in_pieces
from holdfast.tensors.sharding import local
from holdfast.tensors.storage import at_hand, running_dtype


class ImplicitPull:
    """Pulls weights after steps, and remembers what that needs from before them."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._before: dict[str, Tensor] = {}
        """The weights before the step, where conjugate gradients will begin there."""
        self._diagonals: dict[str, tuple[Matrix, dict[str, Tensor]]] = {}
        """Those of the matrices that are searched with, by the block's name."""

    def begin(self, optimizer: Optimizer, bundles: Sequence[Bundle], owned: Mapping[str, nn.Parameter]) -> None:
        """Look at a step that is about to be taken.

        What has no gradient of the task's is moved too, by the pull alone, so it is handed a gradient of 0.
        """
        held = {name for matrix in self.memory.driving.held.values() for name in matrix.block.parameters}
        for bundle in bundles:
            for i, (name, parameter) in enumerate(zip(bundle.names, bundle.parameters, strict=True)):
                if name in held and parameter.is_complex():
                    raise OptimizerError(
                        f"implicit=True with {name!r}, which has complex weights: a step goes differently far along "
                        "their two parts. Leave implicit out, or the parameter out of protect."
                    )
                if name in held and parameter.grad is None:
                    bundle.handed[i] = parameter.grad = torch.zeros_like(parameter)
        self._before = {}
        for matrix in self.memory.driving.held.values():
            if not isinstance(matrix, DiagonalMatrix) and not self._at_once(optimizer, matrix, owned):
                names = [name for name in matrix.block.parameters if name in owned]
                self._before |= {name: owned[name].detach().clone() for name in names}

    def _at_once(self, optimizer: Optimizer, matrix: Matrix, owned: Mapping[str, nn.Parameter]) -> bool:
        """Whether a block's weights all go equally far, so that its own coordinates are those of the pull."""
        if not matrix.has_coordinates or not same_for_all_weights(optimizer):
            return False
        if not all(name in owned for name in matrix.block.parameters):
            return False
        found = reaches_of(optimizer, {name: owned[name] for name in matrix.block.parameters})
        return len({reach.rate for reach in found.values()}) <= 1

    def pull(self, optimizer: Optimizer, bundles: Sequence[Bundle], owned: Mapping[str, nn.Parameter]) -> None:
        """Pull all weights that are held, after the step that they have taken."""
        memory, before = self.memory, self._before
        self._before = {}
        reaches = reaches_of(optimizer, owned)
        if memory.driving.form.elementwise:
            for bundle in bundles:
                if bundle.held:
                    self._pull_bundle(bundle, reaches)
            return
        for key, matrix in memory.driving.held.items():
            names = [name for name in matrix.block.parameters if name in reaches]
            if not names:
                continue
            if isinstance(matrix, DiagonalMatrix):
                self._pull_alone(matrix.name, owned[matrix.name], reaches[matrix.name])
            elif any(name in before for name in names):
                self._pull_searching(key, matrix, {n: owned[n] for n in names}, reaches, before)
            else:
                self._pull_at_once(matrix, owned, next(reaches[name].rate for name in names))

    # Element by element

    def _pull_bundle(self, bundle: Bundle, reaches: Mapping[str, Reach]) -> None:
        own = [reaches.get(name) for name in bundle.names]
        first = own[0]
        alike = [reach for reach in own if reach is not None and first is not None and reach.is_like(first)]
        if not isinstance(bundle, Several) or self.memory.tilt or first is None or len(alike) < len(own):
            for name, parameter, reach in zip(bundle.names, bundle.parameters, own, strict=True):
                if reach is not None:
                    self._pull_alone(name, parameter, reach)
            return
        kept = [bundle.side_by_side(f"kept {i}", [reach.kept[i] for reach in alike]) for i in range(len(first.kept))]
        theta = bundle.weights("weights")
        self._walk(theta, *bundle.anchored(), first, kept, None)
        bundle.move()

    def _pull_alone(self, name: str, parameter: nn.Parameter, reach: Reach) -> None:
        memory = self.memory
        matrix = memory.driving.held[name]
        assert isinstance(matrix, DiagonalMatrix)
        omega, anchor = at_hand(matrix.omega, parameter), at_hand(memory.anchor[name], parameter)
        tilt = at_hand(memory.tilt[name], parameter) if name in memory.tilt else None
        self._walk(parameter.detach(), omega, anchor, reach, reach.kept, tilt)

    def _walk(
        self, theta: Tensor, omega: Tensor, anchor: Tensor, reach: Reach, kept: Sequence[Tensor], tilt: Tensor | None
    ) -> None:
        """Pull weights in pieces that stay in cache."""
        dtype, factor = running_dtype(theta), 2 * self.memory.strength
        leaning = [] if tilt is None else [tilt]
        for here, *more in in_pieces([theta, omega, anchor, *kept, *leaning]):
            own_omega, own_anchor, *rest = (each.to(dtype) for each in more)
            own_tilt = rest.pop() if leaning else None
            wide = here.to(dtype)
            pull_implicitly_(wide, own_omega, own_anchor, factor, reach.of(tuple(rest)), own_tilt)
            if wide is not here:
                here.copy_(wide)

    # Block by block

    def _pull_at_once(self, matrix: Matrix, owned: Mapping[str, nn.Parameter], rate: float | None) -> None:
        assert rate is not None
        d = displacement(matrix, owned, self.memory.anchor)
        largest = torch.finfo(next(iter(d.values())).dtype).max
        factor = min(2 * self.memory.strength * rate, largest)
        found = pulled(matrix_at_hand(matrix, d), d, factor, self._tilt(d))
        for name, pull in found.items():
            owned[name].detach().copy_(owned[name].detach().to(pull.dtype) - pull)

    def _pull_searching(
        self,
        key: str,
        matrix: Matrix,
        moved: Mapping[str, nn.Parameter],
        reaches: Mapping[str, Reach],
        before: Mapping[str, Tensor],
    ) -> None:
        memory = self.memory
        d = displacement(matrix, memory.parameters, memory.anchor)
        start = displacement(matrix, before, memory.anchor)
        here = matrix_at_hand(matrix, d)
        stiffness = {}
        for name in moved:
            reach = reaches[name]
            h = reach.of(tuple(local(each).to(d[name].dtype) for each in reach.kept))
            stiffness[name] = 1 / h if isinstance(h, Tensor) else torch.full_like(d[name], 1 / h)
        others = {name: each for name, each in d.items() if name not in moved}
        found = meeting(
            here,
            start,
            d,
            stiffness,
            self._diagonal(key, matrix, here),
            2 * memory.strength,
            others=others,
            tilt=self._tilt(d),
        )
        for name, parameter in moved.items():
            theta = parameter.detach()
            theta.copy_(theta.to(d[name].dtype) - (d[name] - found.x[name]))

    def _tilt(self, d: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        tilt = self.memory.tilt
        if not tilt.keys() & d.keys():
            return None
        return {n: at_hand(tilt[n], each).to(each.dtype) if n in tilt else torch.zeros_like(each) for n, each in d.items()}

    def _diagonal(self, key: str, matrix: Matrix, here: Matrix) -> dict[str, Tensor]:
        known = self._diagonals.get(key)
        if known is None or known[0] is not matrix:
            known = self._diagonals[key] = matrix, here.diagonal()
        return known[1]
