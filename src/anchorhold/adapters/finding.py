"""Find a model's adapters, and name those that are of no known kind."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from torch import nn

from anchorhold.adapters.base import Adapter
from anchorhold.errors import ConfigurationError
from anchorhold.registry import Registry
from anchorhold.tensors.names import named_modules, named_parameters

ADAPTERS: Registry[type[Adapter]] = Registry("adapter")
"""The kinds of adapters, by name."""

WORKING = (
    "PEFT's LoRA and rsLoRA (of linear layers, embeddings and convolutions, 4-bit and 8-bit ones too), DoRA (of linear "
    "layers), LoHa, LoKr, AdaLoRA and VeRA, and what was entered with anchorhold.adapters.register_adapter"
)
"""What can be held as merged weights, in words."""


class Found(NamedTuple):
    """A module with protected parameters of an adapter."""

    path: str
    weight: str
    """The name of the weight that it changes, as far as that is known."""
    adapter: Adapter | None
    """``None`` for one of PEFT's of a kind that nothing is known of."""
    refusal: str | None
    """Why its merged weight cannot be held, where it cannot."""


def every_adapter(model: nn.Module, protected: Collection[int]) -> Iterator[Found]:
    """Yield the adapters that have protected parameters, with those that cannot be held by their merged weights.

    Args:
        model: the network.
        protected: the ids of the protected parameters.
    """
    names = {id(module): name for name, module in named_modules(model)}
    within: set[int] = set()
    for path, module in named_modules(model):
        if id(module) in within or not any(id(p) in protected for p in module.parameters()):
            continue
        kinds = reversed(list(ADAPTERS.values()))  # what others have entered comes first
        adapter = next((kind(module) for kind in kinds if kind.describes(module)), None)
        if adapter is None:
            # Trainable tokens are rows of the weight themselves, in its rows' place, and are held as parameters.
            own = [] if hasattr(module, "trainable_tokens_delta") else _peft_parts(module)
            if any(id(p) in protected for p in own):
                kind = type(module).__module__.removeprefix("peft.tuners.").partition(".")[0]
                unknown = (
                    f"space='merged': {path!r} has an adapter of the kind {kind!r} ({type(module).__name__}), of which "
                    f"it is not known what it adds to a weight. Those that are known: {WORKING}. Give "
                    "options=GuardOptions(space='weights'), which holds the adapter's own parameters."
                )
                yield Found(path, path, None, unknown)
            continue
        within |= {id(inner) for inner in module.modules()}
        if any(id(p) in protected for p in adapter.parameters()):
            weight = f"{names.get(id(adapter.layer), path)}.weight"
            refused = adapter.refusal()
            reason = refused and (
                f"space='merged': {path!r} ({type(adapter.module).__name__}) cannot be held as a merged weight: "
                f"{refused}. Those that can: {WORKING}. Give options=GuardOptions(space='weights'), which holds the "
                "adapter's own parameters."
            )
            yield Found(path, weight, adapter, reason)


def find_adapters(model: nn.Module, protected: Collection[int]) -> dict[str, Adapter]:
    """Return the adapters that have protected parameters, each by the name of the weight that it changes.

    Args:
        model: the network.
        protected: the ids of the protected parameters.
    """
    found: dict[str, Adapter] = {}
    for each in every_adapter(model, protected):
        if each.adapter is None or each.refusal is not None:
            raise ConfigurationError(str(each.refusal))
        found[each.weight] = each.adapter
    if not found:
        raise ConfigurationError(
            "space='merged' with a model that has no protected adapter, whose merged weight it could hold. Those that "
            f"are known: {WORKING}. Make the guard after the adapter (get_peft_model), and protect its parameters; for "
            "a model without adapters, or whose adapters were merged for good, give "
            "options=GuardOptions(space='weights')."
        )
    return found


def refuse_merged_adapters(model: nn.Module, protected: Collection[int]) -> None:
    """Refuse to move parameters of adapters that are merged into their weights for now.

    Args:
        model: the network.
        protected: the ids of the parameters that are to be moved.
    """
    for found in every_adapter(model, protected):
        if getattr(getattr(found.adapter, "module", None), "merged", False):
            raise ConfigurationError(
                f"The adapter of {found.weight!r} is merged into its weight for now: what its parameters are moved to "
                "would not be what the model computes with. Unmerge it first (model.unmerge_adapter())."
            )


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
                "each adapter. Freeze it, or give options=GuardOptions(space='weights'), which holds both as they are."
            )
    return found


def _peft_parts(module: Any) -> list[nn.Parameter]:
    """Return what one of PEFT's layers has besides the layer that it adapts."""
    if not (hasattr(module, "adapter_layer_names") and hasattr(module, "get_base_layer")):
        return []
    layers = {id(p) for p in module.get_base_layer().parameters()}
    return [p for p in module.parameters() if id(p) not in layers]
