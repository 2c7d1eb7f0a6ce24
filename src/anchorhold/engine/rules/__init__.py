"""The layer rules, by the function each of them stands for.

To add one, write a :class:`~anchorhold.engine.rules.base.Rule` and enter here how it binds the function's arguments.
A binding that returns ``None`` leaves that call to the fallback.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorhold.engine.rules.base import Rule
from anchorhold.engine.rules.convolution import Convolution
from anchorhold.engine.rules.elementwise import Expansion, Scale, Shift
from anchorhold.engine.rules.embedding import Embedding
from anchorhold.engine.rules.linear import Linear, Projection
from anchorhold.engine.rules.normalisation import Normalisation

RULES: dict[Callable[..., Any], Callable[..., Rule | None]] = {
    F.linear: Linear.bind,
    torch.matmul: Projection.of_matmul,
    Tensor.matmul: Projection.of_matmul,
    Tensor.__matmul__: Projection.of_matmul,
    torch.addmm: Projection.of_addmm,
    F.conv1d: Convolution,
    F.conv2d: Convolution,
    F.conv3d: Convolution,
    F.layer_norm: Normalisation.of_layer_norm,
    F.rms_norm: Normalisation.of_rms_norm,
    F.group_norm: Normalisation.of_group_norm,
    F.batch_norm: Normalisation.of_batch_norm,
    F.embedding: Embedding.bind,
    torch.add: Shift.bind,
    Tensor.add: Shift.bind,
    Tensor.__add__: Shift.bind,
    Tensor.__radd__: Shift.bind,
    Tensor.add_: Shift.bind,
    Tensor.__iadd__: Shift.bind,
    torch.mul: Scale.bind,
    Tensor.mul: Scale.bind,
    Tensor.__mul__: Scale.bind,
    Tensor.__rmul__: Scale.bind,
    Tensor.expand: Expansion.bind,
}

__all__ = ["RULES", "Rule"]
