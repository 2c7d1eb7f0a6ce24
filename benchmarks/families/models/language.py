"""Transformers over tokens, written by hand in the styles of today."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Case, Section
from benchmarks.families.models.vision import labels

language = Section[Case]("Transformers and language models by hand")
experts = Section[Case]("Mixtures of experts")

WORDS = 6


def text(samples: int = 4, length: int = 5) -> tuple[Tensor, Tensor]:
    """Return tokens and the next ones, with some that do not count."""
    tokens = torch.randint(WORDS, (samples, length))
    following = tokens.roll(-1, 1)
    following[:, -1] = following[0, 1] = -100
    return tokens, following


def rotated(x: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the position."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * 10.0 ** -torch.arange(half, dtype=x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class SwiGlu(nn.Module):
    def __init__(self, width: int = 8, inner: int = 12) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, inner), (width, inner), (inner, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return outputs


class Attention(nn.Module):
    """Causal attention with grouped queries: rotary, ALiBi, a window, norms of queries and keys, as asked for."""

    def __init__(
        self, *, rotary: bool = False, alibi: bool = False, window: int | None = None, normed: bool = False
    ) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.rotary, self.alibi, self.window = rotary, alibi, window
        self.norms = nn.ModuleList([RmsNorm(2), RmsNorm(2)]) if normed else None

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q = self.q(x).view(n, t, 4, 2).transpose(1, 2)
        k, v = (part.view(n, t, 2, 2).transpose(1, 2).repeat_interleave(2, 1) for part in self.kv(x).chunk(2, -1))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        gap = torch.arange(t)[:, None] - torch.arange(t)
        mask = torch.zeros(t, t, dtype=x.dtype).masked_fill(gap < 0, -torch.inf)
        if self.window is not None:
            mask = mask.masked_fill(gap >= self.window, -torch.inf)
        if self.alibi:
            mask = mask - gap.clamp(min=0) * 2.0 ** -torch.arange(1, 5, dtype=x.dtype)[:, None, None]
        outputs: Tensor = self.out(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(n, t, 8)
        )
        return outputs


class Decoder(nn.Module):
    """Tokens, blocks of attention and something else, and a head that may be the embedding."""

    def __init__(self, attention: nn.Module, other: nn.Module, *, tied: bool = False, places: bool = False) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, 8), nn.Embedding(16, 8) if places else None
        self.attention, self.other, self.norms = attention, other, nn.ModuleList(RmsNorm(8) for _ in range(3))
        self.head = nn.Linear(8, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1]))
        x = x + self.attention(self.norms[0](x))
        outputs: Tensor = self.head(self.norms[2](x + self.other(self.norms[1](x))))
        return outputs


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))


@language.add("Transformer encoder")
def encoder() -> Case:
    """torch's own, with a padding mask, a class for every sequence."""
    return padded_encoder(nested=False)


@language.add("Transformer encoder, nested tensors")
def nested() -> Case:
    """torch's own as it comes, which turns padded batches into nested tensors in eval mode."""
    return padded_encoder(nested=True)


def padded_encoder(*, nested: bool) -> Case:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(WORDS, 8, padding_idx=0), nn.Linear(8, 3)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

        def forward(self, tokens: Tensor) -> Tensor:
            padding = tokens == 0
            h = self.body(self.embed(tokens), src_key_padding_mask=padding)
            outputs: Tensor = self.head((h * ~padding[..., None]).sum(1))
            return outputs

    tokens = torch.randint(1, WORDS, (5, 5)) * (torch.arange(5) < torch.tensor([5, 3, 4, 2, 5])[:, None])
    return Case(Encoder(), tokens, labels())


@language.add("Transformer, sequence first")
def whole_transformer() -> Case:
    """nn.Transformer without batch_first: encoder and decoder, a causal mask."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target, self.head = nn.Embedding(7, 8), nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
            self.body = nn.Transformer(8, 2, 1, 1, 16)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
            h = self.body(self.source(source).transpose(0, 1), self.target(target).transpose(0, 1), tgt_mask=mask)
            outputs: Tensor = self.head(h).transpose(0, 1)
            return outputs

    tokens, following = text()
    return Case(Whole(), (torch.randint(7, (4, 6)), tokens), following)


@language.add("GPT, tied weights")
def gpt() -> Case:
    """Learned positions; the embedding is the head."""
    return Case(Decoder(Attention(), mlp(), tied=True, places=True), *text())


@language.add("Llama")
def llama() -> Case:
    """Rotary positions, RMSNorm, SwiGLU, grouped queries."""
    return Case(Decoder(Attention(rotary=True), SwiGlu()), *text())


@language.add("Qwen and Gemma style")
def normed() -> Case:
    """Norms of queries and keys, which are shared by all heads; soft cap on the logits."""
    tokens, following = text()
    return Case(
        Decoder(Attention(rotary=True, normed=True), SwiGlu()), tokens, following,
        forward=lambda model, x: 5 * (model(x) / 5).tanh(),
    )  # fmt: skip


@language.add("ALiBi")
def alibi() -> Case:
    """Biases that grow with distance, no positions."""
    return Case(Decoder(Attention(alibi=True), mlp()), *text())


@language.add("sliding window")
def window() -> Case:
    """Attention to the last two tokens."""
    return Case(Decoder(Attention(window=2, rotary=True), SwiGlu()), *text())


@language.add("parallel blocks, shared over layers")
def shared() -> Case:
    """One block run three times over, attention and MLP side by side (ALBERT, universal transformer)."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attention, self.other = nn.Embedding(WORDS, 8), Attention(rotary=True), mlp()
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, WORDS)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for _ in range(3):
                h = self.norm(x)
                x = x + self.attention(h) + self.other(h)
            outputs: Tensor = self.head(x)
            return outputs

    return Case(Shared(), *text())


@language.add("latent attention")
def latent() -> Case:
    """DeepSeek's: keys and values through a narrow layer, part of the keys rotary and shared by heads."""

    class Latent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.norm, self.up = nn.Linear(8, 5), RmsNorm(3), nn.Linear(3, 16)
            self.q, self.out = nn.Linear(8, 12), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            n, t, _ = x.shape
            narrow, turned = self.down(x).split([3, 2], -1)
            k, v = self.up(self.norm(narrow)).view(n, t, 2, 8).transpose(1, 2).chunk(2, -1)
            q = self.q(x).view(n, t, 2, 6).transpose(1, 2)
            turned = rotated(turned)[:, None].expand(-1, 2, -1, -1)
            q, k = torch.cat([q[..., :4], rotated(q[..., 4:])], -1), torch.cat([k, turned], -1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            outputs: Tensor = self.out(y.transpose(1, 2).reshape(n, t, 8))
            return outputs

    return Case(Decoder(Latent(), SwiGlu()), *text())


@language.add("attention sinks, differential attention")
def sinks() -> Case:
    """A learned logit for every head beside the keys; two softmaxes, one taken off the other with a learned λ."""

    class Sinks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
            self.sink, self.less = nn.Parameter(torch.randn(2)), nn.Parameter(torch.tensor(0.3))

        def forward(self, x: Tensor) -> Tensor:
            n, t, _ = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            found = []
            for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True):
                scores = (a @ b.transpose(-1, -2)).masked_fill(hidden, -torch.inf)
                scores = torch.cat([scores, self.sink.view(1, 2, 1, 1).expand(n, -1, t, 1)], -1)
                found.append(scores.softmax(-1)[..., :-1])
            outputs: Tensor = self.out(((found[0] - self.less * found[1]) @ v).transpose(1, 2).reshape(n, t, 8))
            return outputs

    return Case(Decoder(Sinks(), mlp()), *text())


@language.add("T5 style")
def t5() -> Case:
    """Relative position buckets as an embedding of [T, T], shared by layers."""

    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.buckets, self.head = nn.Embedding(WORDS, 8), nn.Embedding(4, 2), nn.Linear(8, WORDS)
            self.qkv = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))

        def forward(self, tokens: Tensor) -> Tensor:
            n, t = tokens.shape
            gap = (torch.arange(t)[:, None] - torch.arange(t)).clamp(0, 3)
            bias = self.buckets(gap).permute(2, 0, 1)
            x = self.embed(tokens)
            for layer in self.qkv:
                q, k, v = layer(x).view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
                x = x + ((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v).transpose(1, 2).reshape(n, t, 8)
            outputs: Tensor = self.head(x)
            return outputs

    return Case(Relative(), *text())


class Experts(nn.Module):
    """Tokens go to the experts that a router chooses for them."""

    def __init__(self, top: int, *, shared: bool = False, gathered: bool = True) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 3), nn.ModuleList(SwiGlu(8, 4) for _ in range(3))
        self.shared, self.top, self.gathered = SwiGlu(8, 4) if shared else None, top, gathered

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 8)
        weights, chosen = self.router(flat).softmax(-1).topk(self.top, -1)
        out = torch.zeros_like(flat) if self.shared is None else self.shared(flat)
        for number, expert in enumerate(self.experts):
            weight = (weights * (chosen == number)).sum(-1, keepdim=True)
            if self.gathered:
                rows = weight.squeeze(-1).nonzero().squeeze(-1)
                out = out.index_add(0, rows, weight[rows] * expert(flat[rows]))
            else:
                out = out + weight * expert(flat)
        return out.view(x.shape)


@experts.add("mixture of experts, top 1")
def top_one() -> Case:
    """Switch: tokens are gathered for the expert of each."""
    return Case(Decoder(Attention(), Experts(1)), *text())


@experts.add("mixture of experts, top 2")
def top_two() -> Case:
    """Mixtral: two experts a token, gathered."""
    return Case(Decoder(Attention(rotary=True), Experts(2)), *text())


@experts.add("mixture of experts, dense")
def dense() -> Case:
    """Every expert on every token, weights of 0 for those not chosen."""
    return Case(Decoder(Attention(), Experts(2, gathered=False)), *text())


@experts.add("shared experts")
def shared_experts() -> Case:
    """DeepSeek: one expert for all tokens beside those chosen."""
    return Case(Decoder(Attention(), Experts(1, shared=True)), *text())


@experts.add("experts in one tensor")
def one_tensor() -> Case:
    """All experts' weights as one parameter [E, D, H], by einsum and by batched products."""

    class Together(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 3)
            self.up, self.down = nn.Parameter(torch.randn(3, 8, 4) / 3), nn.Parameter(torch.randn(3, 4, 8) / 2)

        def forward(self, x: Tensor) -> Tensor:
            h = F.gelu(torch.einsum("ntd,edh->nteh", x, self.up))
            out = torch.bmm(h.flatten(0, 1).transpose(0, 1), self.down).view(3, *x.shape)
            outputs: Tensor = (out * self.router(x).softmax(-1).permute(2, 0, 1)[..., None]).sum(0)
            return outputs

    return Case(Decoder(Attention(), Together()), *text())


@experts.add("expert choice")
def expert_choice() -> Case:
    """Experts choose among the tokens of the whole batch: samples depend on each other."""

    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(8, 2), nn.ModuleList(SwiGlu(8, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            flat = x.reshape(-1, 8)
            weights = self.router(flat).softmax(-1)
            out = flat
            for number, expert in enumerate(self.experts):
                weight, rows = weights[:, number].topk(max(1, len(flat) // 2))
                out = out.index_add(0, rows, weight[:, None] * expert(flat[rows]))
            return out.view(x.shape)

    return Case(Decoder(Attention(), Choice()), *text(), mixes=True)


@experts.add("capacity limits")
def capacity() -> Case:
    """Top 1 with a limit on an expert's tokens over the whole batch: those that come late are dropped."""

    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(8, 2), nn.ModuleList(SwiGlu(8, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            flat = x.reshape(-1, 8)
            weights, chosen = self.router(flat).softmax(-1).max(-1)
            out = flat
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).nonzero().squeeze(-1)[:6]
                out = out.index_add(0, rows, weights[rows, None] * expert(flat[rows]))
            return out.view(x.shape)

    return Case(Decoder(Attention(), Limited()), *text(), mixes=True)


@experts.add("soft mixture of experts")
def soft() -> Case:
    """Slots that are weighted means of a sample's own tokens."""

    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slots, self.experts = nn.Parameter(torch.randn(8, 2)), nn.ModuleList(SwiGlu(8, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            scores = x @ self.slots
            slots = torch.einsum("nts,ntd->nsd", scores.softmax(1), x)
            out = torch.stack([expert(slots[:, s]) for s, expert in enumerate(self.experts)], 1)
            return torch.einsum("nts,nsd->ntd", scores.softmax(2), out)

    return Case(Decoder(Attention(), Soft()), *text())
