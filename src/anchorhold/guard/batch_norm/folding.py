r"""Holding a layer and the batch norm after it as the one linear map that they are (Lee et al. 2020, arXiv 2004.07507).

In eval mode a layer with weight W and bias b, followed by a batch norm with scale γ, shift β and running statistics μ
and σ, computes :math:`y = \tilde W a + \tilde b` with

.. math:: \tilde W = \frac{\gamma}{\sigma} W, \qquad \tilde b = \frac{\gamma}{\sigma}(b - \mu) + \beta.

What the network does depends on all six through these two alone. So importance is measured, and the hold acts, in their
coordinates: W̃ in the place of W, and b̃ in that of b, or of β where the layer has no bias. Statistics may go on moving:
``steady_maps.py`` sees to it that they leave W̃ and b̃ where they are. The hold's gradient goes back to W, b, γ and β by
the chain rule; μ and σ are taken as given, though they follow the weights.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from anchorhold.guard.arguments.strengths import PatternStrengths
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.holds import Held, LinearTerm, Quadratic
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


class Folding:
    """All pairs that a guard holds as folded maps."""

    def __init__(self, pairs: Mapping[str, Pair]) -> None:
        self.pairs = pairs
        """By the batch norm's name."""
        self.names = {name for pair in pairs.values() for name in pair.names.values()}
        """The names of all parameters that are part of one."""
        self.silent = {name for pair in pairs.values() for name in pair.silent}
        """Of those, the names in whose place nothing is held."""

    def check_strengths(self, strengths: PatternStrengths) -> None:
        """Refuse strengths by pattern that differ within a pair."""
        for pair in self.pairs.values():
            strengths.check_together(pair.names.values(), "with batch_norm='fold' they are held as one")

    @classmethod
    def of(
        cls, follows: Mapping[str, str], modules: Mapping[str, nn.Module], parameters: Mapping[str, nn.Parameter]
    ) -> "Folding":
        """Return the pairs of which both are in a model, and the layer's weight is protected.

        Args:
            follows: batch norms by name, each with the name of the layer before it.
            modules: the model's modules.
            parameters: the protected parameters.
        """
        names = {id(parameter): name for name, parameter in parameters.items()}
        found = {}
        for norm_name, layer_name in follows.items():
            layer, norm = modules.get(layer_name), modules.get(norm_name)
            if isinstance(layer, Foldable) and isinstance(norm, BatchNorm) and id(layer.weight) in names:
                found[norm_name] = Pair(layer, norm, names)
        return cls(found)

    def coordinates(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return parameters with W̃ and b̃ in their places, without those that are no coordinates of what is held."""
        found = {name: value for name, value in parameters.items() if name not in self.silent}
        for pair in self.pairs.values():
            if not parameters.keys().isdisjoint(pair.names.values()):
                found |= pair.coordinates()
        return found

    def pulled_back(self, pulls: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a gradient with respect to the parameters, from one with respect to the coordinates."""
        return self._through(pulls, Pair.pulled_back)

    def diagonal(self, omega: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return an importance of the parameters, from one of the coordinates."""
        return self._through(omega, Pair.diagonal)

    def _through(
        self, given: Mapping[str, Tensor], back: Callable[[Pair, Mapping[str, Tensor]], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        found = {name: value for name, value in given.items() if name not in self.names}
        for pair in self.pairs.values():
            if not given.keys().isdisjoint(pair.names.values()):
                found |= back(pair, given)
        return found

    def steepness(self) -> dict[str, float]:
        """Return by how much at most an eigenvalue of Q is larger in a weight than in the map: the largest (γ/σ)²."""
        return {name: pair.steepness() for pair in self.pairs.values() for name in pair.names.values()}

    def agree(self, ranks: Ranks) -> None:
        """Give all ranks the first one's statistics, as DDP does before its next forward pass.

        Each rank's have followed its own batches since, and what is held has to be the same on all.
        """
        norms = [pair.norm for pair in self.pairs.values()]
        ranks.take_first([s for norm in norms for s in (norm.running_mean, norm.running_var) if s is not None])

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[None]:
        """Let all layers be their folded maps for a while."""
        with contextlib.ExitStack() as stack:
            for pair in self.pairs.values():
                stack.enter_context(pair.put_in_place())
            yield


class FoldedQuadratic(Quadratic):
    """The guard's own hold in the coordinates of folded maps.

    Args:
        folding: the maps.
        elementwise: whether what is no part of one is held elsewhere, element by element.
    """

    def __init__(self, folding: Folding, *, elementwise: bool) -> None:
        super().__init__()
        self._folding = folding
        self._elementwise = elementwise

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return the quadratic hold's gradient, brought back to the parameters."""
        importance = {
            name: matrix
            for name, matrix in held.importance.items()
            if not self._elementwise or not self._folding.names.isdisjoint(matrix.block.parameters)
        }
        pulls = super().gradient(_in_coordinates(self._folding, held)._replace(importance=importance))
        return _brought_back(self._folding, pulls, held)


class FoldedLinearTerm(LinearTerm):
    """What it has beside its quadratic, in the same coordinates.

    Args:
        linear_term: r, by the names in whose places the maps are held.
        folding: the maps.
        factors: by what a parameter's strength differs from the guard's own c, where it does.
    """

    def __init__(self, linear_term: Mapping[str, Tensor], folding: Folding, factors: Mapping[str, float]) -> None:
        super().__init__(linear_term, factors)
        self._folding = folding

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return −2c·r, brought back to the parameters."""
        return _brought_back(self._folding, super().gradient(_in_coordinates(self._folding, held)), held)

    def value(self, held: Held) -> Tensor | None:
        """Return −2c⟨θ̃ − θ̃*, r⟩."""
        return super().value(_in_coordinates(self._folding, held))


def _in_coordinates(folding: Folding, held: Held) -> Held:
    """Return what a hold may look at with the maps in the places of the parameters."""
    return held._replace(parameters=cast("Mapping[str, nn.Parameter]", folding.coordinates(held.parameters)))


def _brought_back(folding: Folding, pulls: Mapping[str, Tensor], held: Held) -> dict[str, Tensor]:
    return {name: pull for name, pull in folding.pulled_back(pulls).items() if name in held.parameters}


def _rows(values: Tensor, like: Tensor) -> Tensor:
    """Return one number an output in a shape that multiplies a weight."""
    return values.view(-1, *[1] * (like.ndim - 1))
