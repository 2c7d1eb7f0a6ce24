"""Memory is bounded by the budget, however many samples, labels or positions there are."""

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anchorhold.engine import accumulator
from anchorhold.engine.accumulator import SampleAccumulator, sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from tests.engine import networks


class Peak(TorchDispatchMode):
    """Counts the bytes of all tensors that were made while it is active and are still alive."""

    def __init__(self, *others: Tensor) -> None:
        super().__init__()
        self.live = self.highest = 0
        self.seen: dict[int, weakref.ref] = {}
        self.others = {tensor.untyped_storage()._cdata for tensor in others}  # made before: views of them are not new

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage) -> None:
        key = storage._cdata
        if key in self.seen or key in self.others:
            return
        size = storage.nbytes()

        def gone(_) -> None:
            self.live -= size
            del self.seen[key]

        self.seen[key] = weakref.ref(storage, gone)
        self.live += size
        self.highest = max(self.highest, self.live)


def _peak(model, inputs, score, phi, budget) -> int:
    accumulator = SampleAccumulator(model, score, phi, budget=budget)
    with Peak(inputs, *model.parameters()) as peak:
        accumulator.update(inputs)
    return peak.highest


BUDGET = 2**20


def test_the_counter_sees_what_is_alive():
    with Peak() as peak:
        kept = torch.ones(1000)
        for _ in range(5):
            torch.ones(3000).square()
    assert 28_000 <= peak.highest <= 30_000
    assert 4000 <= peak.live <= 5000
    assert len(kept)


@pytest.mark.parametrize(
    ("name", "samples"), [("mlp", (200, 1600)), ("cnn", (40, 160)), ("fallback", (400, 1600)), ("gpt", (10, 40))]
)
def test_more_samples_take_no_more(name, samples):
    make = {
        "mlp": (lambda: networks.paper_mlp(50, 60, 10), lambda n: torch.randn(n, 50)),
        "cnn": (lambda: networks.paper_cnn(4, 16, 20, 10), lambda n: torch.randn(n, 3, 16, 16)),
        "fallback": (
            lambda: nn.Sequential(nn.ConvTranspose1d(4, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 12, 5)),
            lambda n: torch.randn(n, 4, 10),
        ),
        "gpt": (lambda: networks.NanoGPT(20, 12, 16), lambda n: torch.randint(20, (n, 12))),
    }[name]
    few, many = (_peak(make[0](), make[1](n), LogLikelihood(), SQUARE, BUDGET) for n in samples)
    whole = _peak(make[0](), make[1](samples[1]), LogLikelihood(), SQUARE, 2**40)
    assert few < 3 * BUDGET
    assert many < 1.25 * few
    assert whole > 3 * many  # the bound is not there by chance


def test_more_labels_take_no_more():
    def peak(classes, budget=BUDGET):
        return _peak(nn.Linear(10, classes), torch.randn(4, 10), LogLikelihood(), ABSOLUTE, budget)

    assert peak(1000) < 3 * BUDGET
    assert peak(1000, 2**40) > 10 * BUDGET


def test_more_draws_take_no_more():
    def peak(draws, budget=BUDGET):
        return _peak(nn.Linear(10, 50), torch.randn(4, 10), LogLikelihood("sampled", draws=draws), SQUARE, budget)

    assert peak(20_000) < 3 * BUDGET
    assert peak(20_000, 2**40) > 20 * BUDGET


def test_more_positions_take_no_more():
    def peak(length, budget=BUDGET):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 10))
        return _peak(model, torch.randn(2, length, 4), LogLikelihood(), SQUARE, budget)

    assert peak(100) < 3 * BUDGET
    assert peak(100, 2**40) > 10 * BUDGET


def test_importance_of_a_large_layer_along_a_sequence_needs_no_gradient_a_sample():
    """A per-sample gradient of this layer is 4 MB; 32 of them would be 128."""
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Flatten(), nn.Linear(3000, 4))
    highest = _peak(model, torch.randn(32, 3, 1000), OutputNorm(), ABSOLUTE, 2**24)
    assert highest < 2**24 + 3 * 4_000_000


def test_budget_below_a_single_sample_still_works():
    found = sample_importance(networks.paper_mlp(20, 30, 5), [torch.randn(3, 20)], LogLikelihood(), SQUARE, budget=1)
    assert found.samples == 3


def test_samples_of_a_large_model_take_more_where_memory_is_free():
    small, large = 10 * 2**20, 2 * 2**30
    assert (
        accumulator.enlarged_budget(2**30, small, free=100 * 2**30) == 2**30
    )  # enough for many: chunks are as they always were
    assert accumulator.enlarged_budget(2**30, large, free=1000 * 2**30) == accumulator.LARGE_SAMPLES * large
    assert accumulator.enlarged_budget(2**30, large, free=80 * 2**30) == 20 * 2**30
    assert accumulator.enlarged_budget(2**30, large, free=0) == 2**30


def test_such_samples_are_taken_together(monkeypatch):
    model, sizes = nn.Sequential(nn.Linear(4, 3)).double(), []
    x = torch.randn(20, 4, dtype=torch.float64)
    monkeypatch.setattr(accumulator, "CPU_BUDGET", 1)  # as little as a large model leaves room for
    alone = sample_importance(model, [x], LogLikelihood(), SQUARE)
    monkeypatch.setattr(accumulator, "free_bytes", lambda device: 2**30)
    model.register_forward_hook(lambda layer, inputs, outputs: sizes.append(len(outputs)))
    together = sample_importance(model, [x], LogLikelihood(), SQUARE)
    assert max(sizes) == 10  # two chunks of at most sixteen, alike in size
    for name, value in alone.values.items():
        torch.testing.assert_close(together.values[name], value, rtol=1e-12, atol=0)


def test_a_budget_that_was_given_stays(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 3))
    monkeypatch.setattr(accumulator, "free_bytes", lambda device: 2**30)
    collector = SampleAccumulator(model, LogLikelihood(), SQUARE, budget=1)
    collector.update(torch.randn(20, 4))
    assert collector.budget == 1


def test_room_that_long_samples_were_given_is_not_that_of_short_ones(monkeypatch):
    """Sixteen long ones may take more than a chunk's bytes, and what comes after them not for that reason."""
    monkeypatch.setattr(accumulator, "free_bytes", lambda device: 2**40)
    monkeypatch.setattr(accumulator, "CPU_BUDGET", 2**20)
    model = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten())

    def chunks(*lengths):
        collector, found = SampleAccumulator(model, LogLikelihood(), SQUARE), []
        add = collector._add_chunk
        monkeypatch.setattr(collector, "_add_chunk", lambda batch: (found.append(batch.size), add(batch)))
        for length in lengths:
            collector.update(torch.randn(96, 1, length))
        return found

    long, short = chunks(2000), chunks(50)
    assert max(long) == accumulator.LARGE_SAMPLES < max(short) < 96
    assert chunks(2000, 50, 2000) == [*long, *short, *long]
