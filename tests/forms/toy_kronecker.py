"""A Kronecker form for linear layers: small, dense and exact, to try what a form that is no diagonal asks of others."""

import dataclasses

import torch
from torch import nn

from anchorhold.engine.reductions import Reduction
from anchorhold.errors import ModelError, StateError
from anchorhold.forms import Block, Form, Matrix
from anchorhold.tensors.names import named_parameters


@dataclasses.dataclass(eq=False)
class ToyMatrix(Matrix):
    """Q(D) = G D A for D = [W b], scaled so that sums of several tasks keep their trace."""

    g: torch.Tensor
    a: torch.Tensor

    def _joined(self, d):
        weight, *bias = (d[name] for name in self.block.parameters)
        return torch.cat([weight, bias[0].unsqueeze(1)], 1) if bias else weight

    def _cut(self, joined):
        weight, *bias = self.block.parameters
        if not bias:
            return {weight: joined}
        return {weight: joined[:, :-1], bias[0]: joined[:, -1]}

    def apply(self, d):
        return self._cut(self.g @ self._joined(d) @ self.a)

    def add(self, earlier, decay):
        g, a = self.g + decay * earlier.g, self.a + earlier.a
        wanted = self.trace() + decay * earlier.trace()
        return ToyMatrix(self.block, g, a * (wanted / (g.trace() * a.trace())))

    def scale(self, factor):
        return ToyMatrix(self.block, factor * self.g, self.a)

    def _in_basis(self, d, change):
        (s_g, u_g), (s_a, u_a) = torch.linalg.eigh(self.g), torch.linalg.eigh(self.a)
        turned = u_g.T @ self._joined(d) @ u_a
        return self._cut(u_g @ change(turned, torch.outer(s_g, s_a).clamp(min=0)) @ u_a.T)

    def shrink(self, d, strength):
        return self._in_basis(d, lambda turned, s: turned / (1 + strength * s))

    def solve(self, b, damping=0.0):
        return self._in_basis(b, lambda turned, s: turned / (s + damping))

    def diagonal(self):
        return self._cut(torch.outer(self.g.diagonal(), self.a.diagonal()))

    def trace(self):
        return self.g.trace() * self.a.trace()

    def largest_eigenvalue(self):
        return torch.linalg.eigvalsh(self.g)[-1] * torch.linalg.eigvalsh(self.a)[-1]

    def state(self):
        return {"G": self.g, "A": self.a}


class ToyReduction(Reduction):
    def __init__(self, measure, blocks, parameters):
        self.phi = measure.phi
        self.blocks = {name: block for block in blocks for name in block.parameters}
        self.sums = {}
        for block in blocks:
            weight = parameters[block.parameters[0]]
            outputs, inputs = weight.shape
            inputs += len(block.parameters) - 1
            self.sums[f"{block.name}/G"] = weight.new_zeros(outputs, outputs, requires_grad=False)
            self.sums[f"{block.name}/A"] = weight.new_zeros(inputs, inputs, requires_grad=False)

    def add(self, arrival):
        block = self.blocks[next(iter(arrival.parts.values())).name]
        a = arrival.input.flatten(1, -2) if arrival.input.ndim > 2 else arrival.input.unsqueeze(1)
        if a.shape[1] != 1 or len(arrival.parts) != len(block.parameters):
            raise ModelError(f"{block.name!r} is used along a sequence, or in parts.")
        a, delta = a.squeeze(1), arrival.delta.reshape(*arrival.delta.shape[:2], -1)
        if len(block.parameters) > 1:
            a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        self.sums[f"{block.name}/G"] += torch.einsum("vno,vnp->op", delta, delta)
        if arrival.first:
            self.sums[f"{block.name}/A"] += a.T @ a

    def add_gradients(self, gradients, lead):
        raise ModelError(f"{next(iter(gradients))!r} is used in several places, or in a way that has no rule.")


@dataclasses.dataclass(frozen=True)
class ToyKronecker(Form):
    """Layer by layer; needs its basis only when asked to shrink or to solve, so one pass will do."""

    damping: float = 0.0

    def blocks(self, model, parameters):
        names = {id(parameter): name for name, parameter in named_parameters(model)}
        found = []
        for module in model.modules():
            if isinstance(module, nn.Linear):
                own = tuple(names[id(p)] for p in (module.weight, module.bias) if p is not None)
                kept = tuple(name for name in own if name in parameters)
                if kept:
                    found.append(Block(kept[0].removesuffix(".weight"), kept))
        return found

    def reduction(self, measure, blocks, parameters, known):
        return ToyReduction(measure, blocks, parameters)

    def matrices(self, measure, blocks, means):
        found = {}
        for block in blocks:
            g, a = means[f"{block.name}/G"], means[f"{block.name}/A"]
            found[block.name] = ToyMatrix(block, g + self.damping * torch.eye(len(g), dtype=g.dtype), a)
        return found

    def restore(self, block, tensors, parameters):
        weight = parameters[block.parameters[0]]
        expected = {"G": (weight.shape[0],) * 2, "A": (weight.shape[1] + len(block.parameters) - 1,) * 2}
        if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
            raise StateError(f"The factors of {block.name!r} are of another layer.")
        return ToyMatrix(block, tensors["G"], tensors["A"])
