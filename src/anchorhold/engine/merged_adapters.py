"""Adapters that are merged into the weights they adapt, as PEFT's ``merge_adapter()`` does.

The outputs follow from the merged weights alone then, and what is merged has no gradient: its importance would be 0.
Known by what such layers have, so that no library of adapters is asked for.
"""

from collections.abc import Mapping

from torch import nn

from anchorhold.adapters import TWIN
from anchorhold.errors import ModelError


def refuse_merged(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise if some of the parameters to be measured are merged into others."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    for path, module in model.named_modules():
        if not _is_merged(module):
            continue
        acting = [getattr(module, name, None) for name in ("base_layer", TWIN)]
        kept = {id(p) for layer in acting if isinstance(layer, nn.Module) for p in layer.parameters()}
        measured = [names[id(p)] for p in module.parameters() if id(p) in names and id(p) not in kept]
        if measured:
            raise ModelError(
                f"{path or 'The model'} ({type(module).__name__}) has its adapter merged into the weights that it "
                f"adapts, so the outputs do not depend on {measured[0]!r} and its importance would be 0. Take the "
                "adapter out again before measuring: model.unmerge_adapter(), or unmerge() of that layer."
            )


def _is_merged(module: nn.Module) -> bool:
    """Whether a module says that it is merged, and has what merges and unmerges it."""
    if not all(callable(getattr(module, name, None)) for name in ("merge", "unmerge")):
        return False
    return getattr(module, "merged", None) is True
