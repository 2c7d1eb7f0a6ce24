"""What forms may be given as, and which do not belong to the models."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import anchorhold
from tests.merging.models import batches, guarded, moved, network

KINDS = [
    "diagonal",
    "rotated",
    "kronecker",
    anchorhold.Kronecker(outputs="identity"),
    anchorhold.Rotated(sums="exact"),
    "lowrank",
    "dense",
]


def same(one, other, form=None):
    """Whether they are, up to the order in which products of matrices that lie otherwise in memory are added up.

    Of a form of low rank the equations are held by their damping alone in most directions, which takes eight digits.
    """
    close = 1e-6 if form == "lowrank" else 1e-10
    return all(torch.allclose(one[name], other[name], rtol=close, atol=close) for name in other)


@pytest.mark.daily
@pytest.mark.parametrize("form", KINDS, ids=str)
def test_guards_matrices_and_files_are_the_same(tmp_path, form):
    before, after = network(), moved(network())
    guards = [guarded(before, form, 3), guarded(after, form, 4)]
    for k, guard in enumerate(guards):
        guard.save(tmp_path / f"{k}.safetensors")
    expected = anchorhold.merge(before, after, 0.4, by=guards)
    files = [tmp_path / f"{k}.safetensors" for k in (0, 1)]
    for by in ([guard.held.matrices for guard in guards], files, (guards[0], str(files[1]))):
        assert same(anchorhold.merge(before, after, 0.4, by=by), expected, form)


class Several(nn.Module):
    """An embedding, a convolution, a layer without a bias, and one that lies inputs first, all of them square."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 4)
        self.convolution = nn.Conv1d(4, 4, 1)
        self.plain = nn.Linear(4, 4, bias=False)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))
        self.nf = 4  # how Hugging Face's Conv1D says that its weight is [inputs, outputs]

    def forward(self, x):
        hidden = self.plain(self.convolution(self.embedding(x).mT).mT)
        return (hidden @ self.weight + self.bias).mean(1)


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_layers_that_lie_otherwise_are_read_as_they_were(tmp_path, form):
    torch.manual_seed(0)
    before = Several().double()
    after = moved(before)
    data = [torch.randint(4, (30, 3), generator=torch.Generator().manual_seed(k)) for k in (0, 1)]
    guards = [guarded(model, form, data=[own]) for model, own in zip((before, after), data, strict=True)]
    assert {matrix.block.inputs_first for matrix in guards[0].held.matrices.values()} == {True, False}
    for k, guard in enumerate(guards):
        guard.save(tmp_path / f"{k}.safetensors")
    found = anchorhold.merge(before, after, 0.4, by=[tmp_path / f"{k}.safetensors" for k in (0, 1)])
    assert same(found, anchorhold.merge(before, after, 0.4, by=guards))
    again = anchorhold.Guard(before, anchorhold.Fisher(), form=form)
    again.load(tmp_path / "0.safetensors")
    assert again.tasks == 1


def test_what_a_task_brought_serves_for_the_diagonal():
    before, after = network(), moved(network())
    guards = [anchorhold.Guard(model, anchorhold.Fisher()) for model in (before, after)]
    found = [guard.consolidate(batches(k))["EWC"] for k, guard in enumerate(guards)]
    assert same(anchorhold.merge(before, after, 0.4, by=found), anchorhold.merge(before, after, 0.4, by=guards))
    rotated = anchorhold.Guard(before, anchorhold.Fisher(), form="rotated").consolidate(batches(0))["EWC"]
    with pytest.raises(anchorhold.errors.ConfigurationError, match="diagonal alone"):
        anchorhold.merge(before, after, by=[rotated, None])


def test_forms_of_the_other_model():
    before, after = network(), moved(network())
    guards = [guarded(before), guarded(after)]
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"by\[0\] was measured at other weights .* of before"
    ):
        anchorhold.merge(before, after, by=guards[::-1])
    assert same(anchorhold.merge(before, after, 0.0, by=[g.held.matrices for g in guards[::-1]]), before.state_dict())


def test_anchors_that_were_rounded_are_those_of_the_model():
    before, after = network().float(), moved(network()).float()
    guard = anchorhold.Guard(before, anchorhold.Fisher(), options=anchorhold.GuardOptions(state_dtype=torch.bfloat16))
    guard.consolidate(batches(3, torch.float32))
    anchorhold.merge(before, after, by=guard)
    anchorhold.merge(before.to(torch.bfloat16), after, by=guard, dtype=torch.float32)


def test_forms_of_another_network():
    before, after = network(), moved(network())
    fisher = anchorhold.Fisher().measure(before, batches(3))
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"by\[0\] is of a parameter 'body.0.weight', which the models"
    ):
        anchorhold.merge(before, after, by={"body.0.weight": fisher["0.weight"]})
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"'0.weight' with shape \(5, 5\)"):
        anchorhold.merge(before, after, by={"0.weight": torch.ones(5, 5)})
    other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    for form in ("rotated", "dense"):
        with pytest.raises(anchorhold.errors.ConfigurationError, match=r"'0.weight' with shape|'0.bias' with shape"):
            anchorhold.merge(before, after, by=guarded(other, form).held.matrices)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("by", "said"),
    [
        ([None], "2 models"),
        ([None] * 3, "2 models"),
        (3, "of type int"),
        ({}, "empty"),
        ("nowhere", "no such file"),
        ({"0.weight": 3}, "of type dict"),
    ],
)
def test_what_is_no_form(by, said):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=said):
        anchorhold.merge(network(), moved(network()), by=by)


def test_importances_that_weigh_nothing_sensible():
    before, after = network(), moved(network())
    fisher = anchorhold.Fisher().measure(before, batches(3))
    negative = fisher | {"0.weight": fisher["0.weight"] - 1}
    with pytest.raises(anchorhold.errors.ConfigurationError, match="negative"):
        anchorhold.merge(before, after, by=negative)
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"0\.weight"):
        anchorhold.merge(before, after, by=fisher | {"0.weight": fisher["0.weight"] * float("nan")})
    with pytest.raises(anchorhold.errors.ConfigurationError, match="0 everywhere"):
        anchorhold.merge(before, after, by={name: 0 * omega for name, omega in fisher.items()})
    for damping in (-1.0, float("nan"), "much"):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="damping="):
            anchorhold.merge(before, after, by=fisher, damping=damping)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="normalise="):
        anchorhold.merge(before, after, by=fisher, normalise="layer")


def test_guards_that_have_nothing_to_say(tmp_path):
    before, after = network(), moved(network())
    with pytest.raises(anchorhold.errors.ConfigurationError, match="holds nothing yet"):
        anchorhold.merge(before, after, by=anchorhold.Guard(before, anchorhold.Fisher()))
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    guard = anchorhold.Guard(normed, anchorhold.Fisher(), batch_norm="fold")
    guard.consolidate(batches(3))
    guard.save(tmp_path / "folded.safetensors")
    for given in (guard, tmp_path / "folded.safetensors"):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="batch_norm"):
            anchorhold.merge(normed, moved(normed), by=given)
    anchorhold.merge(before, after, 0.5, out=tmp_path / "model.safetensors")
    with pytest.raises(anchorhold.errors.StateError, match=r"not one that a Guard wrote"):
        anchorhold.merge(before, after, by=tmp_path / "model.safetensors")


def test_what_only_one_form_is_of_is_averaged_and_told():
    before, after = network(), moved(network())
    guards = [guarded(before, "rotated"), guarded(after, "rotated", 4, protect="0.*")]
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"'2.weight' and 3 others have an importance in one form"):
        found = anchorhold.merge(before, after, 0.3, by=guards)
    assert torch.equal(found["3.weight"], anchorhold.merge(before, after, 0.3)["3.weight"])
    assert not torch.equal(found["0.weight"], anchorhold.merge(before, after, 0.3)["0.weight"])


def test_what_no_form_is_of_is_averaged():
    before, after = network(), moved(network())
    found = anchorhold.merge(
        before, after, 0.3, by=[guarded(before, protect="0.*"), guarded(after, seed=4, protect="0.*")]
    )
    assert torch.equal(found["3.weight"], anchorhold.merge(before, after, 0.3)["3.weight"])


@pytest.mark.parametrize("name", ["EWC", "SI", "MAS", "sqrtFisher"])
def test_files_of_the_first_version(name):
    path = f"tests/guard/state/saved_by_0.1.0/{name}.safetensors"
    before = {key.removeprefix("anchor/"): t for key, t in load_file(path).items() if key.startswith("anchor/")}
    model = nn.ParameterDict({key.replace(".", "_"): nn.Parameter(t) for key, t in before.items()})
    after = {key: p.detach() for key, p in zip(before, moved(model).values(), strict=True)}
    found = anchorhold.merge(before, after, 0.5, by=path)
    assert any(not torch.equal(found[key], (before[key] + after[key]) / 2) for key in before)
