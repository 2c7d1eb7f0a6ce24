"""What models may be given as, and which are refused."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import anchorhold
from anchorhold.merging import Merging
from tests.merging.models import guarded, moved, network


def test_modules_state_dicts_and_files_are_the_same(tmp_path):
    before, after = network(), moved(network())
    save_file(before.state_dict(), tmp_path / "before.safetensors")
    expected = anchorhold.merge(before, after, 0.3)
    for one in (before, before.state_dict(), tmp_path / "before.safetensors", str(tmp_path / "before.safetensors")):
        found = anchorhold.merge(one, after.state_dict(), share=0.3)
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    after.load_state_dict(expected)


def test_the_half_is_what_is_taken_unless_told():
    before, after = network(), moved(network())
    found = anchorhold.merge(before, after)
    assert torch.equal(found["0.bias"], ((before[0].bias + after[0].bias) / 2).detach())


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), float("inf"), True, "half", None, [0.2, 0.3], []])
def test_a_share_that_is_none(share):
    before, after = network(), moved(network())
    kept = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    with pytest.raises(anchorhold.errors.ConfigurationError, match="share="):
        anchorhold.merge(before, after, share)
    assert all(torch.equal(before.state_dict()[name], tensor) for name, tensor in kept.items())


def test_shares_of_several():
    models = [network(), moved(network()), moved(network(), seed=8)]
    found = anchorhold.merge(models[0], models[1:], [0.2, 0.3])
    expected = 0.5 * models[0][0].weight + 0.2 * models[1][0].weight + 0.3 * models[2][0].weight
    torch.testing.assert_close(found["0.weight"], expected.detach(), rtol=1e-15, atol=1e-15)
    # Three tenths, three times, and a tenth: what is left of 1 is rounding and not a share.
    four = anchorhold.merge(models[0], [*models[1:], models[1]], [0.3, 0.3, 0.4])
    expected = 0.7 * models[1][0].weight + 0.3 * models[2][0].weight
    torch.testing.assert_close(four["0.weight"], expected.detach(), rtol=1e-15, atol=1e-15)
    for share, said in ((0.5, "one for each"), ([0.6, 0.6], "1 at most"), ([0.5], "2 models"), ([0.5, -0.1], "from 0")):
        with pytest.raises(anchorhold.errors.ConfigurationError, match=said):
            anchorhold.merge(models[0], models[1:], share)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="empty"):
        anchorhold.merge(models[0], [], [])


def test_other_names_and_shapes():
    before, after = network(), moved(network())
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"before has no '4.weight' and 1 more, which after has"
    ):
        anchorhold.merge(before, nn.Sequential(*after, nn.Linear(3, 3)))
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"after has no '3.weight'"):
        anchorhold.merge(before, after[:3])
    other = nn.Sequential(*after[:3], nn.Linear(5, 2).double())
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"'3.weight' has the shapes \(3, 5\) in before, \(2, 5\) in after"
    ):
        anchorhold.merge(before, other)


@pytest.mark.daily
@pytest.mark.parametrize("given", [None, 3, [], {}, {"epoch": 3}])
def test_what_is_no_model(given):
    with pytest.raises(anchorhold.errors.ConfigurationError, match="before"):
        anchorhold.merge(given, network())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(bad):
    before, after = network(), moved(network())
    with torch.no_grad():
        after[3].weight[1, 2] = bad
    for forms in (None, [guarded(before, "rotated"), guarded(moved(network()), "rotated").held.matrices]):
        with pytest.raises(anchorhold.errors.NotFiniteError, match=r"'3.weight' of after is not finite"):
            anchorhold.merge(before, after, by=forms)
    assert torch.equal(anchorhold.merge(before, after, 0.0)["3.weight"], before[3].weight)  # it has no share


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_type_is_kept_and_the_sum_is_not_rounded_twice(dtype):
    before, after = network().to(dtype), moved(network()).to(dtype)
    found = anchorhold.merge(before, after, 0.3)
    for name, own in before.state_dict().items():
        exact = 0.7 * own.double() + 0.3 * after.state_dict()[name].double()
        assert found[name].dtype == dtype
        assert torch.equal(found[name], exact.to(dtype))


def test_different_types_are_told_and_the_more_precise_one_taken():
    before, after = network().to(torch.bfloat16), moved(network()).float()
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"bfloat16 and torch.float32; the result is torch.float32"):
        found = anchorhold.merge(before, after)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    found = anchorhold.merge(before, after, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    with pytest.raises(anchorhold.errors.ConfigurationError, match="dtype="):
        anchorhold.merge(before, after, dtype=torch.int8)


@pytest.mark.parametrize("merge", [anchorhold.merge, lambda *models: Merging(*models).at(0.5)])
def test_warnings_name_the_line_that_merges(merge):
    torch.manual_seed(0)
    before, after = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2))
    with pytest.warns(anchorhold.AnchorholdWarning) as told:
        merge(before.to(torch.bfloat16), after)
    said = [str(each.message) for each in told]
    assert len(said) == 2 and "torch.bfloat16 and torch.float32" in said[0] and "update_bn" in said[1]
    assert {each.filename for each in told} == {__file__}
    tied, loose = Tied(), Tied()
    loose.head.weight = nn.Parameter(loose.head.weight.detach() + 1)
    with pytest.warns(anchorhold.AnchorholdWarning, match="one tensor in one of the models") as told:
        merge(tied, loose)
    assert {each.filename for each in told} == {__file__}


def test_whole_numbers_are_those_of_after():
    before = {"w": torch.zeros(2), "steps": torch.tensor([3, 4]), "same": torch.tensor([1, 2])}
    after = {"w": torch.ones(2), "steps": torch.tensor([5, 6]), "same": torch.tensor([1, 2])}
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"'steps' holds whole numbers .* those of after are taken"):
        found = anchorhold.merge(before, after)
    assert found["steps"].tolist() == [5, 6] and found["same"].tolist() == [1, 2]
    assert anchorhold.merge(before, after, 0.0)["steps"].tolist() == [3, 4]
    found["steps"][0] = 0
    assert after["steps"].tolist() == [5, 6]
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"'w' is of type torch.float32 and torch.int8"):
        anchorhold.merge(before, after | {"w": torch.ones(2, dtype=torch.int8)})
    with pytest.raises(anchorhold.errors.ConfigurationError, match="Quantised"):
        anchorhold.merge(*[{"w": torch.ones(2).to(torch.float8_e4m3fn)}] * 2)


def test_running_statistics_are_averaged_with_a_warning():
    torch.manual_seed(0)
    before, after = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2))
    before(torch.randn(8, 3)), after(torch.randn(8, 3)), after(torch.randn(8, 3))
    with pytest.warns(anchorhold.AnchorholdWarning, match="update_bn"):
        found = anchorhold.merge(before, after, 0.25)
    torch.testing.assert_close(found["1.running_var"], 0.75 * before[1].running_var + 0.25 * after[1].running_var)
    assert int(found["1.num_batches_tracked"]) == 2
    assert int(anchorhold.merge(before, after, 0.0)["1.num_batches_tracked"]) == 1
    before.load_state_dict(found)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))


def test_tied_weights_stay_tied(tmp_path):
    torch.manual_seed(0)
    before, after = Tied(), Tied()
    found = anchorhold.merge(before, after, 0.3)
    assert found["head.weight"] is found["embedding.weight"]
    # A file holds them once, and a copy unties them.
    save_file({"embedding.weight": before.embedding.weight.detach()}, tmp_path / "before.safetensors")
    copied = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    for one in (tmp_path / "before.safetensors", copied):
        again = anchorhold.merge(one, after, 0.3)
        assert torch.equal(again["head.weight"], found["head.weight"])
        assert again["head.weight"] is again["embedding.weight"]
    alone = anchorhold.merge(after, tmp_path / "before.safetensors", 0.3)
    assert list(alone) == ["embedding.weight"]  # as the last one has it
    path = anchorhold.merge(before, after, 0.3, out=tmp_path / "out.safetensors")
    both = anchorhold.merge(path, after, 0.0)
    assert torch.equal(both["head.weight"], both["embedding.weight"])


def test_tied_weights_are_weighed_once():
    torch.manual_seed(0)
    before, after = Tied(), Tied()
    tokens = [torch.randint(6, (20, 3))]
    guards = [guarded(model, data=tokens) for model in (before, after)]
    assert list(guards[0].importance) == ["embedding.weight"]
    found = anchorhold.merge(before, after, 0.3, by=guards)
    average = 0.7 * before.head.weight + 0.3 * after.head.weight
    assert found["head.weight"] is found["embedding.weight"]
    assert not torch.allclose(found["head.weight"], average, atol=1e-3)
    renamed = [{"head.weight": guard.importance["embedding.weight"]} for guard in guards]
    assert torch.equal(anchorhold.merge(before, after, 0.3, by=renamed)["head.weight"], found["head.weight"])


def test_what_is_tied_in_one_model_alone_is_told():
    torch.manual_seed(0)
    before, after = Tied(), Tied()
    after.head.weight = nn.Parameter(after.head.weight.detach() + 1)
    with pytest.warns(anchorhold.AnchorholdWarning, match="one tensor in one of the models and two in another"):
        found = anchorhold.merge(before, after, 0.5)
    assert not torch.equal(found["head.weight"], found["embedding.weight"])


def test_wrappers_do_not_change_the_names():
    before, after = network(), moved(network())
    wrapped = nn.DataParallel(after)
    found = anchorhold.merge(before, wrapped, 0.3)
    expected = anchorhold.merge(before, after, 0.3)
    assert {name.removeprefix("module."): t for name, t in found.items()}.keys() == expected.keys()
    assert all(torch.equal(found[f"module.{name}"], expected[name]) for name in expected)
    by = guarded(after, "rotated")  # whose names are those of the bare model
    assert torch.equal(
        anchorhold.merge(before, wrapped, 0.3, by=[None, by])["module.0.weight"],
        anchorhold.merge(before, after, 0.3, by=[None, by])["0.weight"],
    )
    wrapped.load_state_dict(found)


def test_empty_and_single_numbers():
    before, after = ({"none": torch.zeros(0, 3), "one": torch.tensor(float(k))} for k in (0, 1))
    found = anchorhold.merge(before, after, 0.25)
    assert found["none"].shape == (0, 3) and float(found["one"]) == 0.25


def test_complex_weights():
    before, after = ({"w": torch.tensor([1 + 2j]) * k} for k in (1, 3))
    assert anchorhold.merge(before, after, 0.5)["w"].tolist() == [2 + 4j]


def test_what_is_no_tensor_is_that_of_after():
    assert (
        anchorhold.merge({"w": torch.zeros(1), "_extra_state": 1}, {"w": torch.ones(1), "_extra_state": 2})[
            "_extra_state"
        ]
        == 2
    )


def test_a_tensor_without_numbers():
    with pytest.raises(anchorhold.errors.ModelError, match="meta device"):
        anchorhold.merge(network(), network().to("meta"))
    with pytest.raises(anchorhold.errors.ModelError, match="layout"):
        anchorhold.merge({"w": torch.eye(2)}, {"w": torch.eye(2).to_sparse()})


def test_a_state_dict_that_was_not_copied_is_refused():
    model = nn.Linear(3, 2)
    before = model.state_dict()
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"same tensors.*copy\.deepcopy"):
        anchorhold.merge(before, model, 0.5)
    frozen = {name: tensor.clone() if name == "bias" else tensor for name, tensor in before.items()}
    assert anchorhold.merge(frozen, model, 0.5).keys() == before.keys()
