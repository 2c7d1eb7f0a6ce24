"""A dense form for a network of one layer: Q = E[Σ J_vᵀJ_v] over all of its weights, and its sums exact."""

import dataclasses

import torch

from anchorhold.engine.reductions import Reduction
from anchorhold.errors import StateError
from anchorhold.forms import Block, Form, Matrix


@dataclasses.dataclass(eq=False)
class DenseMatrix(Matrix):
    """Q(D) = H D for D with all weights in a row."""

    shapes: list[torch.Size]
    h: torch.Tensor

    def row(self, d):
        return torch.cat([d[name].flatten() for name in self.block.parameters])

    def cut(self, row):
        parts = row.split([shape.numel() for shape in self.shapes])
        named = zip(self.block.parameters, parts, self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in named}

    def apply(self, d):
        return self.cut(self.h @ self.row(d))

    def add(self, earlier, decay):
        return DenseMatrix(self.block, self.shapes, self.h + decay * earlier.h)

    def scale(self, factor):
        return DenseMatrix(self.block, self.shapes, factor * self.h)

    def shrink(self, d, strength):
        return self.cut(torch.linalg.solve(torch.eye(len(self.h)).to(self.h) + strength * self.h, self.row(d)))

    def solve(self, b, damping=0.0):
        return self.cut(torch.linalg.pinv(self.h + damping * torch.eye(len(self.h)).to(self.h)) @ self.row(b))

    def diagonal(self):
        return self.cut(self.h.diagonal())

    def trace(self):
        return self.h.trace()

    def largest_eigenvalue(self):
        return torch.linalg.eigvalsh(self.h.double())[-1]

    def state(self):
        return {"H": self.h}


class DenseReduction(Reduction):
    def __init__(self, measure, blocks, parameters):
        self.phi = measure.phi
        (self.block,) = blocks
        self.sums = {name: torch.zeros_like(parameters[name]).detach() for name in self.block.parameters}
        row = torch.cat([tensor.flatten() for tensor in self.sums.values()])
        self.sums["H"] = torch.outer(row, row)

    def add(self, arrival):
        roles = {part.name: role for role, part in arrival.parts.items()}
        assert set(roles) == set(self.block.parameters), "one layer has all weights"
        rows = [arrival.rule.gradients(roles[name], arrival.input, arrival.delta) for name in self.block.parameters]
        for name, own in zip(self.block.parameters, rows, strict=True):
            self.sums[name] += own.square().sum((0, 1))
        flat = torch.cat([own.flatten(2) for own in rows], 2)
        self.sums["H"] += torch.einsum("vnp,vnq->pq", flat, flat)

    def add_gradients(self, name, gradients, lead):
        raise AssertionError(f"{name!r} is used in several places")


@dataclasses.dataclass(frozen=True)
class ToyDense(Form):
    """One block of all parameters."""

    def blocks(self, model, parameters):
        return [Block("all", tuple(parameters))] if parameters else []

    def reduction(self, measure, blocks, parameters, known):
        return DenseReduction(measure, blocks, parameters)

    def matrices(self, measure, blocks, means):
        shapes = [[means[name].shape for name in block.parameters] for block in blocks]
        return {block.name: DenseMatrix(block, own, means["H"]) for block, own in zip(blocks, shapes, strict=True)}

    def restore(self, block, tensors, parameters):
        shapes = [parameters[name].shape for name in block.parameters]
        size = sum(shape.numel() for shape in shapes)
        if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != {"H": (size, size)}:
            raise StateError(f"The matrix of {block.name!r} is of another network.")
        return DenseMatrix(block, shapes, tensors["H"])
