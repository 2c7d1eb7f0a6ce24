"""Networks that read sequences, other than language models of today."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Case, Section
from benchmarks.families.models.vision import labels

recurrent = Section[Case]("Recurrent and convolutional sequence models")
state_space = Section[Case]("State spaces, linear attention, long convolutions")


class Read(nn.Module):
    """A recurrent layer with batch_first, and a head on its last output."""

    def __init__(self, layer: nn.Module, width: int = 5) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(x)[0][:, -1])
        return outputs


def series(length: int = 6, width: int = 4, samples: int = 5) -> Tensor:
    return torch.randn(samples, length, width)


@recurrent.add("RNN")
def rnn() -> Case:
    """nn.RNN with tanh."""
    return Case(Read(nn.RNN(4, 5, batch_first=True)), series(), labels())


@recurrent.add("LSTM")
def lstm() -> Case:
    """nn.LSTM of two layers with dropout between."""
    return Case(Read(nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2)), series(), labels())


@recurrent.add("LSTM with projection")
def projected() -> Case:
    """nn.LSTM with proj_size."""
    return Case(Read(nn.LSTM(4, 5, batch_first=True, proj_size=3), 3), series(), labels())


@recurrent.add("GRU, bidirectional")
def gru() -> Case:
    """nn.GRU in both directions."""
    return Case(Read(nn.GRU(4, 5, batch_first=True, bidirectional=True), 10), series(), labels())


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(x.transpose(0, 1))[0][-1])
        return outputs


@recurrent.add("LSTM, time first")
def time_first() -> Case:
    """nn.LSTM without batch_first, fed with transposed inputs as it should be."""
    return Case(TimeFirst(), series(), labels())


@recurrent.add("LSTM, batch_first forgotten")
def forgotten() -> Case:
    """nn.LSTM without batch_first, fed with [N, T, C]: it runs over the samples, which depend on each other."""
    return Case(Read(nn.LSTM(4, 5)), series(), labels(), mixes=True)


@recurrent.add("LSTM cell in a loop")
def cell() -> Case:
    """nn.LSTMCell, step by step."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            state: tuple[Tensor, Tensor] | None = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            assert state is not None
            outputs: Tensor = self.head(state[0])
            return outputs

    return Case(Steps(), series(), labels())


@recurrent.add("LSTM, packed sequences")
def packed() -> Case:
    """pack_padded_sequence with lengths as an input, and the last state of each."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer, self.head = (
                nn.Embedding(9, 4, padding_idx=0),
                nn.LSTM(4, 5, batch_first=True),
                nn.Linear(5, 3),
            )

        def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            pack = nn.utils.rnn.pack_padded_sequence(
                self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            outputs: Tensor = self.head(self.layer(pack)[1][0][-1])
            return outputs

    lengths = torch.tensor([6, 3, 5, 1, 4])
    tokens = torch.randint(1, 9, (5, 6)) * (torch.arange(6) < lengths[:, None])
    return Case(Packed(), (tokens, lengths), labels())


@recurrent.add("learned initial state")
def learned_state() -> Case:
    """A GRU whose first state is a parameter, expanded to the batch."""

    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.layer, self.head = (
                nn.Parameter(torch.randn(1, 1, 5)),
                nn.GRU(4, 5, batch_first=True),
                nn.Linear(5, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.layer(x, self.start.expand(-1, len(x), -1).contiguous())[0][:, -1])
            return outputs

    return Case(Started(), series(), labels())


@recurrent.add("TCN")
def tcn() -> Case:
    """Dilated causal convolutions with weight norm, residual."""

    class Causal(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.dilation = dilation
            self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 2, dilation=dilation))

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = x + self.conv(F.pad(x, (self.dilation, 0))).relu()
            return outputs

    model = nn.Sequential(Causal(1), Causal(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3))
    return Case(model, torch.randn(5, 4, 6), labels())


@recurrent.add("WaveNet")
def wavenet() -> Case:
    """Gated dilated convolutions, residual and skip connections, a class for every time step."""

    class WaveNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.gates = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=d) for d in (1, 2))
            self.mixes, self.head = nn.ModuleList(nn.Conv1d(4, 8, 1) for _ in range(2)), nn.Conv1d(4, 5, 1)

        def forward(self, tokens: Tensor) -> Tensor:
            skips: Tensor | int
            x, skips = self.embed(tokens).transpose(1, 2), 0
            for d, gate, mix in zip((1, 2), self.gates, self.mixes, strict=True):
                a, b = gate(F.pad(x, (d, 0))).chunk(2, 1)
                out, skip = mix(a.tanh() * b.sigmoid()).chunk(2, 1)
                x, skips = x + out, skips + skip
            assert isinstance(skips, Tensor)
            outputs: Tensor = self.head(skips.relu()).transpose(1, 2)
            return outputs

    tokens = torch.randint(5, (4, 6))
    return Case(WaveNet(), tokens, tokens.roll(-1, 1))


@recurrent.add("seq2seq with attention")
def seq2seq() -> Case:
    """A GRU that reads, a GRU cell that writes and looks back by additive attention, teacher forcing."""

    class Seq2Seq(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(7, 4), nn.Embedding(6, 4)
            self.reader, self.writer = nn.GRU(4, 5, batch_first=True), nn.GRUCell(9, 5)
            self.keys, self.query, self.score, self.head = (
                nn.Linear(5, 4),
                nn.Linear(5, 4),
                nn.Linear(4, 1),
                nn.Linear(5, 6),
            )

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory, state = self.reader(self.source(source))
            state, found = state[0], []
            for word in self.target(target).unbind(1):
                weights = self.score((self.keys(memory) + self.query(state)[:, None]).tanh()).softmax(1)
                state = self.writer(torch.cat([word, (weights * memory).sum(1)], -1), state)
                found.append(self.head(state))
            return torch.stack(found, 1)

    target = torch.randint(6, (4, 4))
    return Case(Seq2Seq(), (torch.randint(7, (4, 5)), target), target.roll(-1, 1))


class Head(nn.Module):
    """An embedding, a layer over sequences, and a class for each."""

    def __init__(self, layer: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Linear(4, width), layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(self.embed(x)).mean(1))
        return outputs


class SelectiveScan(nn.Module):
    """Mamba's: Δ, B and C from the input, a diagonal recurrence, a gate, a short causal convolution."""

    def __init__(self, width: int = 4, states: int = 3) -> None:
        super().__init__()
        self.inputs, self.conv = nn.Linear(width, 2 * width), nn.Conv1d(width, width, 2, padding=1, groups=width)
        self.select, self.step = nn.Linear(width, 2 * states + 1), nn.Linear(1, width)
        self.log_a = nn.Parameter(torch.rand(width, states))
        self.skip, self.out = nn.Parameter(torch.ones(width)), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.inputs(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.select(x).split([1, self.log_a.shape[1], self.log_a.shape[1]], -1)
        step = F.softplus(self.step(step))
        decay, new = (-step[..., None] * self.log_a.exp()).exp(), (step * x)[..., None] * b[:, :, None]
        state, found = torch.zeros_like(new[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + new[:, t]
            found.append((state * c[:, t, None]).sum(-1))
        outputs: Tensor = self.out((torch.stack(found, 1) + self.skip * x) * F.silu(gate))
        return outputs


@state_space.add("Mamba")
def mamba() -> Case:
    """Selective scan in a loop, a depthwise causal convolution, a gate."""
    return Case(Head(SelectiveScan()), series(), labels())


@state_space.add("S4, complex recurrence")
def s4() -> Case:
    """A diagonal state of complex numbers: real parameters that are put together to complex ones."""

    class Diagonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_real, self.imaginary = nn.Parameter(torch.rand(4, 3)), nn.Parameter(torch.rand(4, 3))
            self.c = nn.Parameter(torch.randn(4, 3, 2))

        def forward(self, x: Tensor) -> Tensor:
            poles = torch.complex(-self.log_real.exp(), self.imaginary)
            kernel = torch.einsum(
                "cs,cst->ct", torch.view_as_complex(self.c), (poles[..., None] * torch.arange(x.shape[1])).exp()
            )
            n = 2 * x.shape[1]
            waves = torch.fft.rfft(x.transpose(1, 2), n) * torch.fft.rfft(2 * kernel.real, n)
            outputs: Tensor = torch.fft.irfft(waves, n)[..., : x.shape[1]].transpose(1, 2)
            return outputs

    return Case(Head(Diagonal()), series(), labels())


@state_space.add("LRU, complex parameters")
def lru() -> Case:
    """A linear recurrence whose parameters are complex tensors themselves."""

    class Lru(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.poles = nn.Parameter(torch.polar(torch.rand(4).double(), torch.rand(4).double()))

        def forward(self, x: Tensor) -> Tensor:
            state, found = torch.zeros_like(x[:, 0]) + 0j, []
            for step in x.unbind(1):
                state = self.poles * state + step
                found.append(state.real)
            return torch.stack(found, 1)

    return Case(Head(Lru()).double(), series().double(), labels(), dtype=None)


@state_space.add("FNO, complex weights")
def fno() -> Case:
    """A Fourier layer: complex weights on the lowest modes."""

    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.complex128) / 4)

        def forward(self, x: Tensor) -> Tensor:
            modes = torch.fft.rfft(x.transpose(1, 2))[..., :3]
            out = torch.einsum("nim,iom->nom", modes, self.weight)
            outputs: Tensor = x + torch.fft.irfft(out, x.shape[1]).transpose(1, 2)
            return outputs

    return Case(Head(Fourier()).double(), series().double(), labels(), dtype=None)


@state_space.add("RWKV")
def rwkv() -> Case:
    """Time mixing with a shift of one, decay and bonus of every channel, receptance; squared ReLU."""

    class Rwkv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.decay, self.bonus = (nn.Parameter(torch.rand(n, 4)) for n in (3, 1, 1))
            self.key, self.value, self.receive, self.out = (nn.Linear(4, 4, bias=False) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            before = F.pad(x, (0, 0, 1, -1))
            k, v, r = (
                layer(x * m + before * (1 - m))
                for layer, m in zip((self.key, self.value, self.receive), self.mix, strict=True)
            )
            top = bottom = torch.zeros_like(x[:, 0])
            found = []
            for t in range(x.shape[1]):
                now = (self.bonus[0] + k[:, t]).exp()
                found.append((top + now * v[:, t]) / (bottom + now))
                fade, new = (-self.decay[0].exp()).exp(), k[:, t].exp()
                top, bottom = fade * top + new * v[:, t], fade * bottom + new
            outputs: Tensor = x + self.out(r.sigmoid() * torch.stack(found, 1)).relu().square()
            return outputs

    return Case(Head(Rwkv()), series(), labels())


@state_space.add("Hyena, FFT convolution")
def hyena() -> Case:
    """A long filter from a small network over positions, applied by FFT, gates."""

    class Hyena(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
            self.filter = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            v, a, b = self.project(x).chunk(3, -1)
            t = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[:, None]
            kernel = self.filter(torch.cat([t, (6 * t).sin(), (6 * t).cos()], -1)) * (-3 * t).exp()
            n = 2 * x.shape[1]
            waves = torch.fft.rfft((v * a).transpose(1, 2), n) * torch.fft.rfft(kernel.T, n)
            outputs: Tensor = self.out(b * torch.fft.irfft(waves, n)[..., : x.shape[1]].transpose(1, 2))
            return outputs

    return Case(Head(Hyena()), series(), labels())


class Retention(nn.Module):
    """Linear attention: causal sums of outer products of keys and values, with or without decay."""

    def __init__(self, decay: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(4, 12), nn.Linear(4, 4), nn.GroupNorm(2, 4)
        self.rate = nn.Parameter(torch.tensor(1.0)) if decay else None

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.rate is not None:
            gap = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            weights = (q @ k.transpose(1, 2)) * (self.rate.sigmoid() ** gap.clamp(min=0)).tril()
            y = weights @ v
            outputs = self.out(self.norm(y.flatten(0, 1)).view_as(y))
            return outputs
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = torch.einsum("nti,ntj->ntij", k, v).cumsum(1)
        outputs = self.out(
            torch.einsum("nti,ntij->ntj", q, sums) / torch.einsum("nti,nti->nt", q, k.cumsum(1))[..., None]
        )
        return outputs


@state_space.add("linear attention")
def linear_attention() -> Case:
    """Causal sums of φ(k)vᵀ, normalised."""
    return Case(Head(Retention(decay=False)), series(), labels())


@state_space.add("RetNet")
def retnet() -> Case:
    """Retention with a learned decay, GroupNorm over heads of every token."""
    return Case(Head(Retention(decay=True)), series(), labels())


@state_space.add("gated delta rule")
def delta_rule() -> Case:
    """A matrix memory that is corrected at every step."""

    class Delta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.rate = nn.Linear(4, 12), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            k, rate = F.normalize(k, dim=-1), self.rate(x).sigmoid()
            memory, found = torch.zeros(len(x), 4, 4, dtype=x.dtype), []
            for t in range(x.shape[1]):
                old = torch.einsum("nij,nj->ni", memory, k[:, t])
                memory = memory + torch.einsum("ni,nj->nij", rate[:, t] * (v[:, t] - old), k[:, t])
                found.append(torch.einsum("nij,nj->ni", memory, q[:, t]))
            return torch.stack(found, 1)

    return Case(Head(Delta()), series(), labels())
