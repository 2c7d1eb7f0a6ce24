"""Networks that look at images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Case, Section

plain = Section[Case]("Feed-forward and convolutional networks")
vision = Section[Case]("Vision")


def labels(samples: int = 5, classes: int = 3) -> Tensor:
    return torch.arange(samples) % classes


def images(*shape: int, samples: int = 5) -> Tensor:
    return torch.randn(samples, *(shape or (3, 8, 8)))


def pooled(*layers: nn.Module, width: int = 4) -> nn.Sequential:
    """Layers, a mean over positions, and a linear head."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


@plain.add("MLP")
def mlp() -> Case:
    """Linear, GELU, dropout, LayerNorm."""
    model = nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(7), nn.Linear(7, 3))
    return Case(model, torch.randn(5, 6), labels())


@plain.add("MLP, one logit")
def one_logit() -> Case:
    """Two classes by one output, the other logit being 0."""
    return Case(
        nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1)),
        torch.randn(5, 6),
        labels(5, 2),
        forward=lambda model, x: F.pad(model(x), (1, 0)),
    )


@plain.add("regression")
def regression() -> Case:
    """Two numbers as outputs."""
    return Case(nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2)), torch.randn(5, 6), outputs="values")


@plain.add("regression, with its values")
def gaussian() -> Case:
    """Two numbers as outputs and their values as targets: the Fisher information of normal noise."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2))
    return Case(model, torch.randn(5, 6), 3 * torch.randn(5, 2).double(), outputs="gaussian")


@plain.add("several labels a sample")
def bernoulli() -> Case:
    """Logits of labels that are each 0 or 1, as binary_cross_entropy_with_logits has them."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    return Case(model, torch.randn(5, 6), (torch.rand(5, 3) < 0.5).double(), outputs="bernoulli")


@plain.add("one logit, 0 or 1")
def binary() -> Case:
    """One output, and a label that is 0 or 1."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1))
    return Case(
        model, torch.randn(5, 6), torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]]).double(), outputs="bernoulli"
    )


@plain.add("CNN")
def cnn() -> Case:
    """Conv2d, max pooling, linear head."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip
    return Case(model, images(), labels())


@plain.add("CNN, grouped and depthwise")
def grouped() -> Case:
    """Conv2d with groups, depthwise with a multiplier, pointwise."""
    model = pooled(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(), nn.Conv2d(8, 4, 1))
    return Case(model, images(4, 8, 8), labels())


@plain.add("CNN, dilated and strided")
def dilated() -> Case:
    """Conv2d with dilation, stride, reflecting and circular padding."""
    model = pooled(
        nn.Conv2d(3, 4, 3, dilation=2, padding=2, padding_mode="reflect"), nn.ReLU(),
        nn.Conv2d(4, 4, (3, 2), stride=(2, 1), padding=1, padding_mode="circular"), nn.ReLU(),
    )  # fmt: skip
    return Case(model, images(), labels())


@plain.add("CNN, transposed")
def transposed() -> Case:
    """ConvTranspose2d with stride, output padding and groups."""
    model = pooled(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1, groups=2), nn.ReLU()
    )
    return Case(model, images(), labels())


@plain.add("CNN, 1-d")
def one_dimensional() -> Case:
    """Conv1d, BatchNorm1d, mean over time."""
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.ConvTranspose1d(4, 4, 3), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    return Case(model, images(2, 10), labels())


@plain.add("CNN, 3-d")
def three_dimensional() -> Case:
    """Conv3d and BatchNorm3d over video."""
    model = nn.Sequential(
        nn.Conv3d(2, 4, (2, 3, 3)), nn.BatchNorm3d(4), nn.ReLU(), nn.ConvTranspose3d(4, 3, 2),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 3),
    )  # fmt: skip
    return Case(model, images(2, 3, 5, 5), labels())


@plain.add("other layers")
def other_layers() -> Case:
    """Bilinear, PReLU, InstanceNorm with weights, LocalResponseNorm, PixelShuffle."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.norm, self.act = nn.InstanceNorm2d(8, affine=True), nn.PReLU(8)
            self.shuffle, self.local = nn.PixelShuffle(2), nn.LocalResponseNorm(2)
            self.mix, self.head = nn.Bilinear(2, 3, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.local(self.shuffle(self.act(self.norm(self.conv(x))))).mean((2, 3))
            outputs: Tensor = self.head(self.mix(h, x.mean((2, 3))))
            return outputs

    return Case(Other(), images(), labels())


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x) + self.shortcut(x)
        return outputs


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


@vision.add("ResNet")
def resnet() -> Case:
    """Residual blocks with BatchNorm, a strided shortcut, ReLU in place."""
    first = nn.Sequential(conv_bn(4, 4), nn.ReLU(inplace=True), conv_bn(4, 4))
    second = nn.Sequential(conv_bn(4, 6, stride=2), nn.ReLU(inplace=True), conv_bn(6, 6))
    relu = nn.ReLU(inplace=True)
    return Case(
        pooled(conv_bn(3, 4), relu, Residual(first), relu, Residual(second, conv_bn(4, 6, 1, 2)), relu, width=6),
        images(), labels(),
    )  # fmt: skip


@vision.add("DenseNet")
def densenet() -> Case:
    """BatchNorm before ReLU and convolution, all earlier features concatenated."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 3, 3, padding=1)) for c in (3, 6, 9)
            )

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.cat([x, layer(x)], 1)
            return x

    return Case(pooled(Dense(), width=12), images(), labels())


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * x


class Permute(nn.Module):
    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(*self.dims)


@vision.add("ConvNeXt")
def convnext() -> Case:
    """Depthwise 7×7, LayerNorm over channels last, layer scale as a parameter."""
    block = nn.Sequential(
        nn.Conv2d(4, 4, 7, padding=3, groups=4), Permute(0, 2, 3, 1), nn.LayerNorm(4), nn.Linear(4, 16), nn.GELU(),
        nn.Linear(16, 4), LayerScale(4), Permute(0, 3, 1, 2),
    )  # fmt: skip
    return Case(pooled(nn.Conv2d(3, 4, 2, 2), Residual(block)), images(), labels())


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = x * self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()
        return outputs


@vision.add("MobileNet")
def mobilenet() -> Case:
    """Inverted residual: expand, depthwise, project; hard swish."""
    block = nn.Sequential(conv_bn(4, 8, 1), nn.Hardswish(), conv_bn(8, 8, groups=8), nn.Hardswish(), conv_bn(8, 4, 1))
    return Case(pooled(conv_bn(3, 4, stride=2), Residual(block)), images(), labels())


@vision.add("squeeze and excite")
def squeeze_excite() -> Case:
    """EfficientNet's gate over channels."""
    return Case(pooled(conv_bn(3, 4), nn.SiLU(), SqueezeExcite(4)), images(), labels())


class UNet(nn.Module):
    """Down, up, and a skip; class scores for every pixel, classes second as torch's loss has them."""

    def __init__(self, channels: int = 3, outputs: int = 3) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(channels, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down1(x).relu()
        outputs: Tensor = self.head(torch.cat([skip, self.up(self.down2(F.max_pool2d(skip, 2)).relu())], 1))
        return outputs


def pixels(samples: int = 4, height: int = 2, width: int = 4) -> Tensor:
    found = torch.arange(samples * height * width).reshape(samples, height, width) % 3
    found[0, 0, 0] = -100
    return found


@vision.add("U-Net, classes last")
def unet_last() -> Case:
    """A segmenter, with a forward that puts classes last."""
    return Case(UNet(), images(3, 2, 4, samples=4), pixels(), forward=lambda model, x: model(x).movedim(1, -1))


@vision.add("U-Net as it is")
def unet() -> Case:
    """A segmenter whose outputs are [N, C, H, W], with labels of [N, H, W]."""
    return Case(UNet(), images(3, 2, 4, samples=4), pixels(), formula=lambda model, x: model(x).movedim(1, -1))


@vision.add("DeepLab")
def deeplab() -> Case:
    """Dilated branches, a pooled one, bilinear upsampling."""

    class DeepLab(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = conv_bn(3, 4, stride=2)
            self.branches = nn.ModuleList(nn.Conv2d(4, 3, 3, padding=d, dilation=d) for d in (1, 2))
            self.pool, self.head = nn.Conv2d(4, 3, 1), nn.Conv2d(9, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x).relu()
            pool = self.pool(h.mean((2, 3), keepdim=True)).expand(-1, -1, *h.shape[2:])
            h = self.head(torch.cat([branch(h) for branch in self.branches] + [pool], 1).relu())
            return F.interpolate(h, size=x.shape[2:], mode="bilinear", align_corners=False).movedim(1, -1)

    return Case(DeepLab(), images(3, 2, 4, samples=4), pixels())


@vision.add("FPN")
def pyramid() -> Case:
    """A feature pyramid: lateral 1×1 convolutions, nearest upsampling, one shared head on all levels."""

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = conv_bn(3, 4), conv_bn(4, 6, stride=2)
            self.lateral = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(6, 4, 1)])
            self.head = nn.Conv2d(4, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            low = self.one(x).relu()
            high = self.lateral[1](self.two(low).relu())
            low = self.lateral[0](low) + F.interpolate(high, scale_factor=2)
            return torch.cat([self.head(level).flatten(2) for level in (low, high)], 2).transpose(1, 2)

    return Case(Pyramid(), images(3, 4, 4, samples=4), torch.arange(80).reshape(4, 20) % 3)


@vision.add("one-stage detector")
def detector() -> Case:
    """SSD and FCOS: class and box heads on every cell, shared over levels, with a learned scale a level."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.next = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)
            self.tower, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
            self.classes, self.boxes = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.scales = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            found, level = [], x
            for number, layer in enumerate((self.body, self.next)):
                level = layer(level).relu()
                h = self.norm(self.tower(level)).relu()
                both = torch.cat([self.classes(h), (self.scales[number] * self.boxes(h)).exp()], 1)
                found.append(both.flatten(2).transpose(1, 2))
            return torch.cat(found, 1)

    return Case(Detector(), images(3, 4, 4, samples=4), outputs="values")


@vision.add("two-stage detector")
def two_stage() -> Case:
    """RoI-like pooling by grid_sample at boxes of its own choice, and a head on every region."""

    class TwoStage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.boxes, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 8), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            features = self.body(x).relu()
            boxes = self.boxes(features.mean((2, 3))).view(len(x), 2, 4)
            step = torch.tensor([-0.5, 0.5], dtype=x.dtype)
            grid = torch.stack(torch.meshgrid(step, step, indexing="xy"), -1).view(1, 1, 4, 2)
            places = boxes[..., None, :2].tanh() + grid * boxes[..., None, 2:].sigmoid()
            regions = F.grid_sample(features, places, align_corners=False)
            outputs: Tensor = self.head(regions.transpose(1, 2).flatten(2))
            return outputs

    return Case(TwoStage(), images(samples=4), torch.arange(8).reshape(4, 2) % 3)


@vision.add("YOLO")
def yolo() -> Case:
    """Cross-stage partial blocks, SiLU, anchors decoded by sigmoids, objectness."""

    class Yolo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.part, self.head = conv_bn(3, 4, stride=2), conv_bn(2, 2), nn.Conv2d(4, 2 * 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            a, b = F.silu(self.stem(x)).chunk(2, 1)
            out = self.head(torch.cat([a, b + F.silu(self.part(b))], 1))
            out = out.view(len(x), 2, 6, -1).transpose(2, 3)
            return torch.cat([out[..., :2].sigmoid(), out[..., 2:4].exp(), out[..., 4:]], -1)

    return Case(Yolo(), images(3, 4, 4, samples=4), outputs="values")


def block(width: int = 8) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)


@vision.add("ViT")
def vit() -> Case:
    """Patches by convolution, a class token, learned positions, blocks with the norm first."""

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, 4)
            self.token, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
            self.blocks, self.norm, self.head = nn.Sequential(block(), block()), nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.patches(x).flatten(2).transpose(1, 2)
            h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
            outputs: Tensor = self.head(self.norm(self.blocks(h))[:, 0])
            return outputs

    return Case(ViT(), images(), labels())


@vision.add("Swin")
def swin() -> Case:
    """Attention in shifted windows, folded into the batch dimension, with a table of relative position biases."""

    class Swin(nn.Module):
        places: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.patches, self.qkv, self.out = nn.Conv2d(3, 4, 2, 2), nn.Linear(4, 12), nn.Linear(4, 4)
            self.bias = nn.Parameter(torch.randn(9, 2))
            self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)
            ys, xs = torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
            ys, xs = ys.flatten(), xs.flatten()
            self.register_buffer("places", 3 * (ys[:, None] - ys + 1) + xs[:, None] - xs + 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.patches(x).permute(0, 2, 3, 1)
            n, rows, columns, c = h.shape
            shifted = torch.roll(h, (-1, -1), (1, 2))
            windows = shifted.view(n, rows // 2, 2, columns // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
            q, k, v = self.qkv(self.norm(windows)).view(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-1, -2) + self.bias[self.places].permute(2, 0, 1)).softmax(-1)
            windows = self.out((weights @ v).transpose(1, 2).reshape(-1, 4, c))
            back = windows.view(n, rows // 2, columns // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(h.shape)
            outputs: Tensor = self.head((h + torch.roll(back, (1, 1), (1, 2))).mean((1, 2)))
            return outputs

    return Case(Swin(), images(), labels())


@vision.add("MLP-Mixer")
def mixer() -> Case:
    """Linear layers over patches and over channels in turn."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.norm = nn.Conv2d(3, 6, 4, 4), nn.LayerNorm(6)
            self.across, self.within, self.head = nn.Linear(4, 4), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.patches(x).flatten(2).transpose(1, 2)
            h = h + F.gelu(self.across(self.norm(h).transpose(1, 2))).transpose(1, 2)
            outputs: Tensor = self.head((h + F.gelu(self.within(h))).mean(1))
            return outputs

    return Case(Mixer(), images(), labels())


class Attend(nn.Module):
    """Queries that are parameters, looking at what is given."""

    def __init__(self, queries: int, width: int = 8) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.expand(len(x), -1, -1)
        outputs: Tensor = queries + self.attention(queries, x, x, need_weights=False)[0]
        return outputs


@vision.add("Perceiver")
def perceiver() -> Case:
    """Latents that look at the pixels, twice with the same weights, and at each other."""

    class Perceiver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cross, self.block, self.head = nn.Linear(3, 8), Attend(4), block(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            pixels = self.embed(x.flatten(2).transpose(1, 2))
            h = self.block(self.cross(pixels))
            h = self.block(h + self.cross.attention(h, pixels, pixels)[0])
            outputs: Tensor = self.head(h.mean(1))
            return outputs

    return Case(Perceiver(), images(3, 4, 4), labels())


@vision.add("DETR")
def detr() -> Case:
    """Convolutional features, a decoder with learned queries, classes and boxes for each."""

    class Detr(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.places = nn.Conv2d(3, 8, 3, 2, 1), nn.Parameter(torch.randn(1, 4, 8))
            self.queries = nn.Embedding(3, 8)
            self.decoder = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
            self.classes, self.boxes = nn.Linear(8, 3), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            memory = self.body(x).flatten(2).transpose(1, 2) + self.places
            h = self.decoder(self.queries.weight.expand(len(x), -1, -1), memory)
            return torch.cat([self.classes(h), self.boxes(h).sigmoid()], -1)

    return Case(Detr(), images(3, 4, 4), outputs="values")


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = nn.Linear(6, 4), nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        a, b = F.normalize(self.images(image), dim=-1), F.normalize(self.texts(text), dim=-1)
        return self.scale.exp() * a @ b.T


@vision.add("CLIP, zero-shot")
def clip_classes() -> Case:
    """Two towers and a learned scale; an image beside texts that belong to the task, not to the sample."""
    texts = torch.randn(3, 5)
    return Case(
        Towers(), torch.randn(5, 6), labels(), forward=lambda model, x: model(x, texts.to(x.dtype)),
    )  # fmt: skip


@vision.add("CLIP, contrastive")
def clip() -> Case:
    """Every image of a batch beside every text of it: samples depend on each other."""
    return Case(Towers(), (torch.randn(5, 6), torch.randn(5, 5)), torch.arange(5), mixes=True)


@vision.add("SimCLR")
def simclr() -> Case:
    """Every sample beside all others of the batch: samples depend on each other."""

    class SimClr(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            z = F.normalize(self.body(x), dim=-1)
            return (z @ z.T) / 0.5 - 1e3 * torch.eye(len(x), dtype=x.dtype)

    return Case(SimClr(), torch.randn(6, 6), torch.arange(6).flip(0), mixes=True)


@vision.add("BatchNorm in training mode, always")
def batch_statistics() -> Case:
    """BatchNorm without running statistics: samples depend on each other."""
    model = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7, track_running_stats=False), nn.ReLU(), nn.Linear(7, 3))
    return Case(model, torch.randn(5, 6), labels(), mixes=True)


@vision.add("spatial transformer")
def spatial_transformer() -> Case:
    """A warp of the image by affine_grid and grid_sample, which the network chooses."""

    class Warp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.where, self.body, self.head = nn.Linear(3, 6), nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            grid = F.affine_grid(self.where(x.mean((2, 3))).view(-1, 2, 3), list(x.shape), align_corners=False)
            outputs: Tensor = self.head(self.body(F.grid_sample(x, grid, align_corners=False)).relu().mean((2, 3)))
            return outputs

    return Case(Warp(), images(), labels())


@vision.add("deformable convolution by hand")
def deformable() -> Case:
    """Offsets by a convolution, unfold at moved places, one weight for all."""

    class Deformable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offsets, self.weight = nn.Conv2d(3, 2, 3, padding=1), nn.Parameter(torch.randn(4, 27))
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            base = F.affine_grid(
                torch.eye(2, 3, dtype=x.dtype).expand(len(x), 2, 3), list(x.shape), align_corners=False
            )
            moved = F.grid_sample(x, base + 0.1 * self.offsets(x).permute(0, 2, 3, 1), align_corners=False)
            outputs: Tensor = self.head((self.weight @ F.unfold(moved, 3)).relu().mean(-1))
            return outputs

    return Case(Deformable(), images(3, 6, 6), labels())
