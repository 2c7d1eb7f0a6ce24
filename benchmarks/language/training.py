"""Training and measuring losses: the parts that English and Python share."""

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from anchorhold import AnchorholdWarning, Guard
from anchorhold.seeding import generator_for
from benchmarks.language.gpt import GPT
from benchmarks.language.pretrained import Pretrained

WARMUP = 0.1
EVALUATED_TOGETHER = 64


def machine(device: torch.device) -> str:
    """Say what a device is, with the version of torch."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{card}, torch {torch.__version__}"


class Device:
    """Where and how the network runs: bf16 and compiled blocks on a GPU, plainly on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self._call = nn.Module.__call__
        if self.on_gpu:
            # One compiled block serves all blocks and runs, in a few variants: trained or evaluated, with an adapter
            # or without. Beyond the limit it would fall back to eager, with no more than a warning.
            torch._dynamo.config.recompile_limit = 16
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            self._call = torch.compile(_call, dynamic=False)

    @property
    def name(self) -> str:
        """What it is, with the version of torch."""
        return machine(self.device)

    def loss(self, model: GPT | Pretrained, text: Tensor) -> Tensor:
        """Return the mean loss, in nats a byte, of predicting each byte of ``[N, T + 1]`` from those before."""
        return cross_entropy(self.logits(model, text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def logits(self, model: GPT | Pretrained, text: Tensor) -> Tensor:
        """Return the logits of what follows each byte of ``[N, T]``."""
        with self._precision():
            logits = model(text, self._call)
        value: Tensor = logits.float()
        return value

    def optimizer(self, model: nn.Module, rate: float, decay: float) -> AdamW:
        """Return AdamW over everything that is trained; only matrices decay."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return AdamW([group for group in groups if group["params"]], lr=rate, betas=(0.9, 0.99), fused=self.on_gpu)

    def synchronise(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def _precision(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu)


def _call(block: nn.Module, x: Tensor) -> Tensor:
    value: Tensor = block(x)
    return value


def schedule(optimizer: Optimizer, steps: int) -> LambdaLR:
    """Let the learning rate rise in the first tenth of the steps and then fall to 0."""
    warm = max(1, round(WARMUP * steps))
    return LambdaLR(optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm)))


def teach(
    device: Device,
    model: GPT | Pretrained,
    given: Iterable[Tensor],
    steps: int,
    rate: float,
    guard: Guard | None = None,
) -> None:
    """Train all that can be trained on some batches, as many as there are steps, with a guard if there is one."""
    optimizer = device.optimizer(model, rate, decay=0.0)
    rates = schedule(optimizer, steps)
    if guard is not None:
        guard.attach(optimizer)
    with warnings.catch_warnings():
        # Strengths that are too much are among what is searched.
        warnings.filterwarnings("ignore", "strength=.* is far too much", AnchorholdWarning)
        for batch in given:
            optimizer.zero_grad()
            device.loss(model, batch).backward()
            optimizer.step()
            rates.step()
    if guard is not None:
        guard.detach()


def batches(text: Tensor, steps: int, size: int, context: int, seed: int, *purpose: str | int) -> Iterator[Tensor]:
    """Yield pieces of a text from anywhere, ``[size, context + 1]`` for each step, the same ones for one purpose."""
    latest = len(text) - context - 1
    starts = torch.randint(latest + 1, (steps, size), generator=generator_for(seed, *purpose))
    for chosen in starts.to(text.device):
        yield _windows(text, chosen, context)


def spread(text: Tensor, windows: int, context: int) -> Tensor:
    """Return pieces that are spread evenly over a text, ``[windows, context + 1]``."""
    starts = torch.linspace(0, len(text) - context - 1, windows, dtype=torch.float64).long().to(text.device)
    return _windows(text, starts, context)


@torch.no_grad()
def bits_per_byte(device: Device, model: GPT | Pretrained, pieces: Tensor, lengths: Tensor | None = None) -> float:
    """Return the mean loss of predicting each byte of pieces from those before it.

    Args:
        device: where the model runs.
        model: what predicts.
        pieces: bytes, or other tokens, ``[N, T + 1]``.
        lengths: how many bytes each kind of token stands for; one unless it is given.
    """
    model.eval()
    losses = [device.loss(model, some) * len(some) for some in pieces.split(EVALUATED_TOGETHER)]
    model.train()
    following = pieces[:, 1:]
    bits = float(torch.stack(losses).sum()) / len(pieces) / math.log(2)
    return bits if lengths is None else bits * following.numel() / int(lengths[following].sum())


def _windows(text: Tensor, starts: Tensor, context: int) -> Tensor:
    return text[starts[:, None] + torch.arange(context + 1, device=text.device)].long()
