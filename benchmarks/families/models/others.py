"""Policies, metric learning, unusual parametrisations, layers that solve something, memories."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from benchmarks.families.family import Case, Section
from benchmarks.families.models.vision import images, labels, pooled

policies = Section[Case]("Policies and values")
metric = Section[Case]("Metric learning")
parametrised = Section[Case]("Parametrisations, adapters, generated weights")
implicit = Section[Case]("Layers that solve something, and memories")


def two_layers(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, outputs))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(6, 7), nn.Linear(7, 3), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x).tanh()
        return self.actor(h), self.critic(h)


@policies.add("discrete actor")
def actor() -> Case:
    """Logits of actions."""
    return Case(two_layers(), torch.randn(5, 6), labels())


@policies.add("Gaussian actor")
def gaussian() -> Case:
    """A mean from the network, a log-deviation that is a parameter, expanded."""

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.deviation = two_layers(2), nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            mean = self.mean(x)
            return torch.cat([mean, self.deviation.expand_as(mean)], -1)

    return Case(Gaussian(), torch.randn(5, 6), outputs="values")


@policies.add("actor-critic, the actor")
def actor_critic() -> Case:
    """A shared body; forward takes the actor's part, and the critic's head has importance 0."""
    return Case(ActorCritic(), torch.randn(5, 6), labels(), forward=lambda model, x: model(x)[0])


@policies.add("actor-critic as it is")
def both_heads() -> Case:
    """Returns a tuple, of which nothing says what to measure."""
    return Case(ActorCritic(), torch.randn(5, 6), labels(), formula=lambda model, x: model(x)[0])


@policies.add("dueling DQN")
def dueling() -> Case:
    """Value plus advantage minus its mean."""

    class Dueling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.value, self.advantage = nn.Linear(6, 7), nn.Linear(7, 1), nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x).relu()
            a = self.advantage(h)
            outputs: Tensor = self.value(h) + a - a.mean(-1, keepdim=True)
            return outputs

    return Case(Dueling(), torch.randn(5, 6), outputs="values")


@policies.add("NoisyNet")
def noisy() -> Case:
    """Noise in the weights while training, their means in eval mode."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.spread, self.head = (
                nn.Parameter(torch.randn(7, 6)),
                nn.Parameter(torch.ones(7, 6)),
                nn.Linear(7, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            weight = self.mean + self.spread * torch.randn_like(self.mean) if self.training else self.mean
            outputs: Tensor = self.head(F.linear(x, weight).relu())
            return outputs

    return Case(Noisy(), torch.randn(5, 6), labels())


@policies.add("noise in eval mode")
def always_noisy() -> Case:
    """A policy that draws in forward, in eval mode too: no two calls agree, so nothing can be measured."""

    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = two_layers()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.net(x) + torch.randn(len(x), 3, dtype=x.dtype)
            return outputs

    return Case(Drawn(), torch.randn(5, 6), labels(), mixes=True)


@policies.add("recurrent policy")
def recurrent_policy() -> Case:
    """A GRU cell whose state is an input and an output."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            state = self.cell(x, state)
            return self.head(state), state

    inputs = torch.randn(5, 6), torch.randn(5, 5)
    return Case(Recurrent(), inputs, labels(), forward=lambda model, both: model(*both)[0])


@policies.add("decision transformer")
def decision() -> Case:
    """Returns, states and actions as tokens in turn; actions are predicted from states."""

    class Decision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.returns, self.states, self.actions = nn.Linear(1, 8), nn.Linear(3, 8), nn.Embedding(3, 8)
            self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, returns: Tensor, states: Tensor, actions: Tensor) -> Tensor:
            h = torch.stack([self.returns(returns), self.states(states), self.actions(actions)], 2).flatten(1, 2)
            mask = torch.full((h.shape[1],) * 2, -torch.inf, dtype=h.dtype).triu(1)
            outputs: Tensor = self.head(self.body(h, src_mask=mask)[:, 1::3])
            return outputs

    actions = torch.randint(3, (4, 3))
    return Case(Decision(), (torch.randn(4, 3, 1), torch.randn(4, 3, 3), actions), actions)


@metric.add("prototypes by cdist")
def prototypes() -> Case:
    """Distances to learned prototypes as logits."""

    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.centres = two_layers(4), nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return -torch.cdist(self.body(x), self.centres)

    return Case(Prototypes(), torch.randn(5, 6), labels())


@metric.add("prototypical network")
def episode() -> Case:
    """Prototypes are means of a support set, which is an input that belongs to all samples."""

    class Episode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = two_layers(4)

        def forward(self, x: Tensor, support: Tensor) -> Tensor:
            centres = self.body(support).view(3, 2, 4).mean(1)
            outputs: Tensor = -(self.body(x)[:, None] - centres).square().sum(-1)
            return outputs

    support = torch.randn(6, 6)
    return Case(Episode(), (torch.randn(5, 6), support), labels())


class Sphere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.weight = two_layers(4), nn.Parameter(torch.randn(3, 4))
        self.scale = nn.Parameter(torch.tensor(4.0))


class Cosine(Sphere):
    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(self.body(x), dim=-1), F.normalize(self.weight, dim=-1))


@metric.add("cosine head")
def cosine() -> Case:
    """Features and weights on the sphere, a learned scale."""
    return Case(Cosine(), torch.randn(5, 6), labels())


@metric.add("ArcFace")
def arcface() -> Case:
    """The true class's angle grows by a margin, so that the label is an input."""

    class ArcFace(Sphere):
        def forward(self, x: Tensor, label: Tensor) -> Tensor:
            cosines = F.linear(F.normalize(self.body(x), dim=-1), F.normalize(self.weight, dim=-1))
            angles = cosines.clamp(-0.999, 0.999).acos() + 0.3 * F.one_hot(label, 3)
            return self.scale * angles.cos()

    return Case(ArcFace(), (torch.randn(5, 6), labels()), labels())


@metric.add("triplets")
def triplets() -> Case:
    """One network on three inputs of a sample, and distances."""

    class Triplet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = two_layers(4)

        def forward(self, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
            a, p, n = self.body(a), self.body(p), self.body(n)
            return torch.stack([(a - p).square().sum(-1), (a - n).square().sum(-1)], -1)

    return Case(Triplet(), tuple(torch.randn(3, 5, 6)), outputs="values")


@metric.add("BYOL")
def byol() -> Case:
    """A student and a teacher without gradients."""

    class Byol(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher, self.predict = two_layers(4), two_layers(4), nn.Linear(4, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            with torch.no_grad():
                target = F.normalize(self.teacher(b), dim=-1)
            return (F.normalize(self.predict(self.student(a)), dim=-1) * target).sum(-1, keepdim=True)

    return Case(Byol(), (torch.randn(5, 6), torch.randn(5, 6)), outputs="values")


@parametrised.add("weight norm")
def weight_norm() -> Case:
    """Direction and length of a linear and a convolutional layer."""
    model = pooled(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.ReLU())
    model[-1] = parametrizations.weight_norm(model[-1])
    return Case(model, images(3, 6, 6), labels())


@parametrised.add("weight norm by hooks")
def old_weight_norm() -> Case:
    """torch's older one, which sets the weight before every call."""
    model = two_layers()
    model[0] = nn.utils.weight_norm(model[0])
    return Case(model, torch.randn(5, 6), labels())


@parametrised.add("spectral norm by hooks")
def old_spectral_norm() -> Case:
    """torch's older one, with a power iteration in training mode."""
    model = two_layers()
    model[0] = nn.utils.spectral_norm(model[0])
    return Case(model, torch.randn(5, 6), labels())


@parametrised.add("orthogonal weights")
def orthogonal() -> Case:
    """By Householder reflections, and by the matrix exponential."""
    model = nn.Sequential(
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="householder"), nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="matrix_exp"), nn.Linear(6, 3),
    )  # fmt: skip
    return Case(model, torch.randn(5, 6), labels())


@parametrised.add("weight standardisation")
def standardised() -> Case:
    """Convolutions whose weights are normalised at every call, with a gain (NFNet, BiT)."""

    class Standard(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(3, 4, 3)
            self.gain = nn.Parameter(torch.ones(4, 1, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            weight = self.gain * weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
            return F.conv2d(x, weight, self.bias)

    return Case(pooled(Standard(), nn.GroupNorm(2, 4), nn.ReLU()), images(3, 6, 6), labels())


class LowRank(nn.Module):
    def __init__(self, layer: nn.Linear, *, dora: bool = False) -> None:
        super().__init__()
        self.layer, outputs, inputs = layer, layer.out_features, layer.in_features
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))
        self.length = nn.Parameter(layer.weight.detach().norm(dim=1)) if dora else None

    def forward(self, x: Tensor) -> Tensor:
        if self.length is None:
            outputs: Tensor = self.layer(x) + 0.5 * (x @ self.a.T) @ self.b.T
            return outputs
        weight = self.layer.weight + 0.5 * self.b @ self.a
        return F.linear(x, self.length[:, None] * F.normalize(weight, dim=1), self.layer.bias)


def frozen(model: nn.Module, *trained: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in trained))
    return model


@parametrised.add("LoRA by hand")
def lora() -> Case:
    """A frozen layer and two low-rank ones as parameters."""
    model = nn.Sequential(LowRank(nn.Linear(6, 7)), nn.Tanh(), nn.Linear(7, 3))
    return Case(frozen(model, ".a", ".b"), torch.randn(5, 6), labels())


@parametrised.add("DoRA by hand")
def dora() -> Case:
    """The length of every row apart from its direction."""
    model = nn.Sequential(LowRank(nn.Linear(6, 7), dora=True), nn.Tanh(), nn.Linear(7, 3))
    return Case(frozen(model, ".a", ".b", "length"), torch.randn(5, 6), labels())


@parametrised.add("adapters")
def adapters() -> Case:
    """A narrow residual layer after frozen ones."""

    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(7, 2), nn.Linear(2, 7)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = x + self.up(self.down(x).relu())
            return outputs

    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), Adapter(), nn.Linear(7, 3))
    return Case(frozen(model, "down", "up"), torch.randn(5, 6), labels())


@parametrised.add("prompt tuning")
def prompts() -> Case:
    """Learned vectors before the sequence of a frozen transformer."""

    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.embed, self.head = nn.Parameter(torch.randn(2, 8)), nn.Embedding(6, 8), nn.Linear(8, 3)
            self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            prompt = self.prompt.unsqueeze(0).expand(len(tokens), -1, -1)
            outputs: Tensor = self.head(self.body(torch.cat([prompt, self.embed(tokens)], 1))[:, 0])
            return outputs

    return Case(frozen(Prompted(), "prompt", "head"), torch.randint(6, (5, 4)), labels())


@parametrised.add("half of the weights frozen")
def half_frozen() -> Case:
    """requires_grad=False for the first layer."""
    return Case(frozen(two_layers(), "2."), torch.randn(5, 6), labels())


@parametrised.add("tied across layers, transposed")
def tied_transposed() -> Case:
    """An autoencoder whose decoder is its encoder's transpose, with a bias of its own."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.linear(x, self.weight).tanh(), self.weight.T, self.bias)

    return Case(Tied(), torch.randn(5, 6), outputs="values")


@parametrised.add("hypernetwork")
def hypernetwork() -> Case:
    """One network makes another's weights from the task's embedding, the same for all samples."""

    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.task, self.make = nn.Parameter(torch.randn(4)), nn.Linear(4, 21)

        def forward(self, x: Tensor) -> Tensor:
            made = self.make(self.task)
            return F.linear(x, made[:18].view(3, 6), made[18:])

    return Case(Hyper(), torch.randn(5, 6), labels())


@parametrised.add("hypernetwork, weights for every sample")
def conditional() -> Case:
    """Dynamic filters: the weights are made from the sample."""

    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = nn.Linear(6, 18)

        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(self.make(x).view(-1, 3, 6), x[..., None]).squeeze(-1)

    return Case(Dynamic(), torch.randn(5, 6), labels())


@parametrised.add("meta-learning, fast weights")
def fast_weights() -> Case:
    """MAML: a gradient step on a sample's own support, inside forward, then the query."""

    class Fast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3))

        def forward(self, query: Tensor, support: Tensor, label: Tensor) -> Tensor:
            def logits(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
                return (weight @ x[..., None]).squeeze(-1) + bias

            with torch.enable_grad():
                weight, bias = self.weight.expand(len(query), -1, -1), self.bias.expand(len(query), -1)
                loss = F.cross_entropy(logits(weight, bias, support), label, reduction="sum")
                first, second = torch.autograd.grad(loss, [weight, bias], create_graph=True)
            return logits(weight - 0.3 * first, bias - 0.3 * second, query)

    return Case(Fast(), (torch.randn(5, 6), torch.randn(5, 6), labels()), labels())


@parametrised.add("KAN")
def kan() -> Case:
    """Splines on every edge: coefficients of hat functions, and a base weight."""

    class Kan(nn.Module):
        knots: Tensor

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.coefficients, self.base = nn.Parameter(torch.randn(outputs, inputs, 5)), nn.Linear(inputs, outputs)
            self.register_buffer("knots", torch.linspace(-2, 2, 5))

        def forward(self, x: Tensor) -> Tensor:
            hats = (1 - (x[..., None] - self.knots).abs()).relu()
            outputs: Tensor = self.base(F.silu(x)) + torch.einsum("nik,oik->no", hats, self.coefficients)
            return outputs

    return Case(nn.Sequential(Kan(6, 4), Kan(4, 3)), torch.randn(5, 6), labels())


@parametrised.add("RBF network")
def rbf() -> Case:
    """Gaussians with learned centres and widths."""

    class Rbf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.widths, self.head = (
                nn.Parameter(torch.randn(4, 6)),
                nn.Parameter(torch.rand(4)),
                nn.Linear(4, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head((-(x[:, None] - self.centres).square().sum(-1) * self.widths.exp() / 6).exp())
            return outputs

    return Case(Rbf(), torch.randn(5, 6), labels())


@parametrised.add("maxout, highway, gates by parameters")
def gates() -> Case:
    """Maxout pieces, a highway gate, a learned activation slope and temperature."""

    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pieces, self.gate, self.head = nn.Linear(6, 18), nn.Linear(6, 6), nn.Linear(6, 3)
            self.slope, self.temperature = nn.Parameter(torch.ones(6)), nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Tensor) -> Tensor:
            g = self.gate(x).sigmoid()
            h = g * self.pieces(x).view(-1, 6, 3).amax(-1) + (1 - g) * x
            outputs: Tensor = self.head(h * (self.slope * h).sigmoid()) / self.temperature
            return outputs

    return Case(Gates(), torch.randn(5, 6), labels())


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, t: float, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(torch.cat([x, torch.full_like(x[:, :1], t)], -1))
        return outputs


@implicit.add("neural ODE")
def ode() -> Case:
    """Four steps of Runge and Kutta: one network used sixteen times."""

    class Ode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.flow, self.head = nn.Linear(6, 4), Flow(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x, h = self.first(x), 0.25
            for step in range(4):
                t = step * h
                a = self.flow(t, x)
                b = self.flow(t + h / 2, x + h / 2 * a)
                c = self.flow(t + h / 2, x + h / 2 * b)
                d = self.flow(t + h, x + h * c)
                x = x + h / 6 * (a + 2 * b + 2 * c + d)
            outputs: Tensor = self.head(x)
            return outputs

    return Case(Ode(), torch.randn(5, 6), labels())


class Deq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u, self.head = nn.Linear(5, 5), nn.Linear(6, 5), nn.Linear(5, 3)

    def step(self, z: Tensor, x: Tensor) -> Tensor:
        value: Tensor = (0.3 * self.w(z) + self.u(x)).tanh()
        return value


@implicit.add("DEQ, unrolled")
def unrolled() -> Case:
    """A fixed point by fifty iterations, differentiated through."""

    class Unrolled(Deq):
        def forward(self, x: Tensor) -> Tensor:
            z = torch.zeros(len(x), 5, dtype=x.dtype)
            for _ in range(50):
                z = self.step(z, x)
            outputs: Tensor = self.head(z)
            return outputs

    return Case(Unrolled(), torch.randn(5, 6), labels())


@implicit.add("DEQ, implicit gradient")
def deq() -> Case:
    """A fixed point without gradients, and a hook that solves for the gradient."""

    class Implicit(Deq):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                z = torch.zeros(len(x), 5, dtype=x.dtype)
                for _ in range(60):
                    z = self.step(z, x)
            z = self.step(z, x)
            if z.requires_grad:
                start = z.detach().requires_grad_()
                again = self.step(start, x.detach())

                def solve(grad: Tensor) -> Tensor:
                    g = grad
                    for _ in range(60):
                        g = torch.autograd.grad(again, start, g, retain_graph=True)[0] + grad
                    return g

                z.register_hook(solve)
            outputs: Tensor = self.head(z)
            return outputs

    return Case(Implicit(), torch.randn(5, 6), labels())


class FixedPoint(torch.autograd.Function):
    """x ↦ x³ with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        value: Tensor = 3 * ctx.saved_tensors[0] ** 2 * grad
        return value


@implicit.add("autograd.Function of one's own")
def own_function() -> Case:
    """Without a vmap rule."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.scale, self.head = nn.Linear(6, 5), nn.Parameter(torch.ones(5, 5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(FixedPoint.apply(self.first(x) @ self.scale.tanh()))  # type: ignore[no-untyped-call]  # as torch has it
            return outputs

    return Case(Own(), torch.randn(5, 6), labels())


@implicit.add("a solver as a layer")
def solver() -> Case:
    """torch.linalg.solve with a matrix from parameters, and one from the sample."""

    class Solve(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.make, self.head = nn.Parameter(torch.randn(4, 4)), nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            b = self.make(x)
            matrix = self.matrix @ self.matrix.T + torch.diag_embed(1 + b.square())
            outputs: Tensor = self.head(torch.linalg.solve(matrix, b[..., None]).squeeze(-1))
            return outputs

    return Case(Solve(), torch.randn(5, 6), labels())


@implicit.add("capsules")
def capsules() -> Case:
    """Routing by agreement: votes by one matrix for each pair of capsules."""

    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.votes = nn.Linear(6, 12), nn.Parameter(torch.randn(4, 3, 3, 2))

        def forward(self, x: Tensor) -> Tensor:
            u = self.first(x).view(-1, 4, 3)
            votes = torch.einsum("nid,ijde->nije", u, self.votes)
            logits = torch.zeros(votes.shape[:3], dtype=x.dtype)
            for _ in range(3):
                s = (logits.softmax(2)[..., None] * votes).sum(1)
                size = s.square().sum(-1, keepdim=True)
                v = s * size.sqrt() / (1 + size)
                logits = logits + (votes * v[:, None]).sum(-1)
            outputs: Tensor = v.norm(dim=-1)
            return outputs

    return Case(Capsules(), torch.randn(5, 6), labels())


@implicit.add("attention memory")
def memory() -> Case:
    """A neural Turing machine: a controller that reads and writes a memory that starts from a parameter."""

    class Machine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.cell = nn.Parameter(torch.randn(4, 3)), nn.GRUCell(7, 5)
            self.key, self.write, self.strength, self.head = (
                nn.Linear(5, 3),
                nn.Linear(5, 3),
                nn.Linear(5, 1),
                nn.Linear(8, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            memory, state = self.start.expand(len(x), -1, -1), torch.zeros(len(x), 5, dtype=x.dtype)
            read = memory.mean(1)
            for step in x.unbind(1):
                state = self.cell(torch.cat([step, read], -1), state)
                match = F.cosine_similarity(memory, self.key(state)[:, None], dim=-1)
                weights = (F.softplus(self.strength(state)) * match).softmax(-1)
                memory = memory + weights[..., None] * self.write(state)[:, None].tanh()
                read = (weights[..., None] * memory).sum(1)
            outputs: Tensor = self.head(torch.cat([state, read], -1))
            return outputs

    return Case(Machine(), torch.randn(5, 4, 4), labels())


@implicit.add("Hopfield, product keys")
def product_keys() -> Case:
    """A large memory of values, of which the best few are looked up by the product of two small sets of keys."""

    class Keys(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.keys, self.values = (
                nn.Linear(6, 4),
                nn.Parameter(torch.randn(2, 4, 2)),
                nn.Embedding(16, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            q = self.query(x).view(-1, 2, 2)
            a, b = torch.einsum("nhd,hkd->hnk", q, self.keys)
            scores, places = (a[:, :, None] + b[:, None]).flatten(1).topk(3)
            outputs: Tensor = (scores.softmax(-1)[..., None] * self.values(places)).sum(1)
            return outputs

    return Case(Keys(), torch.randn(5, 6), labels())


@implicit.add("early exit, data-dependent depth")
def early_exit() -> Case:
    """A sample leaves when it is sure enough, and the rest of the batch goes on."""

    class Exits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).tanh()
            for _ in range(3):
                out = self.head(h)
                going = out.softmax(-1).amax(-1) < 0.5
                if not bool(going.any()):
                    break
                h = torch.where(going[:, None], self.block(h).tanh(), h)
            outputs: Tensor = self.head(h)
            return outputs

    return Case(Exits(), torch.randn(5, 6), labels())


@implicit.add("Gaussian process by random features")
def random_features() -> Case:
    """Fixed cosine features with a learned length scale (SNGP's head)."""

    class Features(nn.Module):
        waves: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.zeros(())), nn.Linear(8, 3)
            self.register_buffer("waves", torch.randn(6, 8))

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(math.sqrt(0.25) * (x @ self.waves * self.scale.exp()).cos())
            return outputs

    return Case(Features(), torch.randn(5, 6), labels())
