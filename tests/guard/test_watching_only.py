"""Importance from micro-batches at a learning rate of 0, against the per-sample engine and brute force in float64."""

import itertools

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.measures.recurrences import add_batch_gradient_, squares_of_single_samples
from tests.adapters.by_hand import adapt, networks
from tests.guard.helpers import batch, loss, net, weights
from tests.helpers import grouped

pytestmark = pytest.mark.filterwarnings("ignore:This guard holds nothing yet")


def singly(data):
    return [tuple(part[n : n + 1] for part in data) for n in range(len(data[0]))]


def close(found, expected, tolerance=1e-10):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=1e-15, msg=name)


@pytest.mark.parametrize("measure", ["EWC-empirical", "EWC-sampled", "sqrtFisher", "online-EWC"])
def test_single_samples_give_the_measure_itself(measure):
    settings = {"labels": "true"} if measure in ("sqrtFisher", "online-EWC") else {}
    measure = anchorhold.measures.measure(measure, samples=7, **settings)
    guard = anchorhold.Guard(net(), measure)
    expected = anchorhold.Guard(net(), measure)
    guard.gradients.microbatches(singly(batch(0)))
    assert guard.consolidate()[measure.name].samples == 7
    expected.consolidate(singly(batch(0)))
    close(guard.importance, expected.importance)


def test_adapters_by_their_merged_weights():
    def adapted():
        torch.manual_seed(0)
        model, _, layers = networks()["mlp"]
        return adapt(model.double(), layers)

    measure = anchorhold.Fisher(labels="true")
    guard, expected = (
        anchorhold.Guard(adapted(), measure, options=anchorhold.GuardOptions(space="merged")) for _ in range(2)
    )
    guard.gradients.microbatches(singly(batch(0)))
    guard.consolidate()
    expected.consolidate([batch(0)])
    assert expected.importance
    close(guard.importance, expected.importance)


def test_tokens_that_do_not_count_and_a_scale_by_token():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)

        def forward(self, tokens):
            return self.head(self.embedding(tokens).cumsum(1).tanh())

    torch.manual_seed(0)
    model, tokens = Tagger().double(), torch.randint(7, (6, 4))
    labels = tokens.masked_fill(torch.rand(6, 4) < 0.4, -100)
    labels[2] = -100  # a sample that does not count at all
    measure = anchorhold.Fisher(labels="true", per="token")
    guard = anchorhold.Guard(model, measure)
    guard.gradients.microbatches(singly((tokens, labels)))
    guard.consolidate()
    close(guard.importance, measure.measure(model, [(tokens, labels)]))


def test_uneven_batches_of_several_calls_follow_the_formula():
    model, parts = net(), [batch(seed, n) for seed, n in enumerate((3, 1, 4, 2))]
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))
    guard.gradients.microbatches(parts[:1])
    guard.gradients.microbatches(parts[1:])
    guard.consolidate()
    sizes = torch.tensor([3.0, 1, 4, 2], dtype=torch.float64)
    for name, parameter in model.named_parameters():
        g = torch.stack([torch.autograd.grad(loss(model, part), parameter)[0] for part in parts])
        b = sizes.view(-1, *[1] * parameter.ndim)
        mean = (b * g).sum(0) / 10
        expected = mean**2 + (1 - 1 / 10) * (b * (g - mean) ** 2).sum(0) / 3
        torch.testing.assert_close(guard.importance[name], expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (1, 1, 2)])
def test_the_estimate_has_no_bias(sizes):
    """Over every sequence of four samples that could be drawn out of three, its mean is that of single squares."""
    gradients = torch.tensor([0.3, -1.7, 2.2], dtype=torch.float64)
    total = 0.0
    for drawn in itertools.product(gradients, repeat=4):
        mean, spread, before = torch.zeros(1).double(), torch.zeros(1).double(), 0
        for part in torch.stack(drawn).split(sizes):
            add_batch_gradient_(mean, spread, part.mean().view(1), len(part), before)
            before += len(part)
        total += squares_of_single_samples(mean, spread, len(sizes), 4).item() / 3**4
    assert total == pytest.approx(gradients.square().mean().item(), rel=1e-12)


def test_measures_along_the_path_see_what_training_at_a_rate_of_0_shows():
    parts = [batch(seed) for seed in range(3)]
    watching, trained = net(), net()
    guard = anchorhold.Guard(watching, "SOS", watch=["posterior", "L2"])
    guard.gradients.microbatches(parts)
    expected = anchorhold.Guard(trained, "SOS", watch=["posterior", "L2"])
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.0)
    expected.attach(optimizer)
    for part in parts:
        optimizer.zero_grad()
        loss(trained, part).backward()
        optimizer.step()
    assert guard.gradients.path.steps == 3
    guard.consolidate()
    expected.consolidate()
    for name in ("SOS", "posterior", "L2"):
        close(guard.held.of(name), expected.held.of(name))


def test_nothing_else_changes():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3)).double()
    model[0].weight.grad = torch.ones(5, 4, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"), protect="*weight")
    guard.gradients.microbatches([batch(0), batch(1)])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(5, 4, dtype=torch.float64))
    assert model[3].weight.grad is None
    assert model.training


@pytest.mark.daily
@pytest.mark.parametrize(
    ("measure", "options", "message"),
    [
        ("MAS", {}, "each sample's own gradient.*Those that can: SOS, EWC-sampled, EWC-empirical, posterior, "),
        ("EWC", {}, "labels='exact' wants one backward pass a label"),
        ("SI", {}, "it measures what steps do"),
        (anchorhold.SOS(alpha=1.0), {}, "needs a second gradient"),
        (anchorhold.Fisher(labels="true", positions="separate"), {}, "positions='separate'"),
        ("EWC-empirical", {"form": "rotated"}, "gradients.microbatches.. with form='rotated'"),
        ("EWC-empirical", {"watch": ["AF"]}, "gradients.microbatches.. with AF"),
        ("L2", {}, "which looks at no gradient"),
    ],
)
def test_what_cannot_be_right_is_refused(measure, options, message):
    guard = anchorhold.Guard(net(), measure, **grouped(**options))
    with pytest.raises(anchorhold.errors.ConfigurationError, match=message):
        guard.gradients.microbatches([batch(0)])


def test_data_that_tell_too_little_or_something_else():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))
    with pytest.raises(anchorhold.errors.BatchError, match="given no batches"):
        guard.gradients.microbatches([])
    guard.gradients.microbatches([batch(0)])
    with pytest.raises(anchorhold.errors.BatchError, match=r"seen one micro-batch, of 8 samples"):
        guard.consolidate()
    with pytest.raises(anchorhold.errors.OrderError, match=r"consolidate\(batches\) after gradients.microbatches"):
        guard.consolidate([batch(0)])
    with torch.no_grad():
        model[0].bias.add_(1.0)
    with pytest.raises(anchorhold.errors.OrderError, match="weights have changed since"):
        guard.gradients.microbatches([batch(0)])
    with pytest.raises(anchorhold.errors.OrderError, match="weights have changed since"):
        guard.consolidate()
    guard.gradients.restart_task()
    guard.consolidate([batch(0)])
    assert guard.tasks == 1


def test_a_batch_that_fails_leaves_what_was_seen_before():
    guard = anchorhold.Guard(net(), "SOS", watch=["EWC-empirical"])
    guard.gradients.microbatches([batch(0), batch(1)])
    seen = {name: value.clone() for name, value in guard.gradients.path.running["SOS"]["second_moment"].items()}
    with pytest.raises(anchorhold.AnchorholdError):
        guard.gradients.microbatches([batch(2), (batch(3)[0], torch.full((8,), 17))])
    assert guard.gradients.path.steps == 2
    close(guard.gradients.path.running["SOS"]["second_moment"], seen, 0.0)
    guard.consolidate()
    expected = anchorhold.Guard(net(), "SOS", watch=["EWC-empirical"])
    expected.gradients.microbatches([batch(0), batch(1)])
    expected.consolidate()
    for name in ("SOS", "EWC-empirical"):
        close(guard.held.of(name), expected.held.of(name), 0.0)


def test_path_measures_do_not_mix_it_with_training():
    model = net()
    guard = anchorhold.Guard(model, "SOS")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    optimizer.step()
    moved = weights(model)
    with pytest.raises(anchorhold.errors.OrderError, match="in the middle of a task: SOS has seen 1 steps"):
        guard.gradients.microbatches([batch(0)])
    assert all(torch.equal(moved[name], value) for name, value in weights(model).items())


def test_draws_and_limits_go_on_from_call_to_call():
    parts = [batch(seed, 2) for seed in range(6)]
    for measure in (anchorhold.Fisher(labels="sampled"), anchorhold.Fisher(labels="true", samples=5)):
        once, often = (anchorhold.Guard(net(), measure) for _ in range(2))
        once.gradients.microbatches(parts)
        for part in parts:
            often.gradients.microbatches([part])
        assert often.consolidate()[measure.name].samples == once.consolidate()[measure.name].samples
        close(often.importance, once.importance)


@pytest.mark.parametrize("measure", ["EWC-empirical", "SOS"])
def test_labels_of_which_none_counts_are_refused(measure):
    guard = anchorhold.Guard(net(), measure)
    ignored = (batch(0)[0], torch.full((8,), -100))
    for before in ([], [batch(1), batch(2)]):
        if before:
            guard.gradients.microbatches(before)
        with pytest.raises(anchorhold.errors.BatchError, match="none with labels that count"):
            guard.gradients.microbatches([ignored])
    guard.gradients.microbatches([batch(3), ignored])
    guard.consolidate()
    assert guard.tasks == 1


@pytest.mark.parametrize("measure", ["EWC-empirical", "SOS"])
def test_gradients_that_are_not_finite_are_refused_and_earlier_ones_stay(measure):
    guard, expected = (anchorhold.Guard(net(), measure) for _ in range(2))
    for each in (guard, expected):
        each.gradients.microbatches([batch(0), batch(1)])
    x, y = batch(2)
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"gradients of '0\.weight' that are not finite"):
        guard.gradients.microbatches([(x * float("nan"), y)])
    for each in (guard, expected):
        each.gradients.microbatches([batch(3)])
        each.consolidate()
    close(guard.importance, expected.importance, 0.0)


def moved_back(guard, why, first):
    before = weights(guard.model)
    with pytest.raises(anchorhold.errors.OrderError, match=rf"with {why}.*Nothing was moved. Call {first}"):
        guard.consolidate(**({"share": 0.5} if "share" in why else {}))
    assert all(torch.equal(before[name], value) for name, value in weights(guard.model).items())


def test_what_was_watched_is_not_moved_by_consolidate_itself():
    model, parts = net(), [batch(0), batch(1)]
    guard = anchorhold.Guard(model, "EWC-empirical", tolerance=0.02)
    guard.keep([batch(2, 16)[0]])
    guard.consolidate(parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    guard.attach(optimizer)
    for part in 5 * parts:
        loss(model, part).backward()
        optimizer.step()
    guard.gradients.microbatches(parts)
    moved_back(guard, "share=0.5", r"average\(0.5\)")
    moved_back(guard, "tolerance=0.02", r"pull_back\(\)")
    guard.pull_back()
    guard.gradients.restart_task()
    guard.gradients.microbatches(parts)
    guard.consolidate()
    assert guard.tasks == 2


def test_a_loaded_state_has_what_was_watched_then():
    guard = anchorhold.Guard(net(), "EWC-empirical", watch=["SOS"])
    state = guard.state_dict()
    guard.gradients.microbatches([batch(0), batch(1)])
    guard.load_state_dict(state)
    with pytest.raises(anchorhold.errors.BatchError, match="measures importance from data"):
        guard.consolidate()


def test_watching_goes_on_from_a_file(tmp_path):
    """Samples, drawn labels and running states, at the same weights alone."""

    def watching(model=None):
        drawn = anchorhold.Fisher(labels="sampled", samples=20)
        return anchorhold.Guard(model or net(), drawn, watch=["EWC-empirical", "SOS"])

    guard, expected = watching(), watching()
    for each in (guard, expected):
        each.gradients.microbatches([batch(0), batch(1)])
    guard.save(tmp_path / "between.safetensors")
    again = watching()
    again.load(tmp_path / "between.safetensors")
    for each in (again, expected):
        each.gradients.microbatches([batch(2), batch(3)])
        assert each.consolidate()["EWC-sampled"].samples == 20
    for label in ("EWC-sampled", "EWC-empirical", "SOS"):
        assert all(torch.equal(again.held.of(label)[n], o) for n, o in expected.held.of(label).items())
    moved = watching(net(seed=1))
    moved.load(tmp_path / "between.safetensors")
    with pytest.raises(anchorhold.errors.OrderError, match="weights have changed since"):
        moved.consolidate()
    state = guard.state_dict()
    lacking = {key: tensor for key, tensor in state["tensors"].items() if not key.endswith("0.weight#1.spread")}
    with pytest.raises(anchorhold.errors.StateError, match=r"gradients.microbatches\(\) has seen is not whole"):
        again.load_state_dict({**state, "tensors": lacking, "tensor_count": len(lacking)})
    assert again.tasks == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[-1].bias.add_(1.0),  # which is not protected
        lambda model: model[0].weight.copy_(model[0].weight.flip(0)),
        lambda model: model[0].weight[:2, 0].neg_(),
    ],
)
def test_any_weight_that_has_moved_is_noticed(change):
    model = net()
    guard = anchorhold.Guard(model, "EWC-empirical", protect="0.*")
    guard.gradients.microbatches([batch(0), batch(1)])
    with torch.no_grad():
        change(model)
    with pytest.raises(anchorhold.errors.OrderError, match="weights have changed since"):
        guard.consolidate()
