"""What several models have in common: the names of their tensors, which of them are one tensor, shapes and types."""

from collections.abc import Collection, Sequence

import torch

from anchorhold.errors import ConfigurationError, warn
from anchorhold.merging.given_models import GivenModel
from anchorhold.merging.tensor_files import Described

_QUANTISED = ("float8", "float4")


class CommonNames:
    """The tensors that several models have in common, by the names of the last one.

    A tensor may have several names, as an output layer has that is tied to the embedding. Files hold such a tensor
    once, and a state dict as often as it has names, so what one model lacks is looked up by the other names.

    Args:
        models: all of them.
        preferred: names that a tensor of several is known by elsewhere.
    """

    def __init__(self, models: Sequence[GivenModel], preferred: Collection[str] = ()) -> None:
        self._models = models
        # The other names of each tensor that has several in some model, in the order of the models.
        groups: dict[str, dict[str, None]] = {}
        for model in models:
            for name, other in model.tied().items():
                together = groups.get(other, {other: None}) | groups.get(name, {name: None})
                groups |= dict.fromkeys(together, together)
        self._others = {name: [other for other in group if other != name] for name, group in groups.items()}
        self.names = list(models[-1].tensors)
        self._refuse_differences()
        self._first = self._first_names(preferred)
        self.copies: dict[str, list[str]] = {}
        for name in self.names:
            self.copies.setdefault(self.first(name), []).append(name)

    def own_name(self, model: GivenModel, name: str) -> str | None:
        """Return what a tensor is called in a model."""
        if name in model.tensors:
            return name
        return next((other for other in self._others.get(name, ()) if other in model.tensors), None)

    def first(self, name: str) -> str:
        """Return the first of the names of a tensor that is one in all models: it is merged once."""
        return self._first.get(name, name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type that holds what all models have, each in its own."""
        found = [self._described(model, name).dtype for model in self._models]
        whole = found[0]
        for dtype in found[1:]:
            whole = torch.promote_types(whole, dtype)
        return whole

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._described(self._models[-1], name).shape

    def _described(self, model: GivenModel, name: str) -> Described:
        own = self.own_name(model, name)
        assert own is not None  # since differences are refused
        return model.tensors[own]

    def _refuse_differences(self) -> None:
        every = dict.fromkeys(name for model in (self._models[-1], *self._models) for name in model.tensors)
        for model in self._models:
            lacking = [name for name in every if self.own_name(model, name) is None]
            if lacking:
                has = next(other.label for other in self._models if lacking[0] in other.tensors)
                more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
                raise ConfigurationError(
                    f"{model.label} has no {lacking[0]!r}{more}, which {has} has; expected models of the same names. "
                    "Leave out of the state dicts what only one of them has, and put it back afterwards."
                )
        for name in every:
            shapes = {model.label: self._described(model, name).shape for model in self._models}
            if len(set(shapes.values())) > 1:
                listed = ", ".join(f"{shape} in {label}" for label, shape in shapes.items())
                raise ConfigurationError(f"{name!r} has the shapes {listed}; expected models of the same network.")
            kinds = {self._described(model, name).dtype for model in self._models}
            if len({dtype.is_floating_point or dtype.is_complex for dtype in kinds}) > 1 or any(
                str(dtype).removeprefix("torch.").startswith(_QUANTISED) for dtype in kinds
            ):
                raise ConfigurationError(
                    f"{name!r} is of type {' and '.join(sorted(map(str, kinds)))}; expected numbers of 16 bits or more "
                    "in all models. Quantised weights cannot be merged: load the models in 16 or 32 bits."
                )

    def _first_names(self, preferred: Collection[str]) -> dict[str, str]:
        """Return, of tensors that are one in every model, one name of each; warn of those that no longer are."""
        found: dict[str, str] = {}
        for name in self.names:
            others = self._others.get(name)
            if others is None:
                continue
            group = [other for other in self.names if other == name or other in others]
            first = next((other for other in group if other in preferred), group[0])
            if first == name:
                continue
            if all(self._same(model, name, first) for model in self._models):
                found[name] = first
            else:
                warn(
                    f"{name!r} and {first!r} are one tensor in one of the models and two in another, and are merged as "
                    "two. Load the result into a model that does not tie them, or tie them in both before merging."
                )
        return found

    def _same(self, model: GivenModel, one: str, other: str) -> bool:
        first, second = self.own_name(model, one), self.own_name(model, other)
        assert first is not None and second is not None
        tied = model.tied()
        if first == second or tied.get(first, first) == tied.get(second, second):
            return True
        return torch.equal(model.read(first), model.read(second))  # a copy of a state dict unties what it copies
