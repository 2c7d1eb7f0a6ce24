r"""A layer and the batch norm after it, held as the one linear map that they are (Lee et al. 2020, arXiv 2004.07507).

In eval mode a layer with weight W and bias b, followed by a batch norm with scale γ, shift β and running statistics μ
and σ, computes :math:`y = \tilde W a + \tilde b` with

.. math:: \tilde W = \frac{\gamma}{\sigma} W, \qquad \tilde b = \frac{\gamma}{\sigma}(b - \mu) + \beta.

What the network does depends on all six through these two alone, which are the coordinates: W̃ in the place of W, and b̃
in that of b, or of β where the layer has no bias. The hold's gradient goes back to W, b, γ and β by the chain rule; μ
and σ are taken as given, though they follow the weights.

From one step to the next, a forward pass over new data takes μ and σ to μ′ and σ′, and W̃ and b̃ with them, by much where
a new task begins. No gradient sees that, and a pull that has to make up for it disturbs what is learned. So scale and
shift are written for the new statistics before each step,

.. math:: \gamma' = \frac{\sigma'}{\sigma}\,\gamma, \qquad \beta' = \beta + \frac{\gamma}{\sigma}(\mu' - \mu),

with which W̃ and b̃ are the same as before: what moves them is the optimizer alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from anchorhold.errors import ConfigurationError
from anchorhold.spaces.base import Space, TakeFirst
from anchorhold.tensors.names import named_modules
from anchorhold.tensors.storage import running_dtype

Foldable = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""The layers that a batch norm can be folded into: their first dimension is that of the outputs, which it scales."""


class _Symbols(NamedTuple):
    """The tensors of a pair, in single precision at least."""

    w: Tensor
    b: Tensor
    gamma: Tensor
    beta: Tensor
    mu: Tensor
    sigma: Tensor


class Pair:
    """A layer and the batch norm that follows it.

    Args:
        layer: the layer.
        norm: the batch norm.
        names: the names of protected parameters by their ids.
    """

    def __init__(self, layer: Foldable, norm: BatchNorm, names: Mapping[int, str]) -> None:
        self.layer = layer
        self.norm = norm
        parameters = {"weight": layer.weight, "bias": layer.bias, "scale": norm.weight, "shift": norm.bias}
        self.names = {role: names[id(p)] for role, p in parameters.items() if p is not None and id(p) in names}
        """The names of its protected parameters."""
        self.offset = next((role for role in ("bias", "shift") if role in self.names), None)
        """In whose place b̃ is held."""

    @property
    def silent(self) -> set[str]:
        """The names of parameters that are no coordinates of the folded map."""
        return {name for role, name in self.names.items() if role not in ("weight", self.offset)}

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return W̃ and b̃, differentiable in the parameters."""
        w, b, gamma, beta, mu, sigma = self._symbols()
        return w * _rows(gamma / sigma, w), (b - mu) * gamma / sigma + beta

    def coordinates(self) -> dict[str, Tensor]:
        """Return them by the names in whose place they are held."""
        weight, bias = self.folded()
        found = {self.names["weight"]: weight}
        return found if self.offset is None else found | {self.names[self.offset]: bias}

    @torch.no_grad()
    def pulled_back(self, pulls: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradient with respect to the parameters, from that with respect to W̃ and b̃."""
        w, b, gamma, _, mu, sigma = self._symbols()
        p_w, p_b = self._given(pulls, w)
        found = {
            "weight": p_w * _rows(gamma / sigma, w),
            "bias": p_b * gamma / sigma,
            "scale": ((p_w * w).flatten(1).sum(1) + p_b * (b - mu)) / sigma,
            "shift": p_b,
        }
        return {name: found[role] for role, name in self.names.items()}

    @torch.no_grad()
    def diagonal(self, omega: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the importance of the parameters, where σ and the other parameters stay: JᵀΩJ's diagonal."""
        w, b, gamma, _, mu, sigma = self._symbols()
        o_w, o_b = self._given(omega, w)
        found = {
            "weight": o_w * _rows(gamma / sigma, w).square(),
            "bias": o_b * (gamma / sigma).square(),
            "scale": ((o_w * w.square()).flatten(1).sum(1) + o_b * (b - mu).square()) / sigma.square(),
            "shift": o_b,
        }
        return {name: found[role] for role, name in self.names.items()}

    @torch.no_grad()
    def steepness(self) -> float:
        """Return the largest (γ/σ)²."""
        symbols = self._symbols()
        return float((symbols.gamma / symbols.sigma).square().max())

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[None]:
        """Let the layer be the folded map, and the batch norm do nothing, for a while: the outputs stay the same.

        Gradients with respect to the weights are then those with respect to W̃ and b̃, also where γ is 0. Others stand
        in for the parameters that are no coordinates of the map, so that these have no gradient, and no part of a
        matrix that is over all parameters.
        """
        with torch.no_grad():
            weight, bias = self.folded()
            nothing = torch.zeros_like(bias)
            places: dict[str, tuple[nn.Module, str, Tensor]] = {
                "weight": (self.layer, "weight", weight),
                "bias": (self.layer, "bias", bias if self.offset == "bias" else nothing),
                "scale": (self.norm, "weight", torch.ones_like(bias)),
                "shift": (self.norm, "bias", bias if self.offset == "shift" else nothing),
            }
            statistics = self.norm.running_mean, self.norm.running_var
            mean, variance = (-bias if self.offset is None else nothing), torch.ones_like(bias) - self.norm.eps
            like = statistics[0]
            assert like is not None
        with contextlib.ExitStack() as stack:
            for role, (module, attribute, value) in places.items():
                parameter = getattr(module, attribute)
                if parameter is not None and role in ("weight", self.offset):
                    stack.callback(setattr, parameter, "data", parameter.data)
                    parameter.data = value.to(parameter.dtype)
                elif parameter is not None:
                    stack.callback(setattr, module, attribute, parameter)
                    setattr(module, attribute, nn.Parameter(value.to(parameter.dtype), requires_grad=False))
            for attribute, kept, value in zip(
                ("running_mean", "running_var"), statistics, (mean, variance), strict=True
            ):
                stack.callback(setattr, self.norm, attribute, kept)
                setattr(self.norm, attribute, value.to(like.dtype))
            yield

    def _symbols(self) -> _Symbols:
        layer, norm = self.layer, self.norm
        assert norm.running_mean is not None and norm.running_var is not None
        dtype = running_dtype(layer.weight)
        zero = torch.zeros_like(norm.running_mean, dtype=dtype)
        return _Symbols(
            layer.weight.to(dtype),
            zero if layer.bias is None else layer.bias.to(dtype),
            zero + 1 if norm.weight is None else norm.weight.to(dtype),
            zero if norm.bias is None else norm.bias.to(dtype),
            norm.running_mean.detach().to(dtype),
            (norm.running_var.detach().to(dtype) + norm.eps).sqrt(),
        )

    def _given(self, values: Mapping[str, Tensor], w: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is given in the places of W̃ and b̃; 0 for what is not."""
        weight = values.get(self.names["weight"])
        bias = None if self.offset is None else values.get(self.names[self.offset])
        return (
            torch.zeros_like(w) if weight is None else weight.to(w.device, w.dtype),
            torch.zeros_like(w.flatten(1)[:, 0]) if bias is None else bias.to(w.device, w.dtype),
        )


class Folded(Space):
    """The space of folded maps: each pair of a layer and its batch norm is measured and held as W̃ and b̃."""

    name: ClassVar[str] = "fold"
    why_explicit: ClassVar[str] = "on folded weights"

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], folded: Mapping[str, str]) -> None:
        super().__init__(model, parameters, folded)
        names = {id(parameter): name for name, parameter in parameters.items()}
        modules = dict(named_modules(model)) if folded else {}
        self.pairs: dict[str, Pair] = {}
        """By the batch norm's name: the pairs of which both are in the model, and the layer's weight is protected."""
        for norm_name, layer_name in folded.items():
            layer, norm = modules.get(layer_name), modules.get(norm_name)
            if isinstance(layer, Foldable) and isinstance(norm, BatchNorm) and id(layer.weight) in names:
                self.pairs[norm_name] = Pair(layer, norm, names)
        self.mapped = frozenset(name for pair in self.pairs.values() for name in pair.names.values())
        self.silent = frozenset(name for pair in self.pairs.values() for name in pair.silent)
        self.coupled = [(tuple(pair.names.values()), _COUPLED) for pair in self.pairs.values()]
        self.noted: dict[BatchNorm, _Noted] = {}
        """The statistics at the last step."""

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[set[str]]:
        """Let each layer be its folded map for a while, and its batch norm do nothing."""
        with contextlib.ExitStack() as stack:
            for pair in self.pairs.values():
                stack.enter_context(pair.put_in_place())
            yield set()

    def coordinates(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return W̃ in the place of W, and b̃ in that of b or β."""
        found = {name: value for name, value in parameters.items() if name not in self.silent}
        for pair in self.pairs.values():
            if not parameters.keys().isdisjoint(pair.names.values()):
                found |= pair.coordinates()
        return found

    def to_parameters(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradient with respect to W, b, γ and β."""
        return self._through(gradient, Pair.pulled_back)

    def diagonal(self, omega: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the importance of W, b, γ and β, where σ stays."""
        return self._through(omega, Pair.diagonal)

    def _through(
        self, given: Mapping[str, Tensor], back: Callable[[Pair, Mapping[str, Tensor]], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        found = {name: value for name, value in given.items() if name not in self.mapped}
        for pair in self.pairs.values():
            if not given.keys().isdisjoint(pair.names.values()):
                found |= back(pair, given)
        return found

    def steepness(self) -> dict[str, float]:
        """Return the largest (γ/σ)² of each pair."""
        return {name: pair.steepness() for pair in self.pairs.values() for name in pair.names.values()}

    def agree(self, take_first: TakeFirst) -> None:
        """Give all processes the first one's statistics."""
        # As DDP does before its next forward pass: each process's statistics have followed its own batches since.
        norms = [pair.norm for pair in self.pairs.values()]
        take_first([s for norm in norms for s in (norm.running_mean, norm.running_var) if s is not None])

    @torch.no_grad()
    def follow(self, take_first: TakeFirst, *, is_held: bool) -> None:
        """Write scales and shifts by which W̃ and b̃ are the same under the statistics of now."""
        self.agree(take_first)
        self.noted = self.noted if is_held else {}
        for pair in self.pairs.values():
            norm, before = pair.norm, self.noted.get(pair.norm)
            assert norm.running_mean is not None and norm.running_var is not None
            now = _Noted(norm.running_mean.clone(), (norm.running_var + norm.eps).sqrt(), _versions(norm))
            has_both = all(role in pair.names for role in ("scale", "shift"))
            trained = has_both and norm.weight.requires_grad and norm.bias.requires_grad
            # Who loads or draws weights means them as they are. Those that are not trained stay too.
            if is_held and trained and before is not None and before.versions == now.versions:
                norm.bias.add_((now.mu - before.mu) * norm.weight / before.sigma)
                norm.weight.mul_(now.sigma / before.sigma)
                now = now._replace(versions=_versions(norm))
            self.noted[norm] = now

    def stepped(self) -> None:
        self.noted = {norm: noted._replace(versions=_versions(norm)) for norm, noted in self.noted.items()}

    def resume(self, before: Space) -> None:
        self.noted = before.noted if isinstance(before, Folded) else {}

    def check_way_back(self, call: str) -> None:
        """Refuse a mean with an anchor that is of folded weights."""
        if self.pairs:
            raise ConfigurationError(
                f"{call} with batch_norm='fold': the anchor is of folded weights, which a mean of weights and "
                "statistics is not. Take batch_norm='freeze', or average state dicts with anchorhold.merge."
            )


_COUPLED = "with batch_norm='fold' they are held as one"


class _Noted(NamedTuple):
    """A batch norm's statistics at the last step, and how often its scale and shift had been written to."""

    mu: Tensor
    sigma: Tensor
    versions: tuple[int, int]


def _versions(norm: BatchNorm) -> tuple[int, int]:
    return (norm.weight._version, norm.bias._version) if norm.affine else (0, 0)


def _rows(values: Tensor, like: Tensor) -> Tensor:
    """Return one number an output in a shape that multiplies a weight."""
    return values.view(-1, *[1] * (like.ndim - 1))
