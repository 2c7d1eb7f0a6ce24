"""Exchange rates, against the KL of predictions in float64: c⟨D, Q(D)⟩ is κ times the nats lost of a token."""

import copy
import itertools
import math
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError, StateError
from tests.guard.helpers import batch, net, train

FORMS = {
    "diagonal": "diagonal",
    "rotated": anchorhold.forms.Rotated(damping=0.0),
    "kronecker": anchorhold.forms.Kronecker(damping=0.0),
    "lowrank": anchorhold.forms.LowRank(rank=200),
    "dense": "dense",
}
WHOLE = ("lowrank", "dense")


# Networks and data


class Writer(nn.Module):
    """A transformer of one block that predicts next tokens."""

    def __init__(self, tokens=5, width=4):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.up, self.head = nn.Linear(width, 6), nn.Linear(6, tokens)

    def forward(self, x):
        h = self.embed(x)
        scores = self.query(h) @ self.key(h).mT / 2
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = h + scores.masked_fill(later, -torch.inf).softmax(-1) @ self.value(h)
        return self.head(torch.tanh(self.up(h)))


def writer():
    torch.manual_seed(3)
    return Writer().double()


def classifier():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def texts(count=6, seed=0, longest=7, shortest=2):
    """Texts of several lengths: padding, and some more tokens, have the label -100; one text has no other."""
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randint(5, (count, longest), generator=drawn)
    y = torch.randint(5, (count, longest), generator=drawn)
    for row, length in enumerate(torch.randint(shortest, longest + 1, (count,), generator=drawn).tolist()):
        y[row, length:] = -100
        y[row, 0] = -100 if row % 2 and length > 2 else y[row, 0]
    y[count - 1] = -100
    return x, y


def pictures(count=6, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=drawn, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=drawn)


def moved_kl(model, old, d, x, counted, size=3e-4):
    """Return the KL of a scored token that a displacement costs: the mean of both directions, without odd orders."""
    found = []
    for sign in (1, -1):
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(old[name] + sign * size * d.get(name, torch.zeros_like(p)))
            now = model(x).log_softmax(-1)[counted]
            for name, p in model.named_parameters():
                p.copy_(old[name])
            then = model(x).log_softmax(-1)[counted]
        found.append(float((then.exp() * (then - now)).sum(-1).mean()) / size**2)
    return sum(found) / 2


def held_for(guard, model, old, d, size=3e-4):
    """Return what the guard holds against the same displacement."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(old[name] + size * d.get(name, torch.zeros_like(p)))
        value = float(guard.penalty()) / size**2
        for name, p in model.named_parameters():
            p.copy_(old[name])
    return value


def a_displacement(model, guard, form, seed):
    """Return one that the form has no approximation for: any, in one layer's coordinate, or of one weight."""
    drawn = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters())
    if form in WHOLE:
        return {n: torch.randn(p.shape, generator=drawn, dtype=torch.float64) for n, p in named.items()}
    name = sorted(named)[int(torch.randint(len(named), (), generator=drawn))]
    if form == "diagonal":
        d = torch.zeros_like(named[name]).flatten()
        d[int(torch.randint(d.numel(), (), generator=drawn))] = 1.0
        return {name: d.view_as(named[name]).detach()}
    raise AssertionError(form)


@pytest.mark.parametrize("kind", ["classifier", "writer"])
@pytest.mark.parametrize("form", ["diagonal", "lowrank", "dense"])
@pytest.mark.parametrize("settings", [{}, {"per": "token"}, {"positions": "separate"}], ids=str)
def test_a_penalty_is_the_nats_lost_of_a_scored_token(kind, form, settings):
    model, (x, y) = (classifier(), pictures()) if kind == "classifier" else (writer(), texts())
    guard = anchorhold.Guard(model, anchorhold.Fisher(**settings), form=FORMS[form], exchange_rate=1.7)
    guard.consolidate([(x[:4], y[:4]), (x[4:], y[4:])])
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    tokens = int((y != -100).sum())
    samples = int((y != -100).reshape(len(y), -1).any(1).sum())
    assert guard.held.record()["tokens"] == (1 if settings or kind == "classifier" else tokens / samples)
    for seed in range(5):
        d = a_displacement(model, guard, form, seed)
        kl = moved_kl(model, old, d, x, y != -100)
        assert held_for(guard, model, old, d) == pytest.approx(1.7 * kl, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_it_is_so_in_the_coordinates_of_a_layer(form):
    """Of one sample, ggᵀ ⊗ aaᵀ has no approximation in these forms, whatever the layer's displacement is."""
    model, (x, _) = classifier(), pictures(1)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=FORMS[form], exchange_rate=0.6)
    guard.consolidate([x])
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    for layer in ("0.", "2."):
        d = {n: torch.randn_like(p).detach() for n, p in model.named_parameters() if n.startswith(layer)}
        kl = moved_kl(model, old, d, x, torch.ones(1, dtype=torch.bool))
        assert held_for(guard, model, old, d) == pytest.approx(0.6 * kl, rel=2e-5, abs=1e-9)


def test_a_rotated_coordinate_is_right_of_many_texts():
    """S is the mean square along each pair of eigenvectors, so a displacement along one has no approximation."""
    model, (x, y) = writer(), texts()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=FORMS["rotated"], exchange_rate=1.0)
    guard.consolidate([(x, y)])
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    matrix = next(m for m in guard.held.matrices.values() if "up.weight" in m.block.parameters)
    outputs, inputs = matrix.basis.outputs, matrix.basis.inputs
    for row, column in ((-1, -1), (0, -1), (2, 3)):
        joined = torch.outer(outputs[:, row], inputs[:, column])
        d = {"up.weight": joined[:, :4], "up.bias": joined[:, 4]}
        kl = moved_kl(model, old, d, x, y != -100)
        assert held_for(guard, model, old, d) == pytest.approx(kl, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("kind", ["classifier", "writer"])
def test_drawn_labels_are_right_on_average(kind):
    model, (x, y) = (classifier(), pictures()) if kind == "classifier" else (writer(), texts())
    measure = anchorhold.Fisher(labels="sampled", draws=20_000)
    guard = anchorhold.Guard(model, measure, form="dense", exchange_rate=1.0)
    guard.consolidate([(x, y)])
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    d = a_displacement(model, guard, "dense", 1)
    kl = moved_kl(model, old, d, x, y != -100)
    assert held_for(guard, model, old, d) == pytest.approx(kl, rel=0.04)


SHARES = torch.tensor([0, 0, 1, 2])
"""Labels that come as often as a model says that gives them ½, ¼ and ¼."""


def at_an_optimum(positions):
    """Return a model and data on which no weight can lower the loss: all labels, as often as the model expects."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.copy_(torch.tensor([0.5, 0.25, 0.25]).log())
    x = torch.randn(positions, 4, dtype=torch.float64)
    labels = torch.tensor(list(itertools.product(SHARES.tolist(), repeat=positions)))
    inputs = x.expand(len(labels), positions, 4)
    return model, (inputs[:, 0], labels[:, 0]) if positions == 1 else (inputs, labels)


@pytest.mark.parametrize("positions", [1, 3])
def test_the_data_s_own_labels_are_right_at_an_optimum_alone(positions):
    model, (x, y) = at_an_optimum(positions)
    guards = [
        anchorhold.Guard(model, anchorhold.Fisher(labels=labels), form="dense", exchange_rate=1.0)
        for labels in ("exact", "true")
    ]
    for guard in guards:
        guard.consolidate([(x, y)])
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    d = a_displacement(model, guards[0], "dense", 0)
    exact, empirical = (held_for(guard, model, old, d) for guard in guards)
    assert empirical == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(moved_kl(model, old, d, x, y != -100), rel=2e-5)
    assert guards[1].held.record()["tokens"] == positions
    elsewhere = anchorhold.Guard(model, anchorhold.Fisher(labels="true"), form="dense", exchange_rate=1.0)
    elsewhere.consolidate([(x, torch.zeros_like(y))])
    assert not math.isclose(held_for(elsewhere, model, old, d), exact, rel_tol=0.1)


def test_posterior_precision_counts_what_the_loss_is_a_mean_over():
    """b·v of a batch's mean gradient is the Fisher information of one of its b samples, whatever N is."""
    model, (x, y) = at_an_optimum(1)
    measure = anchorhold.measures.PosteriorPrecision(beta2=0.999999, normalise=True, batch_size=2, eta=0.0)
    guard = anchorhold.Guard(model, measure, exchange_rate=1.0, from_scratch=True)
    pairs = [(torch.stack((x[i], x[j])), torch.stack((y[i], y[j]))) for i, j in itertools.product(range(4), repeat=2)]
    guard.gradients.microbatches(pairs)
    guard.consolidate()
    fisher = anchorhold.Guard(model, anchorhold.Fisher(), exchange_rate=1.0)
    fisher.consolidate([x])
    assert guard.held.record()["tokens"] == 1 and guard.strength == fisher.strength == 0.5
    for name, omega in fisher.importance.items():
        torch.testing.assert_close(guard.importance[name], omega, rtol=1e-4, atol=1e-9)


# Several tasks


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_token_of_every_task_counts_the_same(decay):
    model = writer()
    lengths = [texts(seed=1, longest=4), texts(seed=2, longest=12, shortest=9)]
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form="dense", exchange_rate=1.0, decay=decay)
    found = [guard.consolidate([each])["EWC"].tokens for each in lengths]
    assert found[1] > 3 * found[0]
    assert guard.held.record()["tokens"] == found[0] and guard.strength == 1 / (2 * found[0])
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    d = a_displacement(model, guard, "dense", 4)
    first, second = (moved_kl(model, old, d, x, y != -100) for x, y in lengths)
    assert held_for(guard, model, old, d) == pytest.approx(decay * first + second, rel=2e-5)


def test_the_same_task_twice_counts_twice_and_as_an_average_once():
    model, (x, y) = writer(), texts()
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    found = {}
    for average in (False, True):
        guard = anchorhold.Guard(model, anchorhold.Fisher(average=average), form="dense", exchange_rate=1.0)
        guard.consolidate([(x, y)])
        with nullcontext() if average else pytest.warns(anchorhold.AnchorholdWarning, match="consolidate.. again"):
            guard.consolidate([(x, y)])
        d = a_displacement(model, guard, "dense", 4)
        found[average] = held_for(guard, model, old, d)
    kl = moved_kl(model, old, d, x, y != -100)
    assert found[False] == pytest.approx(2 * kl, rel=2e-5)
    assert found[True] == pytest.approx(kl, rel=2e-5)


def test_with_a_strength_tasks_are_added_as_they_are_and_a_rate_takes_their_mean():
    model = writer()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0)
    found = [guard.consolidate([texts(seed=s, longest=n, shortest=2)])["EWC"].tokens for s, n in ((1, 4), (2, 12))]
    plain = anchorhold.Fisher().measure(model, [texts(seed=1, longest=4, shortest=2)])
    more = anchorhold.Fisher().measure(model, [texts(seed=2, longest=12, shortest=2)])
    for name, omega in guard.importance.items():
        torch.testing.assert_close(omega, plain[name] + more[name], rtol=1e-12, atol=0)
    mean = sum(found) / 2
    assert guard.held.record() == pytest.approx(
        {"strength": 3.0, "exchange_rate": 6.0 * mean, "tokens": mean, "trace": guard.held.record()["trace"]}
    )
    guard.exchange_rate = 0.5
    assert guard.strength == pytest.approx(0.25 / mean) and guard.exchange_rate == 0.5


def test_sola_s_gradient_counts_by_tokens_too():
    """The linear term and Q are those of one loss, so both are scaled alike."""
    model, first, second = writer(), texts(seed=1, longest=4), texts(seed=2, longest=12, shortest=9)
    sola = anchorhold.GuardOptions(gradient_term=True)
    settings = {"form": "dense", "anchor": "mean", "options": sola}
    guard = anchorhold.Guard(model, anchorhold.Fisher(), exchange_rate=1.0, **settings)
    by_token = anchorhold.Guard(model, anchorhold.Fisher(per="token"), exchange_rate=1.0, **settings)
    for each in (guard, by_token):
        each.consolidate([first])
        each.consolidate([second])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01 * torch.randn_like(p))
        assert float(guard.penalty()) == pytest.approx(float(by_token.penalty()), rel=1e-9)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("given", [{"exchange_rate": 1.0}, {"strength": 1.0}], ids=str)
def test_what_was_forgotten_altogether_counts_no_more(given, average):
    model, long = writer(), texts(seed=2, longest=12, shortest=9)
    guard = anchorhold.Guard(model, anchorhold.Fisher(average=average), **given)
    guard.consolidate([texts(seed=1, longest=4)])
    guard.forget("*")
    guard.consolidate([long])
    guard.exchange_rate = 1.0
    alone = anchorhold.Guard(model, anchorhold.Fisher(average=average), exchange_rate=1.0)
    alone.consolidate([long])
    assert guard.held.record() == alone.held.record()
    resumed = anchorhold.Guard(model, anchorhold.Fisher(average=average))
    resumed.load_state_dict(guard.state_dict())
    assert resumed.held.record() == alone.held.record()


# What a Guard takes


def test_of_a_fisher_it_is_1_where_nobody_has_said_anything():
    for measure in ("EWC", "EWC-sampled", "EWC-empirical", anchorhold.measures.OnlineEWC(normalise=False)):
        guard = anchorhold.Guard(net(), measure)
        assert guard.exchange_rate == 1.0 and guard.strength == 0.0
    for measure in ("SI", "MAS", "sqrtFisher", "online-EWC", "posterior"):
        guard = anchorhold.Guard(net(), measure)
        assert guard.exchange_rate is None and guard.strength == 1.0
    for given in ({"strength": 2.0}, {"strength": {"*": 1.0}}, {"tolerance": 0.1}, {"strength": 0.0}):
        assert anchorhold.Guard(net(), "EWC", **given).exchange_rate is None


@pytest.mark.parametrize(
    "name",
    [name for name in anchorhold.measures.MEASURES if not name.startswith(("EWC", "posterior"))],
)
def test_measures_of_another_unit_are_refused(name):
    reason = "holds no weight" if name == "fine-tune" else "is no Fisher information"
    with pytest.raises(ConfigurationError, match=reason):
        anchorhold.Guard(net(), name, exchange_rate=1.0)
    guard = anchorhold.Guard(net(), name, strength=1.0)
    with pytest.raises(ConfigurationError, match=reason):
        guard.exchange_rate = 1.0
    assert guard.strength == 1.0


def test_one_derived_from_the_fisher_that_makes_something_else_of_it_is_none():
    class Fourth(anchorhold.Fisher):
        name = "fourth"

        def transform(self, mean):
            return mean**2

    assert anchorhold.Guard(net(), Fourth()).exchange_rate is None


@pytest.mark.parametrize("given", [0, 0.0, -1.0, float("nan"), float("inf"), 1e39, 1e-39, "1", True, {"*": 1.0}, [1.0]])
def test_rates_that_make_no_sense(given):
    with pytest.raises(ConfigurationError, match="exchange_rate="):
        anchorhold.Guard(net(), "EWC", exchange_rate=given)
    guard = anchorhold.Guard(net(), "EWC", exchange_rate=2.0)
    guard.consolidate([batch(0)])
    with pytest.raises(ConfigurationError, match="exchange_rate="):
        guard.exchange_rate = given
    assert guard.exchange_rate == 2.0 and guard.strength == 1.0


def test_one_way_to_say_how_strongly():
    for strength in (1.0, 0.0, {"*": 1.0}):
        with pytest.raises(ConfigurationError, match="expected one of both"):
            anchorhold.Guard(net(), "EWC", strength=strength, exchange_rate=1.0)
    with pytest.raises(ConfigurationError, match="the strength follows the tolerance"):
        anchorhold.Guard(net(), "EWC", exchange_rate=1.0, tolerance=0.1)
    guard = anchorhold.Guard(net(), "EWC", tolerance=0.1)
    with pytest.raises(ConfigurationError, match=r"follows tolerance=0\.1"):
        guard.exchange_rate = 1.0
    with pytest.raises(ConfigurationError, match=r"set guard\.strength"):
        anchorhold.Guard(net(), "EWC").exchange_rate = None


def test_a_strength_does_without_it_and_it_without_one():
    guard = anchorhold.Guard(net(), "EWC")
    guard.strength = 7.0
    assert guard.exchange_rate is None
    guard.consolidate([batch(0)])
    assert guard.strength == 7.0
    guard.strength = {"0.*": 7.0, "*": 1.0}
    guard.exchange_rate = 4.0
    assert guard.strength == 2.0
    torch.testing.assert_close(guard.held.importance["2.weight"], guard.importance["2.weight"])
    guard.strength = {"0.*": 7.0, "*": 1.0}
    assert guard.exchange_rate is None and guard.held.record()["exchange_rate"] is None


def test_nothing_is_held_before_tokens_were_counted():
    model = net()
    guard = anchorhold.Guard(model, "EWC", exchange_rate=3.0)
    assert guard.strength == 0 and guard.penalty() == 0
    assert guard.held.record() == {"strength": 0.0, "exchange_rate": None, "tokens": None, "trace": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with pytest.warns(AnchorholdWarning, match=r"so exchange_rate=3 has nothing to pull at"):
        train(model, optimizer, steps=1)


def test_labels_that_all_do_not_count_are_refused_and_nothing_is_lost():
    model, (x, y) = writer(), texts()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    with pytest.raises(BatchError, match="all of them with ignored labels"):
        guard.consolidate([(x, torch.full_like(y, -100))])
    assert guard.tasks == 0 and guard.strength == 0
    guard.consolidate([(x, y)])
    with pytest.raises(BatchError, match="all of them with ignored labels"):
        guard.consolidate([(x, torch.full_like(y, -100))])
    assert guard.tasks == 1 and guard.strength == 1 / (2 * guard.held.record()["tokens"])


def test_what_is_printed_says_the_rate_what_a_nat_is_and_how_right_it_was():
    model, (x, y) = writer(), texts(8)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), exchange_rate=2.0)
    assert "exchange rate 2, of which the first consolidation makes a strength" in str(guard)
    guard.consolidate([(x, y)])
    tokens = guard.held.record()["tokens"]
    assert f"exchange rate 2, which is strength {1 / tokens:.3g} for {tokens:.4g} scored tokens a sample" in str(guard)
    assert "1 nat lost of an old token counts as 2 nats of the new loss (a nat is 1.44 bits" in str(guard)
    guard.keep([texts(8, seed=9)], "others")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), torch.zeros_like(x).flatten()).backward()
        optimizer.step()
    measured = guard.retention()
    assert measured.second_order_prediction == pytest.approx(guard.penalty().item() / 2, rel=1e-9)
    assert f"{guard.control.trace[-1].predicted:.3g} by the second order that the exchange rate goes by" in str(guard)


# Where tokens are counted


def test_micro_batches_count_them_too():
    model, (x, y) = writer(), texts()
    for settings in ({}, {"per": "token"}):
        guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true", **settings), exchange_rate=1.0)
        other = anchorhold.Guard(model, anchorhold.Fisher(labels="true", **settings), exchange_rate=1.0)
        guard.gradients.microbatches([(x[i : i + 1], y[i : i + 1]) for i in range(3)])
        resumed = anchorhold.Guard(model, anchorhold.Fisher(labels="true", **settings))
        resumed.load_state_dict(guard.state_dict())
        resumed.gradients.microbatches([(x[i : i + 1], y[i : i + 1]) for i in range(3, len(x))])
        other.consolidate([(x, y)])
        resumed.consolidate()
        assert resumed.held.record() == pytest.approx(other.held.record(), rel=1e-9)


def test_micro_batches_of_an_earlier_version_have_none(monkeypatch):
    model, (x, y) = writer(), texts()
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))
    guard.gradients.microbatches([(x[:1], y[:1])])
    state = guard.state_dict()
    state["watched"]["asked"] = [row[:6] for row in state["watched"]["asked"]]
    guard.load_state_dict(state)
    guard.gradients.microbatches([(x[1:2], y[1:2])])
    with pytest.raises(anchorhold.errors.OrderError, match="it is not known how many tokens were scored"):
        guard.consolidate()
    assert guard.tasks == 0
    guard.strength = 2.0
    guard.consolidate()
    assert guard.held.record()["tokens"] is None
    with pytest.raises(ConfigurationError, match="is not known of all tasks"):
        guard.exchange_rate = 1.0


# States


@pytest.mark.parametrize("way", ["file", "dict"])
def test_it_is_saved_and_goes_on_exactly(way, tmp_path):
    model = writer()
    guard = anchorhold.Guard(model, "EWC", exchange_rate=0.3)
    guard.consolidate([texts(seed=1, longest=4)])
    other = copy.deepcopy(model)
    resumed = anchorhold.Guard(other, "EWC")
    if way == "file":
        guard.save(tmp_path / "guard.safetensors")
        resumed.load(tmp_path / "guard.safetensors")
    else:
        resumed.load_state_dict(guard.state_dict())
    assert (resumed.strength, resumed.exchange_rate) == (guard.strength, 0.3)
    for each in (guard, resumed):
        each.consolidate([texts(seed=2, longest=12)])
    assert resumed.held.record() == guard.held.record()
    assert all(torch.equal(omega, resumed.importance[name]) for name, omega in guard.importance.items())


def test_it_may_be_saved_before_the_first_task_has_ended(tmp_path):
    guard = anchorhold.Guard(net(), "EWC", exchange_rate=0.3)
    guard.save(tmp_path / "guard.safetensors")
    resumed = anchorhold.Guard(net(), "EWC")
    resumed.load(tmp_path / "guard.safetensors")
    assert resumed.strength == 0 and resumed.exchange_rate == 0.3
    for each in (guard, resumed):
        each.consolidate([batch(0)])
    assert resumed.strength == guard.strength > 0


def test_a_state_without_tokens_keeps_the_strength_that_it_has():
    guard = anchorhold.Guard(net(), "EWC", strength=5.0)
    guard.consolidate([batch(0)])
    state = {key: value for key, value in guard.state_dict().items() if key != "tokens"}
    other = anchorhold.Guard(net(), "EWC")
    other.load_state_dict(state)
    assert other.strength == 5.0 and other.exchange_rate is None and other.held.record()["exchange_rate"] is None
    with pytest.raises(ConfigurationError, match="is not known of all tasks"):
        other.exchange_rate = 1.0
    other.consolidate([batch(1)])
    assert other.strength == 5.0 and other.held.record()["tokens"] is None
    with pytest.warns(AnchorholdWarning, match=r"made with exchange_rate=2, and the state .* strength=5"):
        anchorhold.Guard(net(), "EWC", exchange_rate=2.0).load_state_dict(state)


def test_a_strength_that_0_1_0_had_not_found_is_this_guard_s_own():
    early = {**anchorhold.Guard(net(), "EWC").state_dict(), "relative_strength": 0.3}
    del early["exchange_rate"]
    guard = anchorhold.Guard(net(), "EWC", exchange_rate=2.0)
    with pytest.warns(AnchorholdWarning, match=r"relative_strength=0\.3.* goes on with exchange_rate=2, as it was"):
        guard.load_state_dict(early)
    guard.consolidate([batch(0)])
    assert guard.strength == 1.0
    found = anchorhold.Guard(net(), "EWC", strength=4.0)
    found.consolidate([batch(0)])
    guard.load_state_dict({**found.state_dict(), "relative_strength": 0.3})
    assert guard.strength == 4.0 and guard.exchange_rate is None
    assert "relative_strength" not in guard.state_dict()


def test_a_tolerance_takes_the_place_of_a_rate_in_a_state():
    guard = anchorhold.Guard(net(), "EWC")
    guard.consolidate([batch(0)])
    other = anchorhold.Guard(net(), "EWC", tolerance=0.1)
    other.load_state_dict(guard.state_dict())
    assert other.tolerance == 0.1 and other.exchange_rate is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("exchange_rate", 0.0),
        ("exchange_rate", "1"),
        ("exchange_rate", None),
        ("tokens", []),
        ("tokens", [0.5]),
        ("tokens", [1.0, 1.0]),
        ("tokens", ["1"]),
        ("tokens", [float("nan")]),
        ("tokens", 1.0),
        ("strengths", [["*", 1.5]]),
    ],
)
def test_damaged_states_are_refused_and_nothing_is_lost(key, value):
    guard = anchorhold.Guard(net(), "EWC", exchange_rate=3.0)
    guard.consolidate([batch(0)])
    with pytest.raises(StateError):
        guard.load_state_dict({**guard.state_dict(), key: value})
    assert guard.strength == 1.5 and guard.exchange_rate == 3.0


def test_the_record_has_no_strength_that_does_not_hold_yet():
    guard = anchorhold.Guard(net(), "EWC", tolerance=0.1)
    guard.keep([batch(seed)[0] for seed in range(1, 9)])
    guard.consolidate([batch(0)])
    record = guard.held.record()
    assert record["strength"] == record["exchange_rate"] == guard.strength == 0.0 and record["tokens"] == 1.0


def test_a_state_with_a_rate_of_a_measure_in_another_unit_is_refused():
    guard = anchorhold.Guard(net(), "MAS", strength=2.0)
    guard.consolidate([batch(0)])
    with pytest.raises(StateError, match=r"exchange_rate=3, .* not in nats"):
        guard.load_state_dict({**guard.state_dict(), "exchange_rate": 3.0})
    assert guard.strength == 2.0 and guard.exchange_rate is None


def test_copies_have_it_too():
    guard = anchorhold.Guard(net(), "EWC", exchange_rate=3.0)
    guard.consolidate([batch(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = copy.deepcopy(guard)
    assert again.held.record() == guard.held.record()
    again.consolidate([batch(1)])
    assert guard.tasks == 1 and guard.held.record()["trace"] != again.held.record()["trace"]
