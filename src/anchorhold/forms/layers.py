"""A layer's weight and bias as one matrix [W b], outputs × inputs, and the settings of the forms that take it so."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from anchorhold.engine.reductions import Block, FactorReduction, Side, Sides, sums_shape
from anchorhold.errors import StateError
from anchorhold.forms.base import Form, Matrix, checked_damping
from anchorhold.forms.diagonal import Diagonal, DiagonalMatrix
from anchorhold.forms.sums import SumMatrix
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import added, changed, choice, require, whole_number, yes_or_no
from anchorhold.tensors.matrices import Precision

DAMPING = 0.001
"""The default damping. Without any, directions that no sample of a task has touched, such as those of units that were
dead at its end, are free at any strength."""


@dataclasses.dataclass(frozen=True)
class LayerForm(Form):
    """A form of layers' matrices; parameters that make no matrix, such as the scale of a norm, have a diagonal."""

    largest_side: int = 8192
    damping: float = changed(DAMPING, at_first=0.0)
    outputs: Side = "dense"
    inputs: Side = "dense"
    _: dataclasses.KW_ONLY
    largest_block: int = added(1024)
    rank: int = added(256)
    bits: int = added(32)
    share_inputs: bool = added(False)

    side_choices: ClassVar[tuple[Side, ...]] = get_args(Side)
    """The choices for ``outputs`` and ``inputs``."""

    def __post_init__(self) -> None:
        expected = "a whole number of at least 1"
        object.__setattr__(self, "largest_side", whole_number("largest_side", self.largest_side, expected, least=1))
        object.__setattr__(self, "damping", checked_damping(self.damping))
        for side in ("outputs", "inputs"):
            choice(side, getattr(self, side), self.side_choices)
        for name in ("largest_block", "rank"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), expected, least=1))
        require(self.bits in (16, 32), f"bits={self.bits!r}", "16 or 32")
        yes_or_no("share_inputs", self.share_inputs)

    @property
    def has_shared_tensors(self) -> bool:
        """True if layers that see the same inputs have their input factor, or its eigenvectors, in common."""
        return self.share_inputs

    @property
    def measuring_precision(self) -> Precision | None:
        """The precision of products while measuring; ``None`` for the process's own."""
        # TF32 has three bits more than the bfloat16 that is kept: so a GPU's matrix units can be used, and inputs of 16
        # bits are not rounded at all.
        return "tf32" if self.bits == 16 else None

    @property
    def storage_dtype(self) -> torch.dtype | None:
        """bfloat16 with ``bits=16``, whatever dtype the anchor is stored in."""
        return torch.bfloat16 if self.bits == 16 else None

    @abstractmethod
    def matrix(self, measure: SampleMeasure, block: Block, means: Mapping[str, Tensor]) -> Matrix:
        """Return one task's Q of a layer."""

    @abstractmethod
    def restore_matrix(self, block: Block, tensors: Mapping[str, Tensor]) -> Matrix:
        """Return one task's Q of a layer, whose state these tensors are; raise an error if they cannot be."""

    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return [W b] of every layer, W if the bias is not among the parameters, and all others by themselves."""
        return layer_blocks(model, parameters)

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return Q of every layer, and Ω of every other parameter."""
        found: dict[str, Matrix] = {}
        for block in blocks:
            if block.is_matrix:
                own = self.matrix(measure, block, means)
                found[block.name] = SumMatrix([own]) if self.has_matrix_per_task else own
            else:
                omega = measure.transform(means[block.name])
                omega = omega + self.damping * omega.mean() if self.damping else omega
                found[block.name] = DiagonalMatrix(block.name, omega)
        return found

    def restore(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        if not block.is_matrix:
            return Diagonal().restore(block, tensors, parameters)
        if self.has_matrix_per_task:
            return SumMatrix.restore(tensors, lambda own: self.restore_matrix(block, own))
        return self.restore_matrix(block, tensors)

    @property
    def wanted_sides(self) -> Sides:
        """The choices for a layer's two sides, unless the layer is too large for them."""
        return Sides(self.outputs, self.inputs)

    def sides(self, block: Block) -> Sides:
        """Return how a block's two factors are kept: whole if one block, or the rank, has room for all of it."""
        found: list[Side] = []
        for wanted, size, looked_up in zip(self.wanted_sides, block.size, (False, block.looked_up), strict=True):
            if wanted in ("diagonal", "identity"):
                found.append(wanted)
            elif looked_up:  # an embedding's inputs are one-hot, and their factor is a diagonal
                found.append("diagonal")
            elif wanted == "blocks" and size > self.largest_block:
                found.append("blocks")
            elif size > self.largest_side:
                found.append("diagonal")
            else:
                found.append("lowrank" if wanted == "lowrank" and size > self.rank else "dense")
        return Sides(*found)

    def notices(self, blocks: Sequence[Block]) -> list[str]:
        """Return a message for each side that is too large to be kept whole."""
        found = []
        for block in blocks:
            wanted = zip(self.wanted_sides, block.size, ("outputs", "inputs"), strict=True) if block.is_matrix else ()
            for side, size, what in wanted:
                if side not in ("dense", "lowrank") or size <= self.largest_side:
                    continue
                if what == "inputs" and block.looked_up:
                    continue
                found.append(
                    f"{block.name!r} has {size:,} {what}, and all of their factor would take {4e-9 * size**2:.3g} GB "
                    f"in single precision, so only its diagonal is kept (largest_side={self.largest_side:,}). To have "
                    f"all of it give form={type(self).__name__}(largest_side={size}), to have it in blocks "
                    f"{what}='blocks'; to hold that layer not at all, leave it out of protect=."
                )
        return found

    def factors(
        self, measure: SampleMeasure, blocks: Sequence[Block], parameters: Mapping[str, nn.Parameter]
    ) -> FactorReduction:
        """Return the sums of every layer's factors, and of the diagonal of every other parameter."""
        single = [block.name for block in blocks if not block.is_matrix]
        sides = {block.name: self.sides(block) for block in blocks if block.is_matrix}
        precision = self.measuring_precision
        return FactorReduction(measure.phi, blocks, parameters, single, sides, self.largest_block, precision)

    def basis_shape(self, side: Side, size: int) -> tuple[int, ...]:
        """Return the shape of a side's eigenvectors."""
        return (size, self.rank) if side == "lowrank" else sums_shape(side, size, self.largest_block)

    def values_length(self, side: Side, size: int) -> int:
        """Return the length of a side's eigenvalues: at low rank, one for each column and one for the rest."""
        return self.rank + 1 if side == "lowrank" else size


def layer_blocks(model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
    """Return the parameters in blocks: each weight with its bias if that is given too, all others by themselves."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: dict[str, Block] = {}
    for module in model.modules():
        own = {name: p for name, p in module.named_parameters(recurse=False) if id(p) in names}
        for name, weight in own.items():
            if weight.ndim < 2 or not weight.numel() or names[id(weight)] in found:
                continue
            inputs_first = _lies_inputs_first(module, name, weight)
            bias = own.get(name.replace("weight", "bias")) if "weight" in name else None
            outputs = weight[0].numel() if inputs_first else weight.shape[0]
            fits = bias is not None and bias.shape == (outputs,) and names[id(bias)] not in found
            block = Block(
                names[id(weight)],
                tuple(names[id(p)] for p in ((weight, bias) if fits else (weight,))),
                tuple(weight.shape),
                inputs_first,
                isinstance(module, nn.Embedding),
            )
            found |= dict.fromkeys(block.parameters, block)
    ordered = [found.get(name, Block(name, (name,))) for name in parameters]
    return list(dict.fromkeys(ordered))


def _lies_inputs_first(module: nn.Module, name: str, weight: Tensor) -> bool:
    """Return whether a weight lies as ``[inputs, outputs]``: by the kind of its layer, else by the bias that fits."""
    if isinstance(module, nn.Embedding | _ConvTransposeNd):
        return True
    if isinstance(module, nn.Linear | _ConvNd):
        return False
    bias = getattr(module, name.replace("weight", "bias"), None) if "weight" in name else None
    if not isinstance(bias, Tensor) or bias.ndim != 1 or weight.ndim != 2:
        return False
    # Hugging Face's Conv1D, of GPT-2, says how many outputs it has as `nf`; its square layers look like any other.
    return bias.shape[0] != weight.shape[0] or getattr(module, "nf", None) == weight.shape[1]


def refuse_other_shapes(block: Block, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a :class:`~anchorhold.errors.StateError` unless tensors have these names and shapes."""
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if given != shapes:
        raise StateError(
            f"The importance of {block.name!r} is made of {given}; expected {dict(shapes)}. The state was made for "
            "another model, or with another form."
        )
