"""Plans that are shared: made once for a model that stays as it is, anew for another, and of one result either way."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine import ABSOLUTE, SQUARE, LogLikelihood, OutputNorm, Plans, SampleAccumulator
from anchorhold.engine.tracing import plan as planning
from anchorhold.engine.tracing import uses

PER_PLAN = 4
"""Forward passes for a plan: each of two samples alone, both together, and the chunk's last one."""


@pytest.fixture
def recordings(monkeypatch):
    """A list with an entry for every forward pass that was recorded."""
    made, enter = [], uses.Recorder.__enter__

    def counted(self):
        made.append(len(made))
        return enter(self)

    monkeypatch.setattr(uses.Recorder, "__enter__", counted)
    return made


def network():
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3)
    )


MEASURES = [(LogLikelihood(), SQUARE), (OutputNorm(), ABSOLUTE)]


def measured(model, batches, plans, score=MEASURES[0][0], phi=SQUARE, **more):
    accumulator = SampleAccumulator(model, score, phi, plans=plans, **more)
    return accumulator.result_of(batches).values


def test_a_second_pass_makes_no_plan(recordings):
    model, batches = network(), [torch.randn(8, 2, 5), torch.randn(6, 2, 5)]
    plans = Plans()
    first = measured(model, batches, plans)
    assert len(recordings) == PER_PLAN + 2
    second = measured(model, batches, plans)
    assert len(recordings) == PER_PLAN + 4
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_samples_of_each_shape_have_their_plan(recordings):
    model, plans = network(), Plans()
    batches = [torch.randn(8, 2, length) for length in (5, 7, 5, 7)]
    first = measured(model, batches, plans)
    assert len(recordings) == 4 * PER_PLAN + 4
    second = measured(model, batches, plans)
    assert len(recordings) == 4 * PER_PLAN + 8
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_measures_side_by_side_share_a_plan(recordings):
    model, batch, plans = network(), torch.randn(8, 2, 5), Plans()
    fisher, mas = (SampleAccumulator(model, score, phi, plans=plans) for score, phi in MEASURES)
    for each in (fisher, mas):
        each.update(batch)
    assert len(recordings) == PER_PLAN + 2
    assert torch.equal(mas.result().values["4.bias"], measured(model, [batch], None, *MEASURES[1])["4.bias"])


class Experts(nn.Module):
    """Sends each position to one of two layers, by its values: how many get there differs with the samples."""

    def __init__(self):
        super().__init__()
        self.gate, self.one, self.other, self.head = (nn.Linear(4, out) for out in (2, 4, 4, 3))

    def forward(self, x):
        flat = x.reshape(-1, 4)
        chosen, out = self.gate(flat).argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate((self.one, self.other)):
            own = (chosen == number).nonzero().flatten()
            out = out.index_add(0, own, expert(flat[own]))
        return self.head(out.view(x.shape).tanh().mean(1))


def test_bits_are_those_of_plans_that_are_not_shared():
    """Of a model whose paths follow from data, other samples give another plan, and then other bits."""
    model, plans = Experts(), Plans()
    batches = [torch.randn(n, length, 4) for n, length in ((6, 4), (5, 3), (7, 4), (4, 3))]
    alone = measured(model, batches, None)
    for _ in range(2):
        shared = measured(model, batches, plans)
        assert all(torch.equal(alone[name], shared[name]) for name in alone)


def other_weights(model):
    with torch.no_grad():
        model[0].weight.add_(1e-3)
    return {}


OTHERS = {
    "weights": other_weights,
    "parameters": lambda model: {"parameters": {"0.weight": model[0].weight}},
    "forward": lambda model: {"forward": lambda net, x: net(x)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_differs_has_a_plan_of_its_own(recordings, other):
    model, batches, plans = network(), [torch.randn(8, 2, 5)], Plans()
    measured(model, batches, plans)
    more = OTHERS[other](model)
    before = len(recordings)
    found = measured(model, batches, plans, **more)
    assert len(recordings) - before == PER_PLAN + 1
    expected = measured(model, batches, None, **more)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_plans_beyond_the_bytes_for_them_are_dropped(recordings, monkeypatch):
    model, plans = network(), Plans()
    monkeypatch.setattr(planning, "PLANS_BYTES", 3 * 4)  # one sample's outputs
    short, long = (torch.randn(8, 2, length) for length in (5, 7))
    measured(model, [short, long], plans)
    before = len(recordings)
    measured(model, [long], plans)
    assert len(recordings) - before == 1
    measured(model, [short], plans)
    assert len(recordings) - before == 1 + PER_PLAN + 1


def test_a_model_that_is_gone_leaves_no_plan_for_another(recordings):
    plans, batches = Plans(), [torch.randn(8, 2, 5)]
    for _ in range(3):
        measured(network(), batches, plans)
    assert len(recordings) == 3 * (PER_PLAN + 1)


def test_both_passes_of_the_rotated_form_share_a_plan(recordings):
    model, batches = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), [torch.randn(8, 4), torch.randn(8, 4)]
    anchorhold.Guard(model, "EWC", form="rotated", strength=1.0).consolidate(batches)
    assert len(recordings) == PER_PLAN + 2 + 2


def test_a_plan_that_nobody_has_checked_is_not_shared():
    """Chunks of one sample do not show that a model mixes samples; those of the next measure do."""

    class Mixes(nn.Module):
        """Each sample sees the one two places before it, which no pair of samples shows."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x + torch.cat([torch.zeros_like(x[:2]), x[:-2]]))

    model, batch, plans = Mixes(), torch.randn(6, 4), Plans()
    measured(model, [batch], plans, budget=1)
    with pytest.raises(anchorhold.errors.ModelError, match="change when other samples are in the batch"):
        measured(model, [batch], plans)
