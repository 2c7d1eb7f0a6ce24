r"""Projection of the step: what a layer makes of old inputs stays as it is, and the rest is free to learn.

A layer :math:`y = [W\ b]\bar a` answers old inputs as before if its step D has :math:`D\bar a = 0` for them. So after
each task the space of the layer's inputs is kept, and each later step is projected onto what lies beside it: GPM (Saha
et al. 2021, arXiv 2103.09762) and, softly, OWM (Zeng et al. 2019, arXiv 1810.01256). Those project gradients, of plain
SGD. Here it is the *step* that is projected, after it was taken, so that momentum, Adam's scaling and weight decay do
not lead back into that space.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from anchorhold.engine.batches import check_batches
from anchorhold.engine.layer_inputs import ACROSS, LayerInputs, across, inputs_of, left_out
from anchorhold.engine.reductions import Block, joined, taken_apart
from anchorhold.errors import BatchError, ConfigurationError, ProtectError, StateError
from anchorhold.forms.layers import layer_blocks
from anchorhold.holds.base import Held, Hold
from anchorhold.holds.input_spaces import HardSpace, InputSpace, SoftSpace
from anchorhold.settings import choice, first_match, number, numbers_by_pattern, whole_number
from anchorhold.tensors.matrices import products_in
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import is_finite, is_sharded
from anchorhold.tensors.storage import running_dtype

Method = Literal["gpm", "owm"]
Rest = Literal["free", "freeze"]

_REST = "#rest"

_SHARE = "a share above 0, up to 1, or shares by patterns of layers' names, such as {'0.*': 0.95, '*': 0.99}"


class _Layer(NamedTuple):
    """A layer whose steps are projected."""

    block: Block
    space: InputSpace | None
    """Of its inputs; ``None`` where the weight is only used from its other side."""
    across: InputSpace | None
    """Of the inputs from that side, as a tied embedding has."""

    def left_of(self, d: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what is left of a step; of weight and bias, one may not move."""
        weight, *bias = self.block.parameters
        found, space = dict(d), self.space
        if space is not None and weight not in d:
            own = space.of_some(slice(-1, None))
            return {bias[0]: own.left_of(d[bias[0]].unsqueeze(-1)).squeeze(-1)}
        if space is not None:
            moved = self.block._replace(parameters=tuple(name for name in self.block.parameters if name in d))
            own = space if moved == self.block else space.of_some(slice(-1))
            found = taken_apart(moved, own.left_of(joined(moved, d)))
        if self.across is not None and weight in d:
            other = across(self.block)
            found |= taken_apart(other, self.across.left_of(joined(other, found)))
        return found


class Projection(Hold):
    r"""Lets no step change what layers make of old inputs.

    It needs the data of each task at its end, ``consolidate(batches)``, a copy of the layers' weights while a step is
    taken, and n × k numbers for each layer of n inputs of which k directions are closed. Norms, and biases whose weight
    is not protected, have no space of inputs: ``rest`` says what becomes of them.

    Args:
        threshold: of GPM, the share of each layer's inputs, as a sum of squares, that is kept; also by patterns of
            layers' names, of which the first that matches counts. 1 keeps all of it, up to rounding.
        samples: of how many samples of each task, the first ones that are given (so shuffle them), each process takes
            layers' inputs; ``None`` for all.
        method: ``"gpm"`` closes directions wholly, ``"owm"`` softly: a direction that carries λ of the inputs' sum of
            squares, summed over tasks, keeps α/(α + λ) of its step.
        alpha: of OWM, that α, in units of a mean square of inputs.
        rest: what becomes of protected parameters that cannot be projected: they stay ``"free"``, and a warning names
            them, or after the first task they are frozen (``"freeze"``).
        largest_side: layers with more inputs than this count as the rest, since their correlation would take the square
            of it: 8192 is 512 MiB in double precision, while a task is consolidated.
    """

    takes_batches = True

    def __init__(
        self,
        threshold: float | Mapping[str, float] = 0.97,
        samples: int | None = 1000,
        *,
        method: Method = "gpm",
        alpha: float = 0.01,
        rest: Rest = "free",
        largest_side: int = 8192,
    ) -> None:
        super().__init__()
        choice("method", method, get_args(Method))
        choice("rest", rest, get_args(Rest))
        self.threshold = numbers_by_pattern("threshold", threshold, _SHARE, lambda share: 0 < share <= 1)
        expected = "a whole number of at least 1"
        self.samples = None if samples is None else whole_number("samples", samples, f"{expected}, or None", least=1)
        self.method: Method = method
        self.alpha = float(number("alpha", alpha, "a number above 0", lambda given: given > 0))
        self.rest: Rest = rest
        self.largest_side = whole_number("largest_side", largest_side, expected, least=1)
        self._spaces: dict[str, InputSpace] = {}
        """By the names of a block's parameters and the side that inputs are on."""
        self._rest: dict[str, str] = {}
        """The protected parameters that cannot be projected, and why."""
        self._layers: list[_Layer] | None = None
        self._before: dict[str, Tensor] = {}

    # What there is to read

    def __repr__(self) -> str:
        own = f"threshold={self.threshold}" if self.method == "gpm" else f"method='owm', alpha={self.alpha:g}"
        lines = [f"Projection({own}, samples={self.samples})" + ("" if self._spaces else ": no task yet")]
        for key, space in self._spaces.items():
            names, _, side = key.rpartition("#")
            kind = "rows" if space.kept.ndim == 1 else "dimensions of its inputs"
            where = ", from its other side" if f"#{side}" == ACROSS else ""
            lines.append(f"{names.replace('+', ', ')}: {space.free:.4g} of {space.size} {kind} free{where}")
        return "\n  ".join(lines)

    @property
    def free(self) -> dict[str, float]:
        """How many dimensions of its inputs each layer is left to learn in, by the weight's name."""
        found: dict[str, float] = {}
        for key, space in self._spaces.items():
            weight = key.rpartition("#")[0].partition("+")[0]
            found[weight] = min(found.get(weight, space.free), space.free)
        return found

    def told(self) -> str:
        free = self.free
        least = min(free, key=free.__getitem__, default=None)
        return f"{self.method}" + (
            "" if least is None else f", {free[least]:g} dimensions left in {least!r}, the fewest"
        )

    def waits(self, tasks: int) -> bool:
        """Whether there is no space of old inputs yet."""
        return not tasks and not self._spaces

    def notices(self) -> list[str]:
        """Say which parameters are not projected, and which layers cannot learn any more."""
        found = []
        if self._rest and self.rest == "free":
            names = sorted(self._rest)
            more = f" and {len(names) - 1} other protected parameter{'s' if names[2:] else ''}" if names[1:] else ""
            found.append(
                f"The projection does not hold {names[0]!r} ({self._rest[names[0]]}){more}: no space of inputs is "
                "known there. Give Projection(rest='freeze'), which freezes what it cannot project, or leave them to "
                "another hold."
            )
        way_out = "a lower threshold" if self.method == "gpm" else "a larger alpha"
        found += [
            f"The inputs of {name!r} fill all of its space, so that the projection lets it learn nothing more. Give "
            f"{way_out}, or a wider layer."
            for name, free in self.free.items()
            if free < 0.5
        ]
        return found

    def settings(self) -> dict[str, Any]:
        names = ("threshold", "samples", "method", "alpha", "rest", "largest_side")
        return {name: getattr(self, name) for name in names}

    # Steps

    def begin_task(self, held: Held) -> None:
        """Refuse what cannot be projected, before the first step."""
        _refuse_sharded(held)
        self._layers = None

    def before_step(self, held: Held) -> None:
        """Remember the weights of layers that are projected."""
        for name, parameter in self._kept_back(held):
            before = self._before.get(name)
            like = (parameter.shape, parameter.dtype, parameter.device)
            if before is None or (before.shape, before.dtype, before.device) != like:
                self._before[name] = parameter.detach().clone()
            else:
                before.copy_(parameter.detach())

    def _kept_back(self, held: Held) -> "Iterable[tuple[str, Tensor]]":
        names = {name for layer in self._known(held) for name in layer.block.parameters}
        if self.rest == "freeze":
            names |= self._rest.keys()
        return ((name, parameter) for name, parameter in held.parameters.items() if name in names)

    @torch.no_grad()
    def after_step(self, held: Held) -> None:
        """Take back the part of the step that old inputs would see."""
        stepped = {name: parameter for name, parameter in self._kept_back(held) if name in self._before}
        for layer in self._known(held) if stepped else ():
            moved = {name: stepped.pop(name) for name in layer.block.parameters if name in stepped}
            if not moved:
                continue
            before = {name: self._before[name].to(running_dtype(p)) for name, p in moved.items()}
            d = {name: p.detach().to(before[name].dtype) - before[name] for name, p in moved.items()}
            with products_in("float32", next(iter(d.values())).device):
                left = layer.left_of(d)
            for name, parameter in moved.items():
                parameter.copy_(before[name] + left[name])
        for name, parameter in stepped.items():  # the rest, which is frozen
            parameter.copy_(self._before[name])

    def _known(self, held: Held) -> list[_Layer]:
        """Return the layers that are projected, their spaces where the weights are: looked up once a task."""
        if self._layers is None:
            present = dict(named_parameters(held.model))
            names = [name for key in self._spaces for name in _names(key)]
            if gone := [name for name in names if name not in present]:
                raise StateError(
                    f"The projection has the inputs of a layer {gone[0]!r}, which this model has not. It was made for "
                    f"another model; for a layer that was taken away on purpose, call forget({gone[0]!r})."
                )
            blocks = layer_blocks(held.model, {name: present[name] for name in present if name in names})
            self._layers = [self._layer(block, present[block.parameters[0]]) for block in blocks]
        return self._layers

    def _layer(self, block: Block, weight: Tensor) -> _Layer:
        spaces = []
        for key, size in ((_key(block), block.size[1]), (_key(across(block)), block.size[0])):
            space = self._spaces.get(key)
            if space is not None and space.size != size:
                raise StateError(
                    f"The projection has {space.size} inputs of {block.name!r}, which has {size}. It was made for "
                    f"another model; if the layer was replaced on purpose, call forget({block.name!r})."
                )
            like = (weight.device, running_dtype(weight))
            if space is not None and (space.kept.device, space.kept.dtype) != like:
                space = self._spaces[key] = self._space(space.kept.to(*like))
            spaces.append(space)
        return _Layer(block, *spaces)

    # Tasks

    def task_sums(self, held: Held) -> dict[str, Tensor]:
        """Return the sums of layers' inputs over the data of a task."""
        _refuse_sharded(held)
        assert held.data.batches is not None  # the guard has seen to it
        blocks = layer_blocks(held.model, held.parameters)
        inputs = LayerInputs(held.model, blocks, held.parameters, held.data.forward, self.samples, self.largest_side)
        for batch in check_batches(held.data.batches):
            inputs.update(batch)
            if inputs.full:
                break
        return inputs.sums

    def end_task(self, held: Held) -> None:
        """Add the directions in which this task's inputs lie."""
        if not held.sums["samples"]:
            raise BatchError(
                "The hold 'projection' was given no sample: there were no batches. Give an iterable of inputs or of "
                "(inputs, targets); an iterator that was used before is at its end."
            )
        blocks = layer_blocks(held.model, held.parameters)
        self._refuse_other_blocks(blocks)
        spaces, rest = dict(self._spaces), dict(self._rest)
        for block in blocks:
            reason = left_out(block, held.sums) if block.is_matrix else "no matrix"
            if reason is not None:
                rest |= dict.fromkeys(block.parameters, reason)
                continue
            dtype = running_dtype(held.parameters[block.parameters[0]])
            for side in (block, across(block)):
                a = inputs_of(side, held.sums)
                if a is not None:
                    spaces[_key(side)] = self._grown(side, spaces.get(_key(side)), a, dtype)
        self._spaces, self._rest, self._layers = spaces, rest, None

    def _grown(self, block: Block, space: InputSpace | None, a: Tensor, dtype: torch.dtype) -> InputSpace:
        """Return the space of a layer's inputs with those of another task."""
        if space is not None and (space.kept.ndim == 1) != (a.ndim == 1):
            raise ConfigurationError(
                f"The inputs of {block.parameters[0]!r} were looked up in one task, and multiplied with in another; "
                "expected one of both. Leave it out of protect=."
            )
        if self.method == "owm":
            soft = space if isinstance(space, SoftSpace) else SoftSpace.nothing(a, dtype, self.alpha)
            return soft.grown(a)
        hard = space if isinstance(space, HardSpace) else HardSpace.nothing(a, dtype)
        if not isinstance(self.threshold, dict):
            return hard.grown(a, self.threshold)
        pattern = first_match(self.threshold, block.parameters[0])
        if pattern is None:
            raise ConfigurationError(
                f"threshold={self.threshold} says nothing of the layer {block.parameters[0]!r}. Give one for all "
                "others, by '*'."
            )
        return hard.grown(a, self.threshold[pattern])

    def _refuse_other_blocks(self, blocks: Iterable[Block]) -> None:
        """Refuse a layer whose bias has come to be protected, or is no longer, since its inputs were kept."""
        for block in blocks:
            for key in self._spaces:
                names = _names(key)
                if names[0] == block.parameters[0] and not key.endswith(ACROSS) and names != block.parameters:
                    raise ProtectError(
                        f"The projection knows the inputs of {names}, and the layer's protected parameters are now "
                        f"{block.parameters}. Protect the same ones in every task, or call forget({block.name!r}) to "
                        "delete what was kept there."
                    )

    def forget(self, name: str) -> None:
        """Let go of the layer that a parameter is part of."""
        self._rest = dict(self._rest)
        self._spaces = {key: space for key, space in self._spaces.items() if name not in _names(key)}
        self._rest.pop(name, None)
        self._before.pop(name, None)
        self._layers = None

    # State

    def state(self) -> dict[str, Tensor]:
        """Return all spaces, and a mark for each parameter of the rest."""
        marks = {f"{name}{_REST}": torch.zeros(1) for name in self._rest}
        return {key: space.kept for key, space in self._spaces.items()} | marks

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        spaces = {key: kept for key, kept in state.items() if not key.endswith(_REST)}
        for key, kept in spaces.items():
            square = self.method == "gpm" or kept.shape[:1] == kept.shape[1:]
            if "#" not in key or not (kept.ndim == 1 or (kept.ndim == 2 and square)) or not is_finite(kept):
                raise StateError(
                    f"The state of the projection has {key!r} of shape {tuple(kept.shape)}; expected the directions of "
                    "a layer's inputs. It was saved by another hold of that name, or is damaged."
                )
        self._spaces = {key: self._space(kept) for key, kept in spaces.items()}
        self._rest = {key.removesuffix(_REST): "as before" for key in state if key.endswith(_REST)}
        self._layers = None

    def _space(self, kept: Tensor) -> InputSpace:
        return HardSpace(kept) if self.method == "gpm" else SoftSpace(kept, self.alpha)

    def snapshot(self) -> Any:
        """Return the spaces: none of them is ever changed in place."""
        return self._spaces, self._rest

    def roll_back(self, snapshot: Any) -> None:
        self._spaces, self._rest = snapshot
        self._layers = None


def _key(block: Block) -> str:
    """Return what a space is kept by: all parameters of its block, since others would make another space."""
    side = ACROSS if block.name.endswith(ACROSS) else "#inputs"
    return "+".join(block.parameters) + side


def _names(key: str) -> tuple[str, ...]:
    return tuple(key.rpartition("#")[0].split("+"))


def _refuse_sharded(held: Held) -> None:
    sharded = [name for name, parameter in held.parameters.items() if is_sharded(parameter)]
    if sharded:
        raise ConfigurationError(
            f"The hold 'projection' with parameters that are spread over processes, such as {sharded[0]!r}: it needs "
            "whole layers. Use DDP, or leave the hold out."
        )
