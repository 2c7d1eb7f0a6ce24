"""The networks of the tests: the paper's two, a ResNet, and decoders in the styles that people write them in."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def paper_mlp(inputs: int = 784, width: int = 2000, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )


def paper_cnn(channels: int = 32, side: int = 32, width: int = 512, classes: int = 10) -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding="same"),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ]

    features = 2 * channels * (side // 4) ** 2
    head = [nn.Flatten(), nn.Linear(features, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, classes)]
    return nn.Sequential(*block(3, channels), *block(channels, 2 * channels), *head)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(Residual(width, width, 1), Residual(width, 2 * width, 2))
        self.head = nn.Linear(2 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(n, t, d))


class NanoGPT(nn.Module):
    """nanoGPT: positions looked up without a batch dimension, the head tied to the embedding."""

    def __init__(self, vocabulary: int = 7, length: int = 6, width: int = 8, heads: int = 2, depth: int = 1) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln_1": nn.LayerNorm(width),
                    "attn": CausalAttention(width, heads),
                    "ln_2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)),
                }
            )
            for _ in range(depth)
        )
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = x + block["attn"](block["ln_1"](x))
            x = x + block["mlp"](block["ln_2"](x))
        return self.lm_head(self.ln_f(x))


class Conv1D(nn.Module):
    """The linear layer of Hugging Face's GPT-2: ``addmm`` on merged positions, the weight transposed."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.3)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


class HuggingGPT2(nn.Module):
    """GPT-2 as Hugging Face writes it: position ids of ``[1, T]``, attention with a mask, logits by name."""

    def __init__(self, vocabulary: int = 7, length: int = 6, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = Conv1D(3 * width, width)
        self.c_proj = Conv1D(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = Conv1D(2 * width, width)
        self.c_out = Conv1D(width, 2 * width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self.heads = heads

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        n, t = input_ids.shape
        x = self.wte(input_ids) + self.wpe(torch.arange(t, device=input_ids.device).unsqueeze(0))
        q, k, v = (
            y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(x.shape[-1], 2)
        )
        allowed = torch.ones(t, t, dtype=torch.bool).tril()
        if attention_mask is not None:
            allowed = allowed & (attention_mask[:, None, None, :].bool() | torch.eye(t, dtype=torch.bool))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
        x = x + self.c_proj((weights @ v).transpose(1, 2).reshape(n, t, -1))
        x = x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))
        return self.lm_head(x)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


class Llama(nn.Module):
    """Llama: RMSNorm as ``weight * x``, rotated positions, a gated MLP, no biases."""

    def __init__(self, vocabulary: int = 7, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm_1, self.norm_2, self.norm_3 = RMSNorm(width), RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.heads = heads

    def forward(self, idx: Tensor) -> Tensor:
        n, t = idx.shape
        x = self.embed(idx)
        h = self.norm_1(x)
        angle = torch.arange(t, dtype=x.dtype).outer(torch.tensor([1.0, 0.1], dtype=x.dtype))
        q, k = (_rotated(f(h).view(n, t, self.heads, -1).transpose(1, 2), angle) for f in (self.q, self.k))
        v = self.v(h).view(n, t, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, t, -1))
        h = self.norm_2(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.head(self.norm_3(x))


def _rotated(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2)


class TorchDecoder(nn.Module):
    """A decoder of torch's own layers with a causal mask, and minGPT's sliced position parameter."""

    def __init__(self, vocabulary: int = 7, length: int = 6, width: int = 8, *, batch_first: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.1 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=batch_first, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.batch_first = batch_first

    def forward(self, idx: Tensor) -> Tensor:
        x = self.embed(idx) + self.positions[:, : idx.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1], dtype=x.dtype)
        if not self.batch_first:
            return self.head(self.layers(x.transpose(0, 1), mask=mask, is_causal=True)).transpose(0, 1)
        return self.head(self.layers(x, mask=mask, is_causal=True))


class CrossAttention(nn.Module):
    """Attention from one part of the input to another, whose projections may be packed or separate."""

    def __init__(self, width: int = 6, other: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, kdim=other, vdim=other, batch_first=True)
        nn.init.uniform_(self.attention.in_proj_bias, -0.5, 0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        # The weights of the attention are asked for as well: that takes another path through torch's function.
        y, weights = self.attention(x, memory, memory)
        return self.head(y.mean(1) + weights.sum((1, 2)).unsqueeze(-1))


class ViT(nn.Module):
    """A vision transformer: patches by convolution, a class token expanded to every sample, learned positions."""

    def __init__(self, side: int = 6, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 3, 3)
        self.cls_token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.1 * torch.randn(1, 1 + (side // 3) ** 2, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, activation="gelu")
        self.scale = nn.Parameter(0.5 * torch.ones(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(x[:, 0] + self.scale * self.block(x)[:, 0])


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Move every parameter off the special values that initialisers give it (zeros and ones)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.2 * noise)
    return model
