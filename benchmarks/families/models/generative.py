"""Networks that make things: diffusion, autoencoders, flows, adversaries, fields."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Case, Section
from benchmarks.families.models.vision import images, labels

generative = Section[Case]("Generative models and fields")


def of_time(t: Tensor, width: int = 6) -> Tensor:
    """Return sines and cosines of a time."""
    speeds = torch.exp(torch.arange(width // 2, dtype=t.dtype) * (-math.log(100.0) / (width // 2)))
    return torch.cat([(t[:, None] * speeds).sin(), (t[:, None] * speeds).cos()], -1)


@generative.add("diffusion U-Net")
def diffusion() -> Case:
    """Time embedding added to features, GroupNorm, self-attention over pixels, skip, upsampling."""

    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 4))
            self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
            self.down, self.qkv, self.out = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 12, 1), nn.Conv2d(4, 4, 1)
            self.last = nn.Conv2d(8, 2, 3, padding=1)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            h = F.silu(self.norm(self.first(x))) + self.time(of_time(t))[:, :, None, None]
            low = self.down(h)
            q, k, v = self.qkv(low).flatten(2).transpose(1, 2).chunk(3, -1)
            seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(low.shape)
            outputs: Tensor = self.last(torch.cat([h, F.interpolate(low + self.out(seen), scale_factor=2)], 1))
            return outputs

    return Case(Diffusion(), (images(2, 4, 4), torch.rand(5)), outputs="values")


@generative.add("DiT")
def dit() -> Case:
    """adaLN-Zero: shift, scale and gate of a norm without weights, from time and class."""

    class DiT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.time, self.classes = nn.Linear(4, 8), nn.Linear(6, 8), nn.Embedding(3, 8)
            self.places = nn.Parameter(torch.randn(1, 3, 8))
            self.norm, self.modulate = nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 48)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.mlp, self.out = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.Linear(8, 4)

        def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
            c = F.silu(self.time(of_time(t)) + self.classes(y))
            a, b, g, d, e, f = self.modulate(c)[:, None].chunk(6, -1)
            h = self.embed(x) + self.places
            n = self.norm(h) * (1 + a) + b
            h = h + g * self.attention(n, n, n, need_weights=False)[0]
            outputs: Tensor = self.out(h + f * self.mlp(self.norm(h) * (1 + d) + e))
            return outputs

    return Case(DiT(), (torch.randn(5, 3, 4), torch.rand(5), labels()), outputs="values")


@generative.add("autoencoder")
def autoencoder() -> Case:
    """A code of two numbers, and the way back."""
    model = nn.Sequential(nn.Linear(6, 4), nn.ELU(), nn.Linear(4, 2), nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 6))
    return Case(model, torch.randn(5, 6), outputs="values")


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 4), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 6))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + noise * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
        return torch.cat([self.decode(z), divergence], -1)


@generative.add("VAE")
def vae() -> Case:
    """The noise as an input; reconstruction and divergence as outputs."""
    return Case(Vae(), (torch.randn(5, 6), torch.randn(5, 2)), outputs="values")


@generative.add("VQ-VAE")
def vq_vae() -> Case:
    """A code book: the nearest code by argmin, straight through."""

    class Vq(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.codes, self.decode = nn.Linear(6, 3), nn.Embedding(5, 3), nn.Linear(3, 6)

        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            code = self.codes((z[:, None] - self.codes.weight).square().sum(-1).argmin(-1))
            return torch.cat([self.decode(z + (code - z).detach()), code - z.detach()], -1)

    return Case(Vq(), torch.randn(5, 6), outputs="values")


@generative.add("normalising flow")
def flow() -> Case:
    """RealNVP: affine couplings and the log-determinant."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4)) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            volume = torch.zeros(len(x), 1, dtype=x.dtype)
            for net in self.nets:
                scale, shift = net(a).chunk(2, -1)
                a, b = b * scale.tanh().exp() + shift, a
                volume = volume + scale.tanh().sum(-1, keepdim=True)
            return torch.cat([a, b, volume], -1)

    return Case(Flow(), torch.randn(5, 4), outputs="values")


@generative.add("autoregressive, masked")
def masked_autoregressive() -> Case:
    """MADE: linear layers whose weights are multiplied by masks."""

    class MaskedLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight * torch.ones_like(self.weight).tril(-1), self.bias)

    return Case(nn.Sequential(MaskedLinear(5, 5), nn.ReLU(), MaskedLinear(5, 5)), torch.randn(5, 5), outputs="values")


@generative.add("GAN discriminator")
def discriminator() -> Case:
    """Convolutions with spectral normalisation, leaky ReLU, logits for every patch."""
    norm = torch.nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(
        norm(nn.Conv2d(3, 4, 3, 2, 1)), nn.LeakyReLU(0.2), norm(nn.Conv2d(4, 4, 3, 2, 1)), nn.LeakyReLU(0.2),
        nn.Conv2d(4, 1, 1), nn.Flatten(),
    )  # fmt: skip
    return Case(model, images(), outputs="values")


@generative.add("minibatch discrimination")
def minibatch() -> Case:
    """A GAN's features that compare the samples of a batch: they depend on each other."""

    class Minibatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 4), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x).relu()
            near = (-(h[:, None] - h[None]).abs()).exp().mean(1)
            outputs: Tensor = self.head(torch.cat([h, near], -1))
            return outputs

    return Case(Minibatch(), torch.randn(5, 6), labels(5, 2), mixes=True)


@generative.add("StyleGAN generator")
def style() -> Case:
    """A constant to start from, weights modulated and demodulated for every sample, noise by a learned strength."""

    class Style(nn.Module):
        fixed: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.start, self.map, self.style = nn.Parameter(torch.randn(1, 4, 4, 4)), nn.Linear(5, 6), nn.Linear(6, 4)
            self.weight, self.noise = nn.Parameter(torch.randn(3, 4, 3, 3)), nn.Parameter(torch.tensor(0.3))
            self.register_buffer("fixed", torch.randn(4, 4))

        def forward(self, z: Tensor) -> Tensor:
            n = len(z)
            weight = self.weight * self.style(F.leaky_relu(self.map(z)))[:, None, :, None, None]
            weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-6).rsqrt()
            x = self.start.expand(n, -1, -1, -1).reshape(1, n * 4, 4, 4)
            x = F.conv2d(x, weight.reshape(n * 3, 4, 3, 3), padding=1, groups=n).view(n, 3, 4, 4)
            return F.leaky_relu(x + self.noise * self.fixed)

    return Case(Style(), torch.randn(5, 5), outputs="values")


@generative.add("NeRF")
def nerf() -> Case:
    """Fourier features of points on a ray, density and colour, composited along the ray."""

    class Nerf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.density, self.colour = nn.Linear(12, 8), nn.Linear(8, 1), nn.Linear(8, 3)

        def forward(self, points: Tensor) -> Tensor:
            waves = torch.cat([f(2**k * points) for k in range(2) for f in (torch.sin, torch.cos)], -1)
            h = self.body(waves).relu()
            opacity = 1 - (-F.softplus(self.density(h))).exp()
            left = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity[:, :-1]], 1), 1)
            outputs: Tensor = (left * opacity * self.colour(h).sigmoid()).sum(1)
            return outputs

    return Case(Nerf(), torch.randn(5, 4, 3), outputs="values")


@generative.add("SIREN and hash grid")
def siren() -> Case:
    """Sine layers, and a table that is interpolated between its entries."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.first, self.last = nn.Parameter(torch.randn(16, 4)), nn.Linear(5, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            place = x.sigmoid() * 14
            low = place.floor().long()
            weight = (place - low).unsqueeze(-1)
            found = ((1 - weight) * self.table[low] + weight * self.table[low + 1]).squeeze(1)
            outputs: Tensor = self.last((3 * self.first(torch.cat([x, found], -1))).sin())
            return outputs

    return Case(Field(), torch.randn(5, 1), outputs="values")


@generative.add("energy-based, score by autograd")
def energy() -> Case:
    """The output is the gradient of an energy in the input, taken inside forward."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 1))

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return -torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]

    return Case(Energy(), torch.randn(5, 4), outputs="values")
