"""Low-rank adapters in the files that PEFT writes: what they change in the base model, and two of them as one.

LoRA, Hu et al. 2021 (arXiv 2106.09685): ΔW = s·BA. A mean of ΔW₁ and ΔW₂ is no product of the means of A and B, but it
is one of a rank that is the sum of theirs: [(1 − c)s₁B₁, c·s₂B₂]·[A₁; A₂], exactly.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, StateError
from anchorhold.merging import tensor_files
from anchorhold.merging.shares import EXPECTED
from anchorhold.settings import checked_share, require
from anchorhold.tensors.sharding import is_finite
from anchorhold.tensors.storage import running_dtype
from anchorhold.whole_files import write_tensors, write_whole

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"^(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(\.weight)?$")
_A = re.compile(r"(?P<layer>.*\.)?(?P<kind>lora_(embedding_)?)A(?P<adapter>\..+)?")


def is_adapter(path: Path) -> bool:
    """Whether a folder is that of an adapter."""
    return path.is_dir() and (path / CONFIG).is_file()


@dataclasses.dataclass(frozen=True)
class LoraAdapter:
    """A low-rank adapter."""

    config: Mapping[str, Any]
    factors: Mapping[str, tuple[Tensor, Tensor]]
    """A and B of each adapted layer, by the layer's name in the base model; an embedding's too."""
    embeddings: frozenset[str]
    """The layers that are embeddings, whose A and B are turned over."""
    replaced: Mapping[str, Tensor]
    """Tensors of the base model that were trained as they are, by their names."""

    def __repr__(self) -> str:
        ranks = sorted({len(a) for a, _ in self.factors.values()})
        beside = f", and {len(self.replaced)} tensors beside them" if self.replaced else ""
        return f"LoraAdapter of {len(self.factors)} layers, rank {' and '.join(map(str, ranks))}{beside}"

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "LoraAdapter":
        """Read an adapter from a folder that PEFT wrote, or say what cannot be read of it."""
        path = tensor_files.as_path(folder)
        if not (path / CONFIG).is_file() or not (path / WEIGHTS).is_file():
            raise ConfigurationError(
                f"{str(path)!r} has no {CONFIG} with an {WEIGHTS}; expected a folder that an adapter was saved to with "
                "save_pretrained."
            )
        config: dict[str, Any] = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        kind = config.get("peft_type")
        if kind != "LORA" or config.get("use_dora"):
            raise ConfigurationError(
                f"The adapter {str(path)!r} is of kind {'DoRA' if config.get('use_dora') else kind}; expected LoRA. "
                "Load it with PEFT and give the model in its place, which is merged as PEFT does."
            )
        weights = path / WEIGHTS
        return cls.of_tensors(config, {n: tensor_files.read(weights, n) for n in tensor_files.described(weights)})

    @classmethod
    def of_tensors(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "LoraAdapter":
        """Return the adapter that these tensors are, named as PEFT names them."""
        halves: dict[str, dict[str, Tensor]] = {}
        replaced: dict[str, Tensor] = {}
        embeddings = set()
        for name, tensor in tensors.items():
            bare = name.removeprefix(_PREFIX)
            if not is_finite(tensor):
                raise StateError(f"The adapter's {name!r} is not finite. Training has diverged: use another copy.")
            if found := _FACTOR.match(bare):
                module, kind = found["module"], found["kind"]
                halves.setdefault(module, {})[kind[-1]] = tensor
                if "embedding" in kind:
                    embeddings.add(module)
            elif "lora_" in bare:
                raise ConfigurationError(
                    f"The adapter has a tensor {name!r}, which is none of LoRA's two factors. Load it with PEFT and "
                    "give the model in its place, which is merged as PEFT does."
                )
            else:
                replaced[bare.replace(".base_layer.", ".")] = tensor
        for module, own in halves.items():
            if own.keys() != {"A", "B"}:
                raise StateError(f"The adapter has only {' '.join(own)} of {module!r}; expected A and B.")
        pairs = {module: (own["A"], own["B"]) for module, own in halves.items()}
        return cls(config, pairs, frozenset(embeddings), replaced)

    @property
    def changed(self) -> tuple[str, ...]:
        """The base model's tensors that are another with the adapter."""
        return (*(f"{module}.weight" for module in self.factors), *self.replaced)

    def scaling(self, module: str) -> float:
        """Return s of a layer: α/r, or α/√r where the adapter says so."""
        rank = self._of_module("rank_pattern", module, self.config["r"])
        alpha = self._of_module("alpha_pattern", module, self.config["lora_alpha"])
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _of_module(self, patterns: str, module: str, usual: Any) -> Any:
        given: Mapping[str, Any] = self.config.get(patterns) or {}
        return next((v for key, v in given.items() if re.match(rf"(.*\.)?({key})$", module)), usual)

    def delta(self, module: str, shape: tuple[int, ...]) -> Tensor:
        """Return ΔW of a layer whose weight has this shape, in single precision at least."""
        a, b = (factor.to(running_dtype(factor)) for factor in self.factors[module])
        product = self.scaling(module) * (b.flatten(1) @ a.flatten(1))
        if module in self.embeddings or self.config.get("fan_in_fan_out"):
            product = product.mT
        return product.reshape(shape)

    def adapted(self, name: str, weight: Tensor) -> Tensor:
        """Return a tensor of the base model as it is with the adapter."""
        if name in self.replaced:
            return self.replaced[name].to(weight)
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or module not in self.factors:
            return weight
        wide = running_dtype(weight)
        return (weight.to(wide) + self.delta(module, tuple(weight.shape)).to(weight.device, wide)).to(weight.dtype)

    def check_base(self, label: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a base model that has not what is adapted, or has it in other sizes."""
        for module, (a, b) in self.factors.items():
            name = f"{module}.weight"
            need = b.shape[0] * a.flatten(1).shape[1]
            if name not in shapes or math.prod(shapes[name]) != need:
                has = f"of shape {shapes[name]}" if name in shapes else "that is not there"
                raise ConfigurationError(
                    f"{label} adapts {name!r} with factors of {tuple(a.shape)} and {tuple(b.shape)}, and before has "
                    f"one {has}. Give the model that the adapter was trained on."
                )
        for name, tensor in self.replaced.items():
            if shapes.get(name) != tuple(tensor.shape):
                raise ConfigurationError(
                    f"{label} brings {name!r} of shape {tuple(tensor.shape)}, and before has "
                    f"{shapes.get(name, 'none')}. Give the model that the adapter was trained on."
                )

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the adapter as PEFT reads it, whole or not at all."""
        path = tensor_files.as_path(folder)
        named = {f"{_PREFIX}{name}": tensor for name, tensor in self.replaced.items()}
        for module, pair in self.factors.items():
            of_embedding = module in self.embeddings
            for key, factor in zip("AB", pair, strict=True):
                named[f"{_PREFIX}{module}.lora_{f'embedding_{key}' if of_embedding else f'{key}.weight'}"] = factor
        with tensor_files.folder_aside(path) as aside:
            write_tensors(aside / WEIGHTS, named, {"format": "pt"})
            write_whole(aside / CONFIG, (json.dumps(dict(self.config), indent=2) + "\n").encode())
        return path


def merge_adapters(
    before: "LoraAdapter | str | os.PathLike[str] | None",
    after: "LoraAdapter | str | os.PathLike[str]",
    share: float = 0.5,
    *,
    out: str | os.PathLike[str] | None = None,
) -> LoraAdapter:
    """Return one adapter that stands, exactly, for the average of what two adapters of one base model change.

    Its rank is the sum of theirs. Without a ``before``, that is the base model itself, and the adapter is scaled.

    Args:
        before: the folder of an adapter, or ``None`` for the base model without any.
        after: the folder of an adapter.
        share: of ``after``.
        out: a folder to write the adapter to.
    """
    c = checked_share("share", share, EXPECTED)
    second = after if isinstance(after, LoraAdapter) else LoraAdapter.read(after)
    first = before if before is None or isinstance(before, LoraAdapter) else LoraAdapter.read(before)
    if first is not None:
        for key in ("base_model_name_or_path", "fan_in_fan_out"):
            one, other = first.config.get(key), second.config.get(key)
            said = f"Adapters with {key}={one!r} and {other!r}"
            require((one or None) == (other or None), said, "two of one base model")
    trained = sorted({*second.replaced, *(first.replaced if first else ())})
    if trained and (first is None or first.replaced.keys() != second.replaced.keys()):
        raise ConfigurationError(
            f"{trained[0]!r} was trained beside the adapter, and how far it has moved depends on the base model. Merge "
            "whole models: anchorhold.merge(base, adapter, share)."
        )
    parts = [(1 - c, first), (c, second)]
    present = [(weight, adapter) for weight, adapter in parts if adapter is not None]
    modules = list(dict.fromkeys(module for _, adapter in present for module in adapter.factors))
    joined = {module: _side_by_side(module, present) for module in modules}
    rank = max(a.shape[0] for a, _ in joined.values())
    factors = {module: _padded(*pair, rank) for module, pair in joined.items()}
    config = dict(second.config) | {"r": rank, "lora_alpha": rank, "use_rslora": False}
    config |= {"rank_pattern": {}, "alpha_pattern": {}, "target_modules": sorted(modules)}
    replaced = (
        {
            name: ((1 - c) * first.replaced[name].double() + c * t.double()).to(t.dtype)
            for name, t in second.replaced.items()
        }
        if first
        else {}
    )
    made = LoraAdapter(config, factors, second.embeddings | (first.embeddings if first else frozenset()), replaced)
    if out is not None:
        made.write(out)
    return made


def _side_by_side(module: str, parts: "list[tuple[float, LoraAdapter]]") -> tuple[Tensor, Tensor]:
    """Return [A₁; A₂] and [c₁s₁B₁, c₂s₂B₂] of a layer, of those that adapt it."""
    own = [(w * each.scaling(module), *each.factors[module]) for w, each in parts if module in each.factors]
    sizes = {(tuple(a.shape[1:]), b.shape[0]) for _, a, b in own}
    require(len(sizes) == 1, f"Adapters of {module!r} for layers of {sorted(sizes)}", "two of one base model")
    dtype = torch.float32 if any(a.dtype == torch.float32 for _, a, _ in own) else own[0][1].dtype
    wide = [(b.to(torch.promote_types(b.dtype, torch.float32)) * factor).to(dtype) for factor, _, b in own]
    return torch.cat([a.to(dtype) for _, a, _ in own]), torch.cat(wide, 1)


def _padded(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return factors of a larger rank with the same product."""
    more = rank - a.shape[0]
    if not more:
        return a, b
    return torch.cat([a, a.new_zeros(more, *a.shape[1:])]), torch.cat(
        [b, b.new_zeros(b.shape[0], more, *b.shape[2:])], 1
    )


def lone_factors(names: Sequence[str], read: Sequence[Callable[[str], Tensor]]) -> list[tuple[str, str]]:
    """Return A and B, by name, of each pair that both differ: where one alone does, their means are exact.

    A module with adapters is taken as the weights that it stands for, and so is the folder of an adapter. A state dict
    does not say by what the product is multiplied, so all that can be done is to say so.

    Args:
        names: of the tensors that are merged.
        read: of each model, what returns its tensor of a name.
    """
    known = set(names)
    found = []
    for name in names:
        if match := _A.fullmatch(name):
            other = f"{match['layer'] or ''}{match['kind']}B{match['adapter'] or ''}"
            if other in known and _differs(name, read) and _differs(other, read):
                found.append((name, other))
    return found


def lone_factors_warning(pairs: Sequence[tuple[str, str]]) -> str:
    """Say what becomes of such factors, and what to do."""
    (a, b), more = pairs[0], len(pairs) - 1
    others = f" and {more} other pair{'s' if more > 1 else ''}" if more else ""
    return (
        f"{a!r} and {b!r}{others} are the factors of LoRA adapters, and each is merged by itself: the product of two "
        "means is not the mean of what the adapters add to the weights. Merge them into the weights first "
        "(merge_and_unload), or give the models, or the folders that the adapters were saved to, in the place of state "
        "dicts: those are taken as the weights that they stand for. To have an adapter again, use "
        "anchorhold.merging.merge_adapters, or guard.average(share) after training."
    )


def _differs(name: str, read: Sequence[Callable[[str], Tensor]]) -> bool:
    first, *others = (each(name) for each in read)
    return any(not torch.equal(first, other.to(first)) for other in others)
