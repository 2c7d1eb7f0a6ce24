"""The weights of a block, of the whole network above all, as one vector, and the forms that take them so."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import Block
from anchorhold.errors import ModelError, ProtectError
from anchorhold.forms.base import Form, checked_damping, is_mean_of_squares
from anchorhold.forms.layers import layer_blocks
from anchorhold.measures.base import Measure
from anchorhold.settings import choice
from anchorhold.tensors.names import named_parameters

Span = Literal["network", "layers"]
"""The parameters of one matrix: all together, or those of each layer."""


@dataclasses.dataclass(frozen=True)
class VectorForm(Form):
    """A form of H, the mean of ggᵀ, with g the gradient of all weights of a block as one vector."""

    span: Span = "network"
    damping: float = 0.0

    def __post_init__(self) -> None:
        choice("span", self.span, get_args(Span))
        object.__setattr__(self, "damping", checked_damping(self.damping))

    def supports(self, measure: Measure) -> bool:
        """Return whether a measure is a mean of squares."""
        return is_mean_of_squares(measure)

    def check_model(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        """Raise an error if parameters make no vector, or one that is too long."""
        self.blocks(model, parameters)

    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return all parameters as one block, sorted by name, or those of each layer.

        Raise a :class:`~anchorhold.errors.ModelError` if the parameters of a block lie on several devices.
        """
        if self.span == "layers":
            groups = {block.name: block.parameters for block in layer_blocks(model, parameters)}
        else:
            taken = {name for name, _ in named_parameters(model, remove_duplicate=False)}
            whole = "network"
            while whole in taken:  # a block may not have the name of a parameter outside it
                whole = f"the {whole}"
            groups = {whole: tuple(sorted(parameters))}
        found = []
        for name, members in groups.items():
            own = {member: parameters[member] for member in members}
            places = {parameter.device for parameter in own.values()}
            if len(places) > 1:
                raise ModelError(
                    f"The parameters from {next(iter(own))!r} on lie on {', '.join(sorted(map(str, places)))}; "
                    f"expected one device, since the form {self.name!r} has one matrix over all of their weights. Take "
                    f"{type(self).__name__}(span='layers'), or another form."
                )
            found.append(Block(name, members, shapes=tuple(tuple(p.shape) for p in own.values())))
        return found


def places_in(block: Block, earlier: Block) -> Tensor:
    """Return the places of an earlier block's weights in a block of more parameters.

    Raise a :class:`~anchorhold.errors.ProtectError` if the block lacks a parameter of the earlier one.
    """
    if gone := [name for name in earlier.parameters if name not in block.parameters]:
        raise ProtectError(
            f"{gone[0]!r} was consolidated in one matrix with {len(earlier.parameters) - 1} other parameters, and is "
            f"no longer protected, or in the model. Put it back, or call forget({gone[0]!r}) to delete the whole "
            "matrix, and of what was learned there."
        )
    numbers = torch.arange(block.length).split([torch.Size(shape).numel() for shape in block.shapes])
    by_name = dict(zip(block.parameters, numbers, strict=True))
    return torch.cat([by_name[name] for name in earlier.parameters])
