"""Merging against its normal equations, dense and in float64."""

import pytest
import torch

import anchorhold
from anchorhold.merging import Merging, normal_equations
from tests.merging.models import batches, brute_force, guarded, moved, network, vector


@pytest.fixture(autouse=True)
def to_the_last_digits(monkeypatch):
    """Where there is no closed form, go on for longer than anyone would wait."""
    monkeypatch.setattr(normal_equations, "TOLERANCE", 1e-14)


FORMS = {
    "fisher": "diagonal",
    "regmean": anchorhold.Kronecker(outputs="identity"),
    "regmean, the other side": anchorhold.Kronecker(inputs="identity"),
    "regmean, diagonal": anchorhold.Kronecker(outputs="identity", inputs="diagonal"),
    "kronecker": "kronecker",
    "kronecker, diagonal outputs": anchorhold.Kronecker(outputs="diagonal"),
    "rotated": "rotated",
    "rotated inputs": anchorhold.Rotated(outputs="identity"),
    "rotated, every task kept": anchorhold.Rotated(sums="exact"),
    "rotated, sides cut": anchorhold.Rotated(outputs="blocks", inputs="lowrank", largest_block=2, rank=2),
    "kronecker, sides cut": anchorhold.Kronecker(outputs="lowrank", inputs="blocks", largest_block=2, rank=2),
    "regmean, in blocks": anchorhold.Kronecker(outputs="identity", inputs="blocks", largest_block=2),
    "lowrank": anchorhold.LowRank(rank=5),
    "dense": "dense",
    "dense layers": anchorhold.forms.Dense(span="layers"),
}


def merged(models, share, **settings):
    before, *after = models
    found = anchorhold.merge(before, after[0] if len(after) == 1 else after, share, **settings)
    return vector({name: found[name] for name, _ in before.named_parameters()})


@pytest.mark.daily
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_two_models_with_forms_of_both(name, share):
    before, after = network(), moved(network())
    guards = [guarded(before, FORMS[name], 3), guarded(after, FORMS[name], 4)]
    expected = brute_force([before, after], guards, [1 - share, share], 1e-3)
    assert not torch.allclose(
        expected,
        (1 - share) * vector(dict(before.named_parameters())) + share * vector(dict(after.named_parameters())),
        atol=1e-3,
    )
    torch.testing.assert_close(
        merged([before, after], share, by=guards, damping=1e-3), expected, rtol=1e-10, atol=1e-10
    )


@pytest.mark.daily
@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_one_alone(name):
    before, after = network(), moved(network())
    guard = guarded(before, FORMS[name])
    expected = brute_force([before, after], [guard, None], [0.4, 0.6], 1e-3)
    torch.testing.assert_close(merged([before, after], 0.6, by=guard, damping=1e-3), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["fisher", "regmean", "kronecker", "rotated", "dense"])
def test_three_models(name):
    models = [network(), moved(network()), moved(network(), seed=8)]
    guards = [guarded(model, FORMS[name], 3 + k) for k, model in enumerate(models)]
    expected = brute_force(models, guards, [0.5, 0.3, 0.2], 1e-3)
    torch.testing.assert_close(merged(models, [0.3, 0.2], by=guards, damping=1e-3), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rotated", "fisher"),
        ("kronecker", "rotated"),
        ("regmean", "kronecker"),
        ("dense", "fisher"),
        ("lowrank", "rotated"),
    ],
)
def test_forms_of_different_kinds(one, other):
    before, after = network(), moved(network())
    guards = [guarded(before, FORMS[one], 3), guarded(after, FORMS[other], 4)]
    expected = brute_force([before, after], guards, [0.6, 0.4], 1e-3)
    torch.testing.assert_close(merged([before, after], 0.4, by=guards, damping=1e-3), expected, rtol=1e-10, atol=1e-10)


def test_several_tasks_each_kept():
    before, after = network(), moved(network())
    guards = [guarded(before, anchorhold.Rotated(sums="exact"), 3), guarded(after, "rotated", 4)]
    guards[0].consolidate(batches(9))
    expected = brute_force([before, after], guards, [0.6, 0.4], 1e-3)
    torch.testing.assert_close(merged([before, after], 0.4, by=guards, damping=1e-3), expected, rtol=1e-10, atol=1e-10)


def test_the_average():
    before, after = network(), moved(network())
    expected = 0.3 * vector(dict(before.named_parameters())) + 0.7 * vector(dict(after.named_parameters()))
    torch.testing.assert_close(merged([before, after], 0.7), expected, rtol=1e-15, atol=1e-15)
    assert torch.equal(vector(dict(before.named_parameters())), vector(dict(network().named_parameters())))


@pytest.mark.parametrize("by", [None, "diagonal", "rotated", "kronecker"])
def test_no_share_and_all_of_it_are_the_models_themselves(by):
    before, after = network(), moved(network())
    forms = None if by is None else [guarded(before, by), guarded(after, by)]
    assert torch.equal(merged([before, after], 0.0, by=forms), vector(dict(before.named_parameters())))
    assert torch.equal(merged([before, after], 1.0, by=forms), vector(dict(after.named_parameters())))


def test_the_old_form_alone_shrinks_the_step():
    before, after = network(), moved(network())
    guard = guarded(before, "rotated")
    share, shrunk = 0.6, {}
    size = sum(p.numel() for p in before.parameters())
    mean = sum(float(matrix.trace()) for matrix in guard.held.matrices.values()) / size
    step = {n: p.detach() - dict(before.named_parameters())[n].detach() for n, p in after.named_parameters()}
    for matrix in guard.held.matrices.values():
        own = {n: step[n] for n in matrix.block.parameters}
        shrunk |= matrix.shrink(own, (1 - share) / share / mean)
    expected = {n: p.detach() + shrunk[n] for n, p in before.named_parameters()}
    torch.testing.assert_close(
        merged([before, after], share, by=guard, damping=0.0), vector(expected), rtol=1e-12, atol=1e-12
    )


UNDAMPED = {
    "fisher": "diagonal",
    "regmean": anchorhold.Kronecker(outputs="identity", damping=0.0),
    "kronecker": anchorhold.Kronecker(damping=0.0),
    "rotated": anchorhold.Rotated(damping=0.0),
    "dense": "dense",
}


@pytest.mark.daily
@pytest.mark.parametrize("name", UNDAMPED)
@pytest.mark.parametrize("damping", [0.0, 1e-4])
def test_directions_that_no_form_weighs_are_averaged(name, damping):
    """One input is always 0 for both: nothing is known of its column, with damping and without."""
    before, after = network(), moved(network())
    data = [[batch * torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64) for batch in batches(k)] for k in (3, 4)]
    guards = [guarded(model, UNDAMPED[name], data=own) for model, own in zip((before, after), data, strict=True)]
    found = anchorhold.merge(before, after, 0.3, by=guards, damping=damping)["0.weight"]
    average = 0.7 * before[0].weight + 0.3 * after[0].weight
    torch.testing.assert_close(found[:, 2], average[:, 2].detach(), rtol=1e-7, atol=1e-7)
    assert not torch.allclose(found[:, 1], average[:, 1], atol=1e-3)
    assert found.isfinite().all()


@pytest.mark.parametrize("normalise", ["network", "layers", "none"])
def test_how_forms_are_made_comparable(normalise):
    before, after = network(), moved(network())
    fishers = [anchorhold.Fisher().measure(model, batches(k)) for model, k in ((before, 3), (after, 4))]
    found = anchorhold.merge(before, after, 0.3, by=fishers, normalise=normalise, damping=0.0)
    for name, own in before.named_parameters():
        scales = {
            "network": [1 / torch.cat([t.reshape(-1) for t in fisher.values()]).mean() for fisher in fishers],
            "layers": [1 / fisher[name].mean() for fisher in fishers],
            "none": [1.0, 1.0],
        }[normalise]
        a, b = 0.7 * scales[0] * fishers[0][name], 0.3 * scales[1] * fishers[1][name]
        expected = (a * own + b * dict(after.named_parameters())[name]) / (a + b)
        torch.testing.assert_close(found[name], expected.detach(), rtol=1e-10, atol=1e-10)


def test_a_multiple_of_a_form_is_the_same_form():
    before, after = network(), moved(network())
    guards = [guarded(before, "rotated", 3), guarded(after, "rotated", 4)]
    scaled = {name: matrix.scale(1e6) for name, matrix in guards[0].held.matrices.items()}
    one, other = (merged([before, after], 0.4, by=by) for by in (guards, [scaled, guards[1]]))
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_single_precision_is_merged_in_double():
    before, after = network(dtype=torch.float32), moved(network(dtype=torch.float32))
    guards = [guarded(before, "rotated", 3), guarded(after, "rotated", 4)]
    wide = [
        guarded(model.double(), "rotated", 3 + k)
        for k, model in enumerate((network(dtype=torch.float32), moved(network(dtype=torch.float32))))
    ]
    doubles = [network(dtype=torch.float32).double(), moved(network(dtype=torch.float32)).double()]
    expected = brute_force(doubles, wide, [0.5, 0.5], 1e-3)
    found = merged([before, after], 0.5, by=guards, damping=1e-3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)  # the forms are single


def test_many_shares_of_one_preparation():
    before, after = network(), moved(network())
    guards = [guarded(before, "rotated", 3), guarded(after, "rotated", 4)]
    between = Merging(before, after, by=guards)
    for share in (0.1, 0.5, 0.9):
        found, alone = between.at(share), anchorhold.merge(before, after, share, by=guards)
        assert all(torch.equal(found[name], alone[name]) for name in alone)


@pytest.mark.parametrize("name", ["kronecker", "rotated", "lowrank"])
def test_what_conjugate_gradients_leave(name, monkeypatch):
    monkeypatch.undo()
    before, after = network(), moved(network())
    guards = [guarded(before, FORMS[name], 3), guarded(after, FORMS[name], 4)]
    expected = brute_force([before, after], guards, [0.3, 0.7], 0.1)
    found = merged([before, after], 0.7, by=guards, damping=0.1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_what_is_not_settled_is_told(monkeypatch):
    monkeypatch.setattr(normal_equations, "MOST_STEPS", 1)
    before, after = network(), moved(network())
    guards = [guarded(before, "rotated", 3, protect="0.*"), guarded(after, "rotated", 4, protect="0.*")]
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"'0.weight', '0.bias' stopped after 1 steps at a residual"
    ) as told:
        anchorhold.merge(before, after, 0.5, by=guards)
    assert {each.filename for each in told} == {__file__}


def test_factors_that_rounding_has_made_indefinite():
    """Single precision leaves eigenvalues below 0, where conjugate gradients would stop."""
    before, after = network(dtype=torch.float32), moved(network(dtype=torch.float32))
    by = []
    for k, model in enumerate((before, after)):
        matrices = guarded(model, "kronecker", 3 + k).held.matrices
        for matrix in (m for m in matrices.values() if m.block.is_matrix):
            values, vectors = torch.linalg.eigh(matrix.g)
            values[0] = -1e-3 * values[-1]
            matrix.g.copy_((vectors * values) @ vectors.mT)
        by.append(matrices)
    found = anchorhold.merge(before, after, 0.5, by=by, damping=1e-6)  # which tells of nothing
    average = anchorhold.merge(before, after, 0.5)
    size = max(float(average[name].abs().max()) for name in average)
    assert all(float((found[name] - average[name]).abs().max()) < 3 * size for name in average)
