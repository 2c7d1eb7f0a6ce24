"""What is kept of inputs, what is left of it, and what cannot be."""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.guard.retention.following import part_of
from anchorhold.retention import Retention, kept_set
from anchorhold.retention.predictions import compared
from anchorhold.retention.report import SetRetention
from tests import helpers
from tests.guard.helpers import batch, net, weights
from tests.helpers import grouped
from tests.integrations import tiny

move = partial(helpers.move, by=0.3)


def kl_by_hand(old, new):
    p, q = old.softmax(-1), new.softmax(-1)
    return (p * (p.log() - q.log())).sum(-1)


def guarded(model, **options):
    return anchorhold.Guard(model, "L2", **grouped(**options))


@pytest.mark.parametrize("sizes", [[8], [3, 5], [1] * 8])
def test_kl_loss_and_agreement_are_those_of_the_formulas(sizes):
    model, (x, y) = net(), batch(0, 8)
    guard = guarded(model)
    guard.keep(list(zip(x.split(sizes), y.split(sizes), strict=True)), "old")
    before = model(x).detach()
    move(model)
    after = model(x).detach()
    (found,) = guard.retention().sets
    assert found.kl == pytest.approx(float(kl_by_hand(before, after).mean()), rel=1e-10)
    assert found.agreement == float((before.argmax(-1) == after.argmax(-1)).double().mean())
    assert found.loss_then == pytest.approx(float(nn.functional.cross_entropy(before, y)), rel=1e-10)
    assert found.loss_now == pytest.approx(float(nn.functional.cross_entropy(after, y)), rel=1e-10)
    assert (found.per, found.count) == ("sample", 8)
    assert found.error == pytest.approx(float(kl_by_hand(before, after).std()) / math.sqrt(8), rel=1e-10)


def test_nothing_is_lost_at_first_and_the_worst_set_counts():
    model = net()
    guard = guarded(model)
    guard.keep(batch(0)[0])
    guard.keep([batch(1)], "other")
    first = guard.retention()
    assert [each.name for each in first.sets] == ["set 1", "other"]
    assert first.kl == pytest.approx(0, abs=1e-14)
    assert first["set 1"].loss_now is None
    move(model)
    now = guard.retention()
    assert now.kl == max(each.kl for each in now.sets) == now.worst.kl
    logged = now.to_dict()
    assert logged["anchorhold/kl"] == now.kl
    assert logged["anchorhold/kl/other"] == now["other"].kl
    assert "anchorhold/loss/set 1" not in logged
    assert "other" in str(now)
    assert "–" in str(now)


def test_a_single_tensor_or_mapping_is_one_batch_and_loaders_are_batches():
    model, (x, y) = net(), batch(0, 8)
    guard = guarded(model)
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    assert [guard.keep(given).samples for given in (x, [x], loader, iter([x[:2], x[2:]]))] == [8, 8, 8, 8]
    move(model)
    values = {round(each.kl, 14) for each in guard.retention().sets}
    assert len(values) == 1


def test_only_so_many_samples_are_kept_and_large_batches_are_cut(monkeypatch):
    monkeypatch.setattr(kept_set, "AT_ONCE", 3)
    kept = guarded(net()).keep([batch(0, 8)[0], batch(1, 8)[0]], samples=10)
    assert kept.samples == 10
    assert [chunk.size for chunk in kept.chunks] == [3, 3, 2, 2]


def test_kept_inputs_are_copies():
    model, (x, _) = net(), batch(0, 8)
    guard = guarded(model)
    guard.keep([x])
    x.add_(1)
    assert guard.retention().kl == pytest.approx(0, abs=1e-14)


class Normed(nn.Module):
    """A network with all that a look must leave alone: statistics, dropout, a buffer that is written to, a mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.out = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x += 1  # to its inputs too
        return self.out(self.drop(self.norm(x)))


def test_keeping_and_looking_leave_no_trace():
    torch.manual_seed(0)
    model = Normed()
    model.drop.eval()
    model.out.bias.requires_grad_(False)
    x = batch(0, 8)[0].float()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    guard = guarded(model)
    kept = x.clone()
    with torch.inference_mode():
        guard.keep([x])
        found = guard.retention()
    assert found.kl == pytest.approx(0, abs=1e-14)
    assert torch.equal(x, kept)
    assert torch.is_grad_enabled()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, False]
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 5), nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 2)])

    def forward(self, x, head=1):
        return self.heads[head](self.body(x).tanh())


def test_each_set_is_looked_at_through_the_head_that_it_was_kept_with():
    torch.manual_seed(0)
    model = TwoHeads().double()
    guard = guarded(model)
    x = batch(0)[0]
    guard.keep([x], "first", forward=lambda model, inputs: model(inputs, 0))
    guard.keep([x], "second")
    before = [model(x, head).detach() for head in (0, 1)]
    move(model)
    after = [model(x, head).detach() for head in (0, 1)]
    found = guard.retention()
    for each, old, new in zip(found.sets, before, after, strict=True):
        assert each.kl == pytest.approx(float(kl_by_hand(old, new).mean()), rel=1e-10)


def test_of_a_language_model_tokens_count_that_have_labels():
    model = tiny.gpt2()
    texts = tiny.text(seed=1)
    texts["labels"][0, :3] = -100
    guard = guarded(model)
    kept = guard.keep([texts], "text")
    model.eval()
    before = model(**texts).logits[:, :-1].detach().double()
    move(model, by=0.05)
    after = model(**texts).logits[:, :-1].detach().double()
    counted = texts["labels"][:, 1:] != -100
    found = guard.retention()["text"]
    assert found.per == "token"
    assert found.count == int(counted.sum()) == kept.rows
    assert found.kl == pytest.approx(float(kl_by_hand(before, after)[counted].mean()), rel=1e-5)
    labels = texts["labels"][:, 1:][counted]
    assert found.loss_now == pytest.approx(float(nn.functional.cross_entropy(after[counted], labels)), rel=1e-5)
    sums = (kl_by_hand(before, after) * counted).sum(-1)  # of each text: its tokens are no samples of their own
    apart = sums - found.kl * counted.sum(-1)
    texts = int(counted.any(-1).sum())
    assert texts == 2 < len(counted)
    expected = float((apart.square().sum() * texts / (texts - 1)).sqrt() / counted.sum())
    assert found.error == pytest.approx(expected, rel=1e-5)


def test_a_single_sample_has_no_error():
    model, (x, y) = net(), batch(0, 1)
    guard = guarded(model)
    guard.keep([(x, y)], "old")
    move(model)
    assert guard.retention()["old"].error is None
    assert "±" not in str(guard.retention())


def test_text_is_looked_at_in_parts_whatever_batches_it_was_given_in():
    model = tiny.gpt2()
    texts = tiny.text(rows=110, seed=1)
    guard = guarded(model)
    whole = guard.keep([texts], "whole")
    assert [chunk.size for chunk in whole.chunks] == [36, 37, 37]  # nearly all have 4 predictions
    assert part_of(whole, 0) == [0]
    assert torch.equal(torch.cat([chunk.batch["input_ids"] for chunk in whole.chunks]), texts["input_ids"])
    model.eval()
    before = model(**texts).logits[:, :-1].detach().double()
    move(model, by=0.05)
    after = model(**texts).logits[:, :-1].detach().double()
    counted = texts["labels"][:, 1:] != -100
    assert guard.retention().kl == pytest.approx(float(kl_by_hand(before, after)[counted].mean()), rel=1e-5)


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_model_takes_as_a_whole_alone_is_not_cut(fails):
    model, x = nn.Linear(4, 3), torch.randn(64, 20, 4)

    def forward(model, inputs):
        if fails and len(inputs) < 64:
            raise ValueError("64 at a time")
        return model(inputs) * (1 if fails else len(inputs) / 10)

    assert len(guarded(model).keep([x]).chunks) == 8
    assert [chunk.size for chunk in guarded(model).keep([x], forward=forward).chunks] == [64]


def test_padding_is_left_out_of_unlabelled_text():
    model = tiny.gpt2()
    texts = {name: tensor for name, tensor in tiny.text(seed=1).items() if name == "input_ids"}
    texts["attention_mask"] = torch.ones_like(texts["input_ids"])
    texts["attention_mask"][:, -2:] = 0
    rows = texts["input_ids"].shape
    kept = guarded(model).keep(texts)
    assert kept.rows == rows[0] * (rows[1] - 2 - 1)  # nothing follows the last token


def test_many_predictions_are_kept_in_16_bits_and_only_so_many(monkeypatch):
    model, (x, _) = net(), batch(0, 40)
    full = guarded(model)
    full.keep([x])
    monkeypatch.setattr(kept_set, "FULL_NUMBERS", 60)
    half = guarded(model)
    assert half.keep([x]).dtype == torch.float16
    assert "16 bits" in repr(half.kept["set 1"])
    monkeypatch.setattr(kept_set, "MOST_NUMBERS", 60)
    few = guarded(model)
    assert few.keep([x]).rows == 20
    move(model)
    exact = full.retention().kl
    assert half.retention().kl == pytest.approx(exact, rel=1e-3)
    assert few.retention().kl == pytest.approx(float(exact), rel=0.5)


def test_a_set_goes_to_a_file_of_its_own_and_back(tmp_path):
    model = net()
    guard = guarded(model)
    guard.keep([batch(0)], "a")
    guard.keep([batch(1)[0]], "b", forward=lambda model, inputs: model(inputs))
    guard.keep([batch(2)], "c")
    guard.kept.save(tmp_path / "kept.safetensors")
    move(model)
    expected = guard.retention()
    other = guarded(model)
    other.kept.load(tmp_path / "kept.safetensors")
    with pytest.raises(anchorhold.errors.OrderError, match="kept with forward=, a function that no file carries"):
        other.retention()
    other.kept["b"].forward = lambda model, inputs: model(inputs)
    assert other.retention() == expected
    other.kept.drop("b")
    assert list(other.kept) == ["a", "c"]


def test_no_file_of_kept_inputs_is_refused(tmp_path):
    guard = guarded(net())
    path = tmp_path / "guard.safetensors"
    with pytest.raises(anchorhold.errors.StateError, match="no file of kept inputs at"):
        guard.kept.load(path)
    guard.save(path)
    with pytest.raises(anchorhold.errors.StateError, match="is no file of kept inputs"):
        guard.kept.load(path)
    with pytest.raises(anchorhold.errors.StateError, match="expected a file in a folder"):
        guard.kept.save(tmp_path / "nowhere" / "kept")
    guard.keep([batch(0)])
    guard.kept.save(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(anchorhold.errors.StateError, match="not a whole safetensors file"):
        guarded(net()).kept.load(path)


def test_a_guards_own_file_has_none_of_them(tmp_path):
    guard = guarded(net())
    guard.keep([batch(0)])
    guard.save(tmp_path / "guard")
    marks = batch(0)[0].numpy().tobytes()[:64]
    assert marks not in (tmp_path / "guard").read_bytes()
    guard.kept.save(tmp_path / "kept")
    assert marks in (tmp_path / "kept").read_bytes()


def probabilities(model, inputs):
    return model(inputs).softmax(-1)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("given", "options", "error", "match"),
    [
        ([], {}, anchorhold.errors.BatchError, "No inputs to keep"),
        (iter(()), {}, anchorhold.errors.BatchError, "used up before"),
        (3, {}, anchorhold.errors.BatchError, "expected an iterable of batches"),
        (
            [torch.full((3, 4), torch.nan).double()],
            {},
            anchorhold.errors.NotFiniteError,
            "NaN or an infinity, so nothing was",
        ),
        ([batch(0)], {"forward": probabilities}, anchorhold.errors.ConfigurationError, "probabilities, it seems"),
        ([batch(0)], {"forward": lambda m, x: m(x).argmax(-1)}, anchorhold.errors.BatchError, "expected logits"),
        (
            [batch(0)],
            {"forward": lambda m, x: m(x)[:, :1]},
            anchorhold.errors.ConfigurationError,
            "no choice between classes",
        ),
        ([batch(0)], {"forward": lambda m, x: m(x)[:1]}, anchorhold.errors.BatchError, "expected a row for each"),
        ([batch(0)], {"forward": "model"}, anchorhold.errors.ConfigurationError, "expected a function"),
        ([batch(0)], {"samples": 0}, anchorhold.errors.ConfigurationError, "at least 1"),
        ([batch(0)], {"name": "a/b"}, anchorhold.errors.ConfigurationError, "without '/'"),
        ([batch(0)], {"name": "taken"}, anchorhold.errors.ConfigurationError, "kept by the name 'taken' already"),
        ([(batch(0)[0], torch.rand(8, 3))], {}, anchorhold.errors.ConfigurationError, "no choice between classes"),
        ([{"input": batch(0)[0], "flag": "text"}], {}, anchorhold.errors.BatchError, "tensors alone"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_changes(given, options, error, match):
    model = net()
    guard = guarded(model)
    guard.keep([batch(3)], "taken")
    before = weights(model)
    with pytest.raises(error, match=match):
        guard.keep(given, **options)
    assert list(guard.kept) == ["taken"]
    assert model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_classes_that_may_lie_second_have_to_be_said():
    model = nn.Conv2d(1, 3, 1)
    x = torch.randn(4, 1, 2, 5)
    for given in ([x], [(x, torch.randint(3, (4, 2, 5)))]):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="expected them last"):
            guarded(model).keep(given)
    kept = guarded(model).keep([(x, torch.randint(3, (4, 2, 5)))], forward=lambda m, x: m(x).movedim(1, -1))
    assert kept.rows == 4 * 10


def test_a_look_with_another_model_is_refused_in_words():
    model = net()
    guard = guarded(model)
    guard.keep([batch(0)])
    with pytest.raises(anchorhold.errors.ConfigurationError, match="No set was kept by the name 'x'"):
        guard.kept["x"]
    with pytest.raises(anchorhold.errors.ConfigurationError, match="No set was kept by the name 'x'"):
        guard.kept.drop("x")
    own = model[2]
    model[2] = nn.Linear(5, 7).double()
    with pytest.raises(
        anchorhold.errors.BatchError, match="now gives 8 predictions over 7 classes, and 8 over 3 were kept"
    ):
        guard.retention()
    model[2] = own
    model[0] = nn.Linear(9, 5).double()
    with pytest.raises(anchorhold.errors.BatchError, match="cannot be called with the kept set 'set 1' any more"):
        guard.retention()


def test_inputs_that_the_model_cannot_be_called_with_are_refused_in_words():
    guard = guarded(net())
    with pytest.raises(
        anchorhold.errors.BatchError, match=r"failed on the inputs of 'wide' \(RuntimeError: mat1 .*nothing was"
    ):
        guard.keep([torch.randn(10, 99, dtype=torch.float64)], "wide")
    assert not guard.kept


def test_a_lack_of_memory_is_told_as_one():
    class Full(nn.Module):
        def forward(self, x):
            raise torch.OutOfMemoryError("no room")

    model = net()
    guard = guarded(model)
    guard.keep([batch(0)])
    model.append(Full())
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        guard.retention()
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        guard.keep([batch(0)], "more")


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_what_is_no_classifier_is_not_kept_as_one(likelihood):
    guard = anchorhold.Guard(net(), anchorhold.Fisher(likelihood=likelihood))
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=f"likelihood='{likelihood}'.*no choice between classes"
    ):
        guard.keep([batch(0)[0]])
    assert not guard.kept


def test_a_model_that_has_diverged_is_told_of():
    model = net()
    guard = guarded(model)
    guard.keep([batch(0)])
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(anchorhold.errors.NotFiniteError, match="Training has diverged"):
        guard.retention()


def test_retention_without_anything_kept_says_what_to_do():
    with pytest.raises(anchorhold.errors.OrderError, match=r"Call guard.keep\(inputs\)"):
        guarded(net()).retention()


def test_a_set_that_is_not_there_is_asked_for_as_of_any_mapping():
    guard = guarded(net())
    kept = guard.keep(batch(20)[0], "old")
    assert guard.kept.get("old") is kept
    assert guard.kept.get("new") is None and guard.kept.get("new", kept) is kept
    with pytest.raises(anchorhold.errors.ConfigurationError, match="there are 'old'"):
        guard.kept["new"]


def test_columns_stand_below_their_heads_whatever_the_error():
    usual = SetRetention("old", 0.04999, 0.983, "sample", 300, 0.123, 0.456, 0.00341)
    small = SetRetention("a longer name", 1.234e-5, 0.5, "token", 300, None, None, 1.2e-6)
    for sets in ((usual,), (small,), (usual, small)):
        assert len({len(line) for line in str(Retention(sets)).splitlines()}) == 1


def test_what_is_too_large_to_square_has_no_error():
    old = torch.zeros(4, 3, dtype=torch.float64).log_softmax(-1)
    found = compared(old, torch.eye(4, 3, dtype=torch.float64) * 1e200, None)
    assert found.mean_kl > 1e199
    assert found.error is None


def test_a_name_in_the_place_of_the_batches_is_told_of_without_printing_them():
    guard = anchorhold.Guard(net(), anchorhold.Fisher(), strength=0.5)
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"name= of type list; .*guard\.keep\(batches, 'a name'\)"
    ):
        guard.keep("old", [batch(0)])
