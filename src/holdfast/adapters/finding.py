"""Finding a model's adapters, and saying which of them nothing is known of."""

from collections.abc import Collection
from typing import Any

from torch import nn

from holdfast.adapters.base import Adapter
from holdfast.errors import ConfigurationError
from holdfast.registry import Registry
from holdfast.tensors.names import named_modules, named_parameters

ADAPTERS: Registry[type[Adapter]] = Registry("adapter")
"""The kinds of adapters, by name."""

WORKING = (
    "PEFT's LoRA and rsLoRA (of linear layers, embeddings and convolutions, 4-bit and 8-bit ones too), DoRA (of linear "
    "layers), LoHa, LoKr, AdaLoRA and VeRA, and what was entered with holdfast.register_adapter"
)
"""What can be held as merged weights, in words."""


def find_adapters(model: nn.Module, protected: Collection[int]) -> dict[str, Adapter]:
    """Return the adapters that have protected parameters, each by the name of the weight that it changes.

    Args:
        model: the network.
        protected: the ids of the protected parameters.
    """
    found: dict[str, Adapter] = {}
    names = {id(module): name for name, module in named_modules(model)}
    within: set[int] = set()
    for path, module in named_modules(model):
        if id(module) in within or not any(id(p) in protected for p in module.parameters()):
            continue
        kinds = reversed(list(ADAPTERS.values()))  # what others have entered comes first
        adapter = next((kind(module) for kind in kinds if kind.describes(module)), None)
        if adapter is None:
            _refuse_unknown(path, module, protected)
            continue
        within |= {id(inner) for inner in module.modules()}
        if not any(id(p) in protected for p in adapter.parameters()):
            continue
        if (reason := adapter.refusal()) is not None:
            raise ConfigurationError(
                f"space='merged': {path!r} ({type(module).__name__}) cannot be held as a merged weight: {reason}. "
                f"Those that can: {WORKING}. Give space='weights', which holds the adapter's own parameters."
            )
        found[f"{names.get(id(adapter.layer), path)}.weight"] = adapter
    if not found:
        raise ConfigurationError(
            "space='merged' with a model that has no protected adapter, whose merged weight it could hold. Those that "
            f"are known: {WORKING}. Make the guard after the adapter (get_peft_model), and protect its parameters; for "
            "a model without adapters, or whose adapters were merged for good, give space='weights'."
        )
    return found


def has_adapters(model: nn.Module, protected: Collection[int]) -> bool:
    """Whether some protected parameter is an adapter's, of a kind that is known or of any of PEFT's."""
    for module in model.modules():
        kind = next((kind for kind in ADAPTERS.values() if kind.describes(module)), None)
        parts = kind(module).parameters() if kind is not None else _peft_parts(module)
        if any(id(p) in protected for p in parts):
            return True
    return False


def trained_layers(model: nn.Module, adapters: dict[str, Adapter]) -> dict[str, nn.Parameter]:
    """Return the weights themselves that adapters change, by name, or refuse one that is trained beside its adapter."""
    # By all names: a tied weight is known by that of another layer, and trained through this one too.
    found = {name: p for name, p in named_parameters(model, remove_duplicate=False) if name in adapters}
    for name, parameter in found.items():
        if parameter.requires_grad:
            raise ConfigurationError(
                f"space='merged': {name!r} is trained, and so is an adapter of it; expected a frozen weight beside "
                "each adapter. Freeze it, or give space='weights', which holds both as they are."
            )
    return found


def _refuse_unknown(path: str, module: Any, protected: Collection[int]) -> None:
    """Refuse one of PEFT's layers of a kind that is not known: what it does to the weight is not either.

    Trainable tokens are rows of the weight themselves, in its rows' place, and are held as any other parameter.
    """
    if not hasattr(module, "trainable_tokens_delta") and any(id(p) in protected for p in _peft_parts(module)):
        kind = type(module).__module__.removeprefix("peft.tuners.").partition(".")[0]
        raise ConfigurationError(
            f"space='merged': {path!r} has an adapter of the kind {kind!r} ({type(module).__name__}), of which it is "
            f"not known what it adds to a weight. Those that are known: {WORKING}. Give space='weights', which holds "
            "the adapter's own parameters."
        )


def _peft_parts(module: Any) -> list[nn.Parameter]:
    """Return what one of PEFT's layers has besides the layer that it adapts."""
    if not (hasattr(module, "adapter_layer_names") and hasattr(module, "get_base_layer")):
        return []
    layers = {id(p) for p in module.get_base_layer().parameters()}
    return [p for p in module.parameters() if id(p) not in layers]
