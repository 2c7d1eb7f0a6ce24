"""Forms of layers' matrices in the fast engine: the products themselves, and whole runs against the plain loop."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.reductions import Basis
from anchorhold.errors import ConfigurationError
from anchorhold.forms import DiagonalMatrix, Kronecker, KroneckerMatrix, Rotated, Rotated16, RotatedMatrix
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.fast.flat_layout import FlatLayout
from anchorhold_lab.training.fast.layer_holds import LayerHolds, can_hold
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.fast.test_engine import Tied, compare, frozen, relative, with_embedding, words
from tests.lab.training.fast.test_gradients import convolutional
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SHORT = Settings(epochs=3, batch_size=8, learning_rate=0.003, samples=20)
FORMS = {
    "rotated": Rotated(),
    "rotated outputs": Rotated(inputs="identity"),
    "rotated inputs": Rotated(outputs="identity", damping=0.1),
    "kronecker": Kronecker(),
    "kronecker with a diagonal": Kronecker(outputs="diagonal"),
    "kronecker with a one": Kronecker(inputs="identity", sums="nearest"),
}


class Layers(nn.Module):
    """Every kind of block: with a bias, without, of a convolution, inputs first, and no matrix."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.without = nn.Linear(3, 5, bias=False)
        self.convolution = nn.Conv2d(2, 3, 2)
        self.embedding = nn.Embedding(6, 2)
        self.norm = nn.LayerNorm(3)


def symmetric(size, generator):
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T


def diagonal(size, generator):
    return torch.rand(size, generator=generator, dtype=torch.float64)


def basis(size, generator):
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q.contiguous()


def matrix_of(form, block, generator):
    """Return a random Q, and the dense matrix that it is of [W b] row by row."""
    m, n = block.size
    sides = form.sides(block)
    if isinstance(form, Rotated):
        u_g, u_a = (basis(k, generator) if side == "dense" else None for k, side in zip((m, n), sides, strict=True))
        s = torch.rand(m, n, generator=generator, dtype=torch.float64)
        whole = torch.kron(*(torch.eye(k).double() if u is None else u for k, u in ((m, u_g), (n, u_a))))
        return RotatedMatrix(block, s, Basis(u_g, u_a), Basis(None, None)), whole @ s.flatten().diag() @ whole.T
    kinds = {"dense": symmetric, "diagonal": diagonal, "identity": lambda *_: None}
    factors = [kinds[side](k, generator) for k, side in zip((m, n), sides, strict=True)]
    dense = [
        torch.eye(k).double() if f is None else f if f.ndim == 2 else f.diag()
        for k, f in zip((m, n), factors, strict=True)
    ]
    return KroneckerMatrix(block, *factors), torch.kron(*dense)


@pytest.mark.parametrize("multiple", [1, 32])
@pytest.mark.parametrize("form", FORMS)
def test_the_products_are_those_of_the_dense_matrix(form, multiple):
    form, generator = FORMS[form], torch.Generator().manual_seed(1)
    model = Layers().double()
    parameters = dict(model.named_parameters())
    layout = FlatLayout({name: p.shape for name, p in parameters.items()})
    weights, anchor = torch.randn(2, 3, layout.width, generator=generator, dtype=torch.float64)
    blocks = form.blocks(model, parameters)
    holds = LayerHolds(form, blocks, layout, weights, anchor, multiple)
    matrices = [[matrix_of(form, block, generator) for block in blocks if block.is_matrix] for _ in range(3)]
    assert not holds.holding and not any(pull.any() for pull in holds.pulls().values())
    for run in (0, 2):  # the one between them is not held yet
        beside = {"norm.weight": DiagonalMatrix("norm.weight", torch.ones(3))}
        holds.take(run, {q.block.name: q for q, _ in matrices[run]} | beside)
    assert holds.holding
    pulls, d = holds.pulls(), layout.views(weights - anchor)
    assert pulls.keys() == parameters.keys() - {"norm.weight", "norm.bias"}
    assert {name: pull.shape[1:] for name, pull in pulls.items()} == {name: parameters[name].shape for name in pulls}
    for run in range(3):
        for q, dense in matrices[run]:
            block = q.block
            weight, *bias = (d[name][run] for name in block.parameters)
            weight = weight.T if block.inputs_first else weight.flatten(1)
            whole = torch.cat([weight, *(b.unsqueeze(1) for b in bias)], 1)
            expected = (dense @ whole.flatten()).view_as(whole) * (run != 1)
            found = [pulls[name][run] for name in block.parameters]
            found[0] = found[0].T if block.inputs_first else found[0].flatten(1)
            found = torch.cat([found[0], *(b.unsqueeze(1) for b in found[1:])], 1)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_what_a_run_was_held_by_is_gone_when_it_takes_over_something_else(form):
    """Nothing at all, as a run that starts anew, or Q of fewer layers."""
    form, generator = FORMS[form], torch.Generator().manual_seed(1)
    model = Layers().double()
    parameters = dict(model.named_parameters())
    layout = FlatLayout({name: p.shape for name, p in parameters.items()})
    weights, anchor = torch.randn(2, 3, layout.width, generator=generator, dtype=torch.float64)
    blocks = form.blocks(model, parameters)
    holds = LayerHolds(form, blocks, layout, weights, anchor, 32)
    matrices = {block.name: matrix_of(form, block, generator)[0] for block in blocks if block.is_matrix}
    for run in range(3):
        holds.take(run, matrices)
    before = {name: pull.clone() for name, pull in holds.pulls().items()}
    holds.take(1, {})
    kept = {name: q for name, q in matrices.items() if "linear.weight" in q.block.parameters}
    holds.take(2, kept)
    still = {name for q in kept.values() for name in q.block.parameters}
    assert still == {"linear.weight", "linear.bias"}
    for name, pull in holds.pulls().items():
        assert torch.equal(pull[0], before[name][0]) and not pull[1].any()
        assert torch.equal(pull[2], before[name][2] if name in still else torch.zeros_like(pull[2]))


def linear(seed, form, dtype=torch.float64, own_heads=True, measure="EWC", settings=SHORT, strength=None, **options):
    scenario = make_scenario(3, own_heads, dtype, train=27, seed=seed)
    return make_learner(
        measure,
        settings=settings,
        seed=seed,
        scenario=scenario,
        model=make_model(scenario).to(dtype),
        strength=20.0 * seed if strength is None else strength,
        form=form,
        **options,
    )


@functools.cache
def plain_linear(seed, form, own_heads):
    return finish(PlainRun(linear(seed, FORMS[form], own_heads=own_heads))).learner


@pytest.mark.parametrize("way", [(1, False), (2, False), (2, True)], ids=["alone", "several", "several batched"])
@pytest.mark.parametrize("own_heads", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_as_in_the_plain_loop(form, own_heads, way):
    runs, batched = way
    seeds = range(1, 1 + runs)
    fast = FastRuns([linear(seed, FORMS[form], own_heads=own_heads) for seed in seeds], batched=batched)
    for found, seed in zip(finish(fast).learners, seeds, strict=True):
        compare(found, plain_linear(seed, form, own_heads), 1e-8)


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_it_is_not_the_diagonal_that_holds(form):
    fast = finish(FastRuns([linear(1, FORMS[form])])).learners[0]
    diagonal = finish(FastRuns([linear(1, "diagonal")])).learners[0]
    assert relative(fast.model.state_dict(), diagonal.model.state_dict()) > 1e-3
    assert relative(fast.model.state_dict(), plain_linear(1, form, True).model.state_dict()) < 1e-8


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_single_precision_stays_near(form):
    # A few steps: what is rounded differently grows from one to the next.
    made = [linear(seed, FORMS[form], torch.float32, settings=dataclasses.replace(SHORT, epochs=2)) for seed in (1, 1)]
    fast, plain = finish(FastRuns([made[0]], batched=True)), finish(PlainRun(made[1]))
    assert relative(fast.learners[0].model.state_dict(), plain.learner.model.state_dict()) < 2e-4


@pytest.mark.parametrize(("measure", "optimizer"), [("MAS", "adam"), ("EWC", "sgd")])
def test_other_measures_and_optimizers(measure, optimizer):
    """With reinitialised weights, so that holds begin far from the anchor; watched path measures see no hold."""
    settings = dataclasses.replace(SHORT, optimizer=optimizer, reinitialise=True)
    options = {"measure": measure, "settings": settings, "strength": 0.05}
    fast = finish(FastRuns([linear(seed, Rotated(), **options) for seed in (1, 2)], batched=True))
    compare(fast.learners[1], finish(PlainRun(linear(2, Rotated(), **options))).learner, 1e-8)


AFTER = dataclasses.replace(SHORT, optimizer="sgd", learning_rate=0.03, reinitialise=True)
"""Where holds act after the step: with momentum, and from far away."""


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_hold_after_the_step_is_that_of_the_plain_loop(form, batched):
    options = {"settings": AFTER, "strength": 5.0}
    fast = FastRuns([linear(seed, FORMS[form], implicit=True, **options) for seed in (1, 2)], batched=batched)
    plain = finish(PlainRun(linear(2, FORMS[form], implicit=True, **options))).learner
    compare(finish(fast).learners[1], plain, 1e-8)
    explicit = finish(PlainRun(linear(2, FORMS[form], **(options | {"strength": 0.05})))).learner
    assert relative(explicit.model.state_dict(), plain.model.state_dict()) > 1e-3


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_no_strength_is_too_much_after_the_step(form):
    """In single precision 2ch is beyond all numbers, and some of S is 0."""
    named = {"rotated": Rotated(damping=0.0), "kronecker": Kronecker(damping=0.0)}[form]
    settings = dataclasses.replace(AFTER, learning_rate=0.2, reinitialise=False)
    made = linear(1, named, torch.float32, settings=settings, strength=1e38, implicit=True)
    found = finish(FastRuns([made])).learners[0]
    assert found.outcome.failure is None
    assert all(parameter.isfinite().all() for parameter in found.model.parameters())


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_convolutions(form, implicit):
    # Without damping: units that die have no gradient but its, and Adam's steps make their weights swing by the rate.
    form = {"rotated": Rotated(damping=0.0), "kronecker": Kronecker(damping=0.0)}[form]

    def make(seed):
        scenario = make_scenario(2, True, torch.float64, train=27, seed=seed, shape=(2, 6, 6))
        settings = AFTER if implicit else SHORT
        options = {"scenario": scenario, "model": convolutional().double(), "settings": settings, "watch": ()}
        return make_learner("EWC", seed=seed, strength=10.0 * seed, form=form, implicit=implicit, **options)

    fast = finish(FastRuns([make(1), make(2)]))
    for found in fast.learners:
        compare(found, finish(PlainRun(make(found.seed))).learner, 1e-8)


def with_batch_norm(scenario):
    body = nn.Sequential(nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 10))
    return MultiHead(body, 10, 3, scenario.heads)


@pytest.mark.filterwarnings("ignore:Batch norms in training mode")
@pytest.mark.parametrize("network", ["batch norm", "frozen statistics", "frozen", "embedding", "tied"])
@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_networks_that_are_no_formula(form, network):
    """Diagonal members beside matrices, weights that are frozen while their bias is not, and tied ones."""

    def make(seed):
        scenario = (
            words(True) if network == "embedding" else make_scenario(2, network != "tied", torch.float64, train=27)
        )
        kinds = {"frozen": frozen, "embedding": with_embedding, "tied": lambda _: Tied()}
        model = kinds.get(network, with_batch_norm)(scenario).double()
        options = {"scenario": scenario, "model": model, "settings": SHORT, "watch": ()}
        options["batch_norm"] = "freeze" if network == "frozen statistics" else None
        return make_learner("EWC", seed=seed, strength=5.0, form=FORMS[form], **options)

    fast, plain = finish(FastRuns([make(1), make(2)])), finish(PlainRun(make(2)))
    compare(fast.learners[1], plain.learner, 1e-8)


def stoppable(form, implicit):
    options = {"settings": dataclasses.replace(AFTER if implicit else SHORT, epochs=4), "implicit": implicit}
    return FastRuns([linear(seed, FORMS[form], **options) for seed in (1, 2)], batched=True)


@functools.cache
def never_stopped(form, implicit):
    return finish(stoppable(form, implicit))


@pytest.mark.parametrize("stop_after", [3, 10, 31])
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_runs_that_stopped_anywhere_go_on_exactly(form, implicit, stop_after, monkeypatch):
    """With so little patience that every step is told, so within epochs of all three tasks: each takes 12 steps."""
    whole, stopped, resumed = never_stopped(form, implicit), stoppable(form, implicit), stoppable(form, implicit)
    monkeypatch.setattr("anchorhold_lab.training.fast.fast_runs.TELL_EVERY", 0.0)
    told = [(progress.task, progress.step) for progress, _ in zip(stopped.learn(), range(stop_after), strict=False)]
    assert told[-1] == {3: (0, 3), 10: (0, 10), 31: (2, 5)}[stop_after]
    resumed.load_state(stopped.state())
    finish(resumed)
    for found, expected in zip(resumed.learners, whole.learners, strict=True):
        assert found.outcome == expected.outcome
        for name, value in expected.model.state_dict().items():
            assert torch.equal(found.model.state_dict()[name], value)


def test_a_state_from_before_the_first_hold_is_gone_back_to():
    first, again = (FastRuns([linear(1, Rotated())]) for _ in range(2))
    early = first.state()
    finish(again).load_state(early)
    assert not again._layer_holds.holding
    compare(finish(again).learners[0], finish(first).learners[0], 1e-12)


def test_a_run_that_diverges_does_not_touch_the_others():
    good = finish(FastRuns([linear(1, Rotated())])).learners[0]
    pair = FastRuns([linear(1, Rotated()), linear(2, Rotated())], batched=True)
    pair._kept.weights[1, 0] = float("nan")
    finish(pair)
    assert pair.outcomes[1].failure is not None and pair.outcomes[0].failure is None
    compare(pair.learners[0], good, 1e-12)


def test_nothing_is_multiplied_before_something_holds(monkeypatch):
    fast = FastRuns([linear(1, Rotated())])
    applied = []
    monkeypatch.setattr(fast._layer_holds, "_compiled", lambda *given: applied.append(given))
    for _ in fast.learn_task():
        pass
    assert not applied and fast._layer_holds.holding


def test_the_diagonal_has_no_place_for_matrices():
    assert FastRuns([linear(1, "diagonal")])._layer_holds is None


class Own(Rotated):
    """A form of someone's own, who may have changed anything."""


def test_forms_that_it_has_no_products_for_are_refused():
    cut = Rotated(outputs="blocks"), Kronecker(inputs="lowrank"), Kronecker(bits=16), Rotated(precision="bfloat16")
    for form in (Rotated(sums="exact"), Kronecker(sums="exact"), Own(), Rotated16(), *cut):
        assert not can_hold(form)
        with pytest.raises(ConfigurationError, match=r"cannot do with the form .*expected engine='plain'"):
            FastRuns([linear(1, form)])
    assert all(can_hold(form) for form in (*FORMS.values(), anchorhold.forms.Diagonal(), Rotated(precision="tf32")))
    with pytest.raises(ConfigurationError, match="alike but for seed and strength"):
        FastRuns([linear(1, Rotated()), linear(2, Rotated(damping=0.1))])
