"""Graphs, point clouds, sets, speech, tables and recommendations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Case, Section
from benchmarks.families.models.vision import labels

graphs = Section[Case]("Graphs, point clouds and sets")
speech = Section[Case]("Speech and signals")
tables = Section[Case]("Tables and recommendation")


def a_graph(samples: int = 5, nodes: int = 4) -> tuple[Tensor, Tensor]:
    """Return features and adjacency of a dense batch of graphs."""
    edges = (torch.rand(samples, nodes, nodes) < 0.5).float()
    edges = ((edges + edges.transpose(1, 2)) > 0).float()
    return torch.randn(samples, nodes, 3), edges


class Graph(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second, self.head = kind, nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.source, self.target, self.eps = (nn.Parameter(torch.randn(n)) for n in (5, 5, 1))

    def gather(self, h: Tensor, edges: Tensor) -> Tensor:
        if self.kind == "GCN":
            edges = edges + torch.eye(edges.shape[-1], dtype=h.dtype)
            scale = edges.sum(-1).rsqrt()
            return (scale[..., None] * edges * scale[:, None]) @ h
        if self.kind == "GIN":
            return (1 + self.eps) * h + edges @ h
        scores = F.leaky_relu((h @ self.source)[:, :, None] + (h @ self.target)[:, None])
        return scores.masked_fill(edges == 0, -1e9).softmax(-1) @ h

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.gather(self.first(x), edges).relu()
        outputs: Tensor = self.head(self.gather(self.second(h), edges).relu().mean(1))
        return outputs


@graphs.add("GCN")
def gcn() -> Case:
    """A dense batch of graphs, adjacency as an input."""
    return Case(Graph("GCN"), a_graph(), labels())


@graphs.add("GAT")
def gat() -> Case:
    """Attention over neighbours by two vectors."""
    return Case(Graph("GAT"), a_graph(), labels())


@graphs.add("GIN")
def gin() -> Case:
    """A learned ε for the node itself."""
    return Case(Graph("GIN"), a_graph(), labels())


@graphs.add("message passing by index_add")
def index_add() -> Case:
    """Edges of every graph as [2, E], messages gathered by index_add over a flattened batch."""

    class Messages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.update, self.head = nn.Linear(6, 4), nn.Linear(7, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            n, nodes, _ = x.shape
            flat = x.flatten(0, 1)
            ends = edges + nodes * torch.arange(n)[:, None, None]
            source, target = ends[:, 0].flatten(), ends[:, 1].flatten()
            messages = self.message(torch.cat([flat[source], flat[target]], -1)).relu()
            arrived = torch.zeros(n * nodes, 4, dtype=x.dtype).index_add(0, target, messages)
            outputs: Tensor = self.head(self.update(torch.cat([flat, arrived], -1)).relu().view(n, nodes, 4).mean(1))
            return outputs

    return Case(Messages(), (torch.randn(5, 4, 3), torch.randint(4, (5, 2, 6))), labels())


class Loose(nn.Module):
    """Nodes of all graphs in one list, as PyG and DGL batch them."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        h = self.message(x)
        h = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]).relu()
        found = torch.zeros(int(graph.max()) + 1, 4, dtype=x.dtype).index_add(0, graph, h)
        outputs: Tensor = self.head(found)
        return outputs


@graphs.add("graphs in one list of nodes")
def loose() -> Case:
    """As PyG has it: nodes [V, F], edges [2, E], the graph of each node; the samples lie in no dimension."""
    graph = torch.arange(5).repeat_interleave(3)
    edges = torch.randint(3, (2, 20)) + 3 * torch.arange(5).repeat_interleave(4)
    return Case(Loose(), (torch.randn(15, 3), edges, graph), labels(), mixes=True)


@graphs.add("one graph, nodes as samples")
def nodes() -> Case:
    """Node classification on one adjacency: nodes depend on their neighbours, so they are no samples."""

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            outputs: Tensor = edges @ self.second((edges @ self.first(x)).relu())
            return outputs

    edges = (torch.rand(6, 6) < 0.5).float()
    return Case(Nodes(), (torch.randn(6, 3), edges + torch.eye(6)), labels(6), mixes=True, whole=True)


@graphs.add("one graph kept in the model")
def transductive() -> Case:
    """The same with the adjacency as a buffer, called with all nodes."""

    class Nodes(nn.Module):
        edges: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 3)
            self.register_buffer("edges", (torch.rand(6, 6) < 0.5).float() + torch.eye(6))

        def forward(self, x: Tensor) -> Tensor:
            edges = self.edges[: len(x), : len(x)]
            outputs: Tensor = edges @ self.second((edges @ self.first(x)).relu())
            return outputs

    return Case(Nodes(), torch.randn(6, 3), labels(6), mixes=True)


@graphs.add("graph transformer")
def graph_transformer() -> Case:
    """Attention with a bias from an embedding of distances."""

    class GraphTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.bias, self.qkv, self.head = (
                nn.Linear(3, 4),
                nn.Embedding(3, 1),
                nn.Linear(4, 12),
                nn.Linear(4, 3),
            )

        def forward(self, x: Tensor, distances: Tensor) -> Tensor:
            q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
            outputs: Tensor = self.head(
                ((q @ k.transpose(1, 2) + self.bias(distances).squeeze(-1)).softmax(-1) @ v).mean(1)
            )
            return outputs

    return Case(GraphTransformer(), (torch.randn(5, 4, 3), torch.randint(3, (5, 4, 4))), labels())


@graphs.add("forces from an energy")
def forces() -> Case:
    """SchNet and its kind: distances, radial functions, and forces as the energy's gradient inside forward."""

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters, self.energy = nn.Sequential(nn.Linear(4, 6), nn.Softplus()), nn.Linear(6, 1)

        def forward(self, places: Tensor) -> Tensor:
            with torch.enable_grad():
                places = places.detach().requires_grad_()
                gaps = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-3).sqrt()
                waves = (-(gaps[..., None] - torch.arange(4, dtype=gaps.dtype)).square()).exp()
                energy = self.energy(self.filters(waves)).sum()
                return -torch.autograd.grad(energy, places, create_graph=True)[0]

    return Case(Forces(), torch.randn(5, 3, 3), outputs="values")


@graphs.add("PointNet")
def pointnet() -> Case:
    """A network for every point, BatchNorm, the maximum over points, an input transform."""

    class PointNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn, self.points, self.norm, self.head = (
                nn.Linear(3, 9),
                nn.Conv1d(3, 6, 1),
                nn.BatchNorm1d(6),
                nn.Linear(6, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            turn = self.turn(x.amax(1)).view(-1, 3, 3)
            outputs: Tensor = self.head(self.norm(self.points(torch.bmm(x, turn).transpose(1, 2))).relu().amax(-1))
            return outputs

    return Case(PointNet(), torch.randn(5, 7, 3), labels())


@graphs.add("DGCNN")
def dgcnn() -> Case:
    """The nearest neighbours by cdist and topk, edge features, the maximum over them."""

    class Dgcnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            near = torch.cdist(x, x).topk(3, largest=False).indices
            neighbours = x[torch.arange(len(x))[:, None, None], near]
            centre = x[:, :, None].expand_as(neighbours)
            outputs: Tensor = self.head(self.edge(torch.cat([centre, neighbours - centre], -1)).relu().amax((1, 2)))
            return outputs

    return Case(Dgcnn(), torch.randn(5, 6, 3), labels())


@graphs.add("DeepSets")
def deep_sets() -> Case:
    """A network for every element, the sum over those that are there, a head."""

    class DeepSets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Sequential(nn.Linear(3, 6), nn.ReLU()), nn.Linear(6, 3)

        def forward(self, x: Tensor, there: Tensor) -> Tensor:
            outputs: Tensor = self.outer((self.inner(x) * there[..., None]).sum(1))
            return outputs

    return Case(DeepSets(), (torch.randn(5, 4, 3), (torch.rand(5, 4) < 0.7).float()), labels())


@graphs.add("Set Transformer")
def set_transformer() -> Case:
    """Inducing points and pooling by a learned seed."""

    class SetTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 3)
            self.points, self.seed = nn.Parameter(torch.randn(1, 2, 4)), nn.Parameter(torch.randn(1, 1, 4))
            self.first, self.second, self.pool = (nn.MultiheadAttention(4, 2, batch_first=True) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            h = self.first(self.points.expand(len(x), -1, -1), x, x)[0]
            h = x + self.second(x, h, h)[0]
            outputs: Tensor = self.head(self.pool(self.seed.expand(len(x), -1, -1), h, h)[0].squeeze(1))
            return outputs

    return Case(SetTransformer(), torch.randn(5, 4, 3), labels())


@speech.add("Conformer")
def conformer() -> Case:
    """Half-step feed-forward, attention, gated depthwise convolution with BatchNorm."""

    class Conformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.feed = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.point, self.depth = nn.Conv1d(4, 8, 1), nn.Conv1d(4, 4, 3, padding=1, groups=4)
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 0.5 * self.feed(x)
            x = x + self.attention(x, x, x)[0]
            h = F.silu(self.norm(self.depth(F.glu(self.point(x.transpose(1, 2)), 1)))).transpose(1, 2)
            outputs: Tensor = self.head(x + h)
            return outputs

    return Case(Conformer(), torch.randn(4, 5, 4), torch.arange(20).reshape(4, 5) % 3)


@speech.add("CTC, the likelihood as output")
def ctc() -> Case:
    """The log-likelihood of a transcript by ctc_loss, one number a sample."""

    class Ctc(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 4)

        def forward(self, x: Tensor, text: Tensor) -> Tensor:
            log_q = self.head(self.body(x)[0]).log_softmax(-1).transpose(0, 1)
            n, times, length = len(x), x.shape[1], text.shape[1]
            lengths = torch.full((n,), times), torch.full((n,), length)
            return F.ctc_loss(log_q, text, *lengths, reduction="none")[:, None]

    return Case(Ctc(), (torch.randn(5, 7, 3), torch.randint(1, 4, (5, 3))), outputs="values")


@speech.add("spectrogram front end")
def spectrogram() -> Case:
    """stft with a learned window, learned mel filters, per-channel gain."""

    class Spectrogram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.window, self.mel = nn.Parameter(torch.hann_window(8)), nn.Linear(5, 4)
            self.gain, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            waves = torch.stft(x, 8, 4, window=self.window, return_complex=True).abs().square().transpose(1, 2)
            outputs: Tensor = self.head((self.gain * self.mel(waves)).relu().mean(1))
            return outputs

    return Case(Spectrogram(), torch.randn(5, 32), labels())


@speech.add("SincNet")
def sincnet() -> Case:
    """Band-pass filters from two learned frequencies each."""

    class SincNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.band, self.head = (
                nn.Parameter(torch.rand(4, 1)),
                nn.Parameter(torch.rand(4, 1)),
                nn.Linear(4, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            t = torch.linspace(-1, 1, 8, dtype=x.dtype)
            low, high = self.low.abs(), self.low.abs() + self.band.abs()
            filters = ((6 * high * t).sin() - (6 * low * t).sin()) / t
            outputs: Tensor = self.head(F.conv1d(x[:, None], filters[:, None]).abs().mean(-1))
            return outputs

    return Case(SincNet(), torch.randn(5, 20), labels())


def a_table(samples: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 3), torch.randint(4, (samples, 2))


@tables.add("embeddings and an MLP")
def embedded() -> Case:
    """A table of embeddings a column, BatchNorm, dropout."""

    class Tabular(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.columns = nn.ModuleList(nn.Embedding(4, 3) for _ in range(2))
            self.body = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))

        def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
            found = [column(c) for column, c in zip(self.columns, categories.unbind(1), strict=True)]
            outputs: Tensor = self.body(torch.cat([numbers, *found], -1))
            return outputs

    return Case(Tabular(), a_table(), labels())


@tables.add("a batch as a dict")
def as_dict() -> Case:
    """The same kind of model, called with named inputs and given a mapping with labels."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.column, self.head = nn.Embedding(4, 3), nn.Linear(9, 3)

        def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
            outputs: Tensor = self.head(torch.cat([numbers, self.column(categories).flatten(1)], -1))
            return outputs

    numbers, categories = a_table()
    inputs = {"numbers": numbers, "categories": categories}
    return Case(Named(), inputs, labels(), given={**inputs, "labels": labels()})


@tables.add("a dict in one argument")
def dict_argument() -> Case:
    """forward(batch) takes the mapping itself."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 3)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            outputs: Tensor = self.head(batch["numbers"])
            return outputs

    inputs = {"numbers": torch.randn(5, 3)}
    return Case(Whole(), inputs, labels(), given=(inputs, labels()), formula=lambda model, batch: model(batch))


@tables.add("FT-Transformer")
def ft_transformer() -> Case:
    """Every number becomes a token by a weight and a bias of its own; a class token."""

    class FtTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(3, 8))
            self.columns, self.token = nn.Embedding(8, 8), nn.Parameter(torch.randn(8))
            self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
            tokens = numbers[..., None] * self.weight + self.bias
            named = self.columns(categories + torch.tensor([0, 4]))
            first = self.token.expand(len(numbers), 1, -1)
            outputs: Tensor = self.head(self.block(torch.cat([first, tokens, named], 1))[:, 0])
            return outputs

    return Case(FtTransformer(), a_table(), labels())


@tables.add("TabNet")
def tabnet() -> Case:
    """Steps that each look at columns by a mask from a gate, with a prior of what was used before."""

    class TabNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.shared, self.gates = (
                nn.BatchNorm1d(5),
                nn.Linear(5, 8),
                nn.ModuleList(nn.Linear(4, 5) for _ in range(2)),
            )
            self.head, self.relax = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x)
            out: Tensor | int
            prior, state, out = torch.ones_like(x), F.glu(self.shared(x)), 0
            for gate in self.gates:
                mask = (prior * gate(state)).softmax(-1)
                prior = prior * (self.relax - mask)
                state = F.glu(self.shared(mask * x))
                out = out + state.relu()
            outputs: Tensor = self.head(out)
            return outputs

    return Case(TabNet(), torch.randn(5, 5), labels())


@tables.add("field-aware factorisation machine")
def field_aware() -> Case:
    """A vector of every value for every other field; products of pairs."""

    class Ffm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.fields = (
                nn.EmbeddingBag(12, 3, mode="sum"),
                nn.ModuleList(nn.Embedding(12, 6) for _ in range(3)),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + torch.tensor([0, 4, 8])
            found = [field(x).view(len(x), 3, 2, 3) for field in self.fields]
            pairs = sum((found[j][:, i] * found[i][:, j]).sum(1) for i in range(3) for j in range(i + 1, 3))
            outputs: Tensor = self.linear(x) + pairs
            return outputs

    return Case(Ffm(), torch.randint(4, (5, 3)), labels())


@tables.add("DLRM")
def dlrm() -> Case:
    """Bottom MLP, embedding bags with weights and offsets made inside, dot products of all pairs, top MLP."""

    class Dlrm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bottom, self.bag, self.other = nn.Linear(3, 4), nn.EmbeddingBag(6, 4, mode="sum"), nn.Embedding(6, 4)
            self.top = nn.Linear(7, 3)

        def forward(self, numbers: Tensor, several: Tensor, one: Tensor) -> Tensor:
            offsets = torch.arange(len(several)) * several.shape[1]
            bag = self.bag(
                several.flatten(), offsets, per_sample_weights=torch.ones(several.numel(), dtype=numbers.dtype)
            )
            all_of_them = torch.stack([self.bottom(numbers), bag, self.other(one)], 1)
            products = torch.bmm(all_of_them, all_of_them.transpose(1, 2))
            i, j = torch.tril_indices(3, 3, -1)
            outputs: Tensor = self.top(torch.cat([self.bottom(numbers), products[:, i, j]], -1))
            return outputs

    return Case(Dlrm(), (torch.randn(5, 3), torch.randint(6, (5, 3)), torch.randint(6, (5,))), labels())


@tables.add("two towers")
def two_towers() -> Case:
    """A user and some items beside it, scored by products."""

    class TwoTowers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items, self.warm = nn.Embedding(6, 4), nn.Embedding(9, 4), nn.Linear(4, 4)

        def forward(self, user: Tensor, items: Tensor) -> Tensor:
            return torch.einsum("nd,nkd->nk", self.warm(self.users(user)), self.items(items))

    return Case(TwoTowers(), (torch.randint(6, (5,)), torch.randint(9, (5, 3))), labels())


@tables.add("two towers, negatives of the batch")
def in_batch() -> Case:
    """Every user beside every item of the batch: samples depend on each other."""

    class InBatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(6, 4), nn.Embedding(9, 4)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            outputs: Tensor = self.users(user) @ self.items(item).T
            return outputs

    return Case(InBatch(), (torch.arange(5), torch.arange(5)), torch.arange(5), mixes=True)


@tables.add("embedding with max_norm")
def max_norm() -> Case:
    """nn.Embedding(max_norm=1), which shortens the rows it looks up."""

    class Shortened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(6, 4, max_norm=1.0), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.embed(x).tanh().mean(1))
            return outputs

    return Case(Shortened(), torch.randint(6, (5, 3)), labels())


@tables.add("embedding, sparse gradients")
def sparse() -> Case:
    """nn.Embedding(sparse=True)."""
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    return Case(model, torch.randint(6, (5, 3)), labels())


@tables.add("soft decision tree")
def tree() -> Case:
    """Gates at the nodes of a tree, classes at its leaves."""

    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates, self.leaves = nn.Linear(5, 3), nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            g = self.gates(x).sigmoid()
            first, left, right = g.unbind(-1)
            ways = torch.stack([first * left, first * (1 - left), (1 - first) * right, (1 - first) * (1 - right)], -1)
            return ways @ self.leaves

    return Case(Tree(), torch.randn(5, 5), labels())
