"""Parameters used in ways that a tracer may overlook: derivatives inside forward, rows, slices, detached copies."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Case, Section
from benchmarks.families.models.others import two_layers
from benchmarks.families.models.vision import images, labels

derivatives = Section[Case]("Derivatives inside forward")
uses = Section[Case]("Unusual uses of a parameter")


def field(inputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, 1))


@derivatives.add("physics-informed")
def pinn() -> Case:
    """A field, its gradient in space and its second derivative, by autograd with create_graph."""

    class Pinn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = field(2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                u = self.field(x)
                first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
                second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0]
            return torch.cat([u, first, second[:, :1] - u**3], -1)

    return Case(Pinn(), torch.randn(5, 2), outputs="values")


@derivatives.add("physics-informed by torch.func")
def pinn_func() -> Case:
    """The same by vmap of grad."""

    class Pinn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = field(2)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = torch.vmap(torch.func.grad(lambda one: self.field(one).squeeze()))(x)
            return outputs

    return Case(Pinn(), torch.randn(5, 2), outputs="values")


@derivatives.add("Hamiltonian network")
def hamiltonian() -> Case:
    """Position and momentum change as the energy's gradient says."""

    class Hamiltonian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = field(4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                q, p = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0].chunk(2, -1)
            return torch.cat([p, -q], -1)

    return Case(Hamiltonian(), torch.randn(5, 4), outputs="values")


@derivatives.add("input convex network, its gradient")
def convex() -> Case:
    """A map that is the gradient of a convex function, with softplus of the weights."""

    class Convex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(3, 5), nn.Parameter(torch.randn(1, 5))

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                height = F.linear(F.softplus(self.first(x)), F.softplus(self.weight))
                return torch.autograd.grad(height.sum(), x, create_graph=True)[0]

    return Case(Convex(), torch.randn(5, 3), outputs="values")


@derivatives.add("convolutional score")
def convolutional_score() -> Case:
    """The gradient of a convolutional energy in the image."""

    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv2d(4, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = self.head(F.softplus(self.norm(self.conv(x)))).sum()
                return torch.autograd.grad(energy, x, create_graph=True)[0]

    return Case(Score(), images(2, 4, 4), outputs="values")


@derivatives.add("unrolled inner optimisation")
def unrolled() -> Case:
    """Energy descent on the output inside forward (deep equilibrium energies, structured prediction)."""

    class Descent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = field(9)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                y = torch.zeros(len(x), 3, dtype=x.dtype).requires_grad_()
                for _ in range(3):
                    energy = self.energy(torch.cat([x, y], -1)).sum() + 0.1 * y.square().sum()
                    y = y - 0.5 * torch.autograd.grad(energy, y, create_graph=True)[0]
            return y

    return Case(Descent(), torch.randn(5, 6), labels())


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return -0.5 * grad


@uses.add("gradient reversal")
def reversal() -> Case:
    """Domain-adversarial training: two heads, one of them behind a Function that turns the gradient round."""

    class Adversarial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.domain = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x).tanh()
            outputs: Tensor = self.head(h) + self.domain(Reverse.apply(h))  # type: ignore[no-untyped-call]  # as torch has it
            return outputs

    return Case(Adversarial(), torch.randn(5, 6), labels())


@uses.add("hooks on activations")
def activation_hooks() -> Case:
    """Tensor.register_hook scales a gradient on its way back."""

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).tanh()
            if h.requires_grad:
                h.register_hook(lambda grad: 0.25 * grad)
            outputs: Tensor = self.head(h)
            return outputs

    return Case(Hooked(), torch.randn(5, 6), labels())


@uses.add("detached beside attached")
def detached() -> Case:
    """A weight used twice, once behind detach(); a stop-gradient on part of the input."""

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).tanh()
            h = h + F.linear(h, self.first.weight.detach(), self.first.bias)
            outputs: Tensor = self.head(torch.cat([h[:, :3].detach(), h[:, 3:]], -1))
            return outputs

    return Case(Detached(), torch.randn(5, 6), labels())


@uses.add("slices of one weight")
def slices() -> Case:
    """Slimmable layers: parts of a weight that overlap, its transpose, and its rows in another order."""

    class Slices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.linear(x, self.weight[:4]).tanh()
            h = F.linear(h, self.weight[1:, 1:5].clone()).tanh()
            h = F.linear(h, self.weight.flip(0)[:, :5]) + h.sum(1, keepdim=True)
            outputs: Tensor = self.head(h @ self.weight.T)
            return outputs

    return Case(Slices(), torch.randn(5, 6), labels())


@uses.add("rows of a weight for every sample")
def rows() -> Case:
    """Sampled softmax: the candidates' rows of the output layer, looked up by indexing and by gather."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.weight, self.bias = (
                two_layers(4),
                nn.Parameter(torch.randn(9, 4)),
                nn.Parameter(torch.randn(9)),
            )

        def forward(self, x: Tensor, candidates: Tensor) -> Tensor:
            scores = torch.einsum("nd,nkd->nk", self.body(x), self.weight[candidates])
            return scores + self.bias.expand(len(x), -1).gather(1, candidates)

    return Case(Rows(), (torch.randn(5, 6), torch.randint(9, (5, 3))), labels())


@uses.add("adaptive softmax")
def adaptive() -> Case:
    """nn.AdaptiveLogSoftmaxWithLoss, all log-probabilities."""

    class Adaptive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.AdaptiveLogSoftmaxWithLoss(8, 9, [3, 6], div_value=2.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.head.log_prob(self.body(x).tanh())

    return Case(Adaptive(), torch.randn(5, 6), labels(5, 9))


@uses.add("in-place operations")
def in_place() -> Case:
    """ReLU in place, add_, masked_fill_, writing into slices of an activation."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h.relu_()
            out = torch.zeros(len(x), 6, dtype=x.dtype)
            out[:, :4] = self.second(h)[:, :4]
            out[:, 4:] += h[:, :2]
            out.add_(h, alpha=0.5).masked_fill_(x > 1.5, 0.1)
            outputs: Tensor = self.head(out)
            return outputs

    return Case(InPlace(), torch.randn(5, 6), labels())


@uses.add("batch dimension elsewhere")
def elsewhere() -> Case:
    """Samples in the last dimension inside, folded together with others, and turned back at the end."""

    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.mix, self.head = nn.Parameter(torch.randn(5, 6)), nn.Linear(2, 2), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = (self.weight @ x.T).tanh()  # [5, N]
            pairs = torch.stack([h, h.flip(0)], -1).reshape(-1, 2)
            outputs: Tensor = self.head(self.mix(pairs).view(5, len(x), 2).sum(-1).T)
            return outputs

    return Case(Elsewhere(), torch.randn(5, 6), labels())


@uses.add("a sum over samples that is taken off again")
def centred_out() -> Case:
    """Outputs that do not depend on other samples, though what is inside does."""

    class Cancelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean(0)
            outputs: Tensor = self.head(self.first(x - mean) + F.linear(mean, self.first.weight))
            return outputs

    return Case(Cancelled(), torch.randn(5, 6), labels())


@uses.add("parameters in plain lists and dicts")
def hidden_parameters() -> Case:
    """ParameterList, ParameterDict, nested modules in a ModuleDict chosen by the input's size."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ParameterList([nn.Parameter(torch.randn(6, 6)) for _ in range(2)])
            self.offsets = nn.ParameterDict({"a": nn.Parameter(torch.randn(6))})
            self.heads = nn.ModuleDict({"6": nn.Linear(6, 3), "7": nn.Linear(7, 3)})

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = (torch.matmul(x, step) + self.offsets["a"]).tanh()
            outputs: Tensor = self.heads[str(x.shape[1])](x)
            return outputs

    return Case(Kept(), torch.randn(5, 6), labels())


@uses.add("every product there is")
def products() -> Case:
    """addmm, baddbmm, mv, tensordot, einsum with three operands, kron, outer, bilinear forms."""

    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.randn(6, 6) / 3) for _ in range(3))
            self.v, self.w, self.head = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(2, 3)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.addmm(self.v, x, self.a).tanh()
            x = x + torch.tensordot(x, self.b, dims=([1], [1]))
            x = x + torch.einsum("ni,ij,nj->n", x, self.c, x)[:, None] * self.v
            x = x + torch.baddbmm(self.v.view(1, 1, 6), x[:, None], self.a.expand(len(x), 6, 6)).squeeze(1)
            outputs: Tensor = self.head(
                x * torch.mv(x, self.v)[:, None] + x @ torch.kron(self.w, self.w.T.contiguous())
            )
            return outputs

    return Case(Products(), 0.3 * torch.randn(5, 6), labels())


@uses.add("functions of a parameter before its use")
def functions() -> Case:
    """1 + w, exp(w), softmax(w), cumsum(w), sorted(w) before an element-wise product."""

    class Functions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales, self.head = nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            one, exp, soft, total, ordered = self.scales
            x = (1 + one) * x + exp.exp() * x.sin()
            outputs: Tensor = self.head(soft.softmax(0) * x + total.cumsum(0) * x.cos() + ordered.sort().values * x)
            return outputs

    return Case(Functions(), torch.randn(5, 6), labels())


@uses.add("a scan over the batch in chunks")
def chunks() -> Case:
    """A forward that splits the batch in parts and puts them together."""

    class Chunks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = two_layers()

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.net(part) for part in x.split(2)])

    return Case(Chunks(), torch.randn(5, 6), labels())


@uses.add("samples in another order")
def sorted_samples() -> Case:
    """A forward that sorts the samples by a feature, as packing does, and puts them back."""

    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = two_layers()

        def forward(self, x: Tensor) -> Tensor:
            order = x[:, 0].argsort()
            outputs: Tensor = self.net(x[order])[order.argsort()]
            return outputs

    return Case(Sorted(), torch.randn(5, 6), labels())


@uses.add("samples left out and in again")
def routed() -> Case:
    """Each sample goes through one of two networks, chosen by a mask."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = two_layers(), two_layers()

        def forward(self, x: Tensor) -> Tensor:
            chosen = x[:, 0] > 0
            out = torch.empty(len(x), 3, dtype=x.dtype)
            out[chosen] = self.left(x[chosen])
            out[~chosen] = self.right(x[~chosen])
            return out

    return Case(Routed(), torch.randn(6, 6), labels(6))


@uses.add("two views of every sample")
def two_views() -> Case:
    """Both views go through the body in one batch of 2N, side by side, and are averaged."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = two_layers()

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.net(torch.cat([x, x.flip(1)])).chunk(2)
            outputs: Tensor = a + b.tanh()
            return outputs

    return Case(Views(), torch.randn(5, 6), labels())
