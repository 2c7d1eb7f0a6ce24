"""Frozen running statistics stay as they are to the last bit, whatever the loop does with modes, copies and files."""

import copy
import io

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.batch_norm.networks import Images, dense, statistics
from tests.guard.helpers import batch, consolidated, loss, train


def frozen(model, **options):
    guard = consolidated(model, batch_norm="freeze", **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    return guard, optimizer


def assert_unmoved(model, before):
    assert before
    for name, value in statistics(model).items():
        assert torch.equal(value, before[name]), name


def assert_moved(model, before):
    assert all(not torch.equal(value, before[name]) for name, value in statistics(model).items())


@pytest.mark.parametrize("make", [dense, Images, lambda: nn.SyncBatchNorm.convert_sync_batchnorm(dense())])
def test_statistics_are_those_of_the_first_consolidation(make):
    model = make()
    model.train()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="freeze", from_scratch=True)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.05))
    untrained = statistics(model)
    if not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):  # which trains on GPUs alone
        train(model, optimizer)
        assert_moved(model, untrained)
    guard.consolidate([batch(9)])
    before = statistics(model)
    for task in range(2):
        for mode in (True, False, True):
            model.train(mode)
            train(model, optimizer, seed=10 * task)
        assert_unmoved(model, before)
        guard.consolidate([batch(9)])


def test_the_rest_of_the_model_trains_and_the_layer_normalises_with_its_statistics():
    model = dense()
    guard, optimizer = frozen(model)
    twin = copy.deepcopy(model).eval()
    model.train()
    assert model.training and model[0].training and not model[1].training
    assert torch.equal(model(batch(0)[0]), twin(batch(0)[0]))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer)
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert guard.options.batch_norm == "freeze"


@pytest.mark.parametrize("implicit", [False, None])
def test_scale_and_shift_are_held_as_any_other_parameter(implicit):
    model = dense()
    guard, optimizer = frozen(model, strength=3.0, implicit=implicit)
    optimizer.zero_grad()
    loss(model, batch(0)).backward()
    expected = {}
    for name, p in model.named_parameters():
        omega, anchor = guard.importance[name], guard.anchor[name]
        if guard.options.implicit:
            expected[name] = anchor + (p.detach() - 0.05 * p.grad - anchor) / (1 + 0.05 * 6 * omega)
        else:
            expected[name] = p.detach() - 0.05 * (p.grad + 6 * omega * (p.detach() - anchor))
    optimizer.step()
    assert float(guard.importance["1.weight"].min()) > 0
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-12)


def test_detaching_undoes_it_and_attaching_again_does_not():
    model = dense().train()
    guard, optimizer = frozen(model)
    before = statistics(model)
    guard.detach()
    assert model[1].training
    model.eval()
    assert not model[1].training
    model.train()
    guard.attach(optimizer)
    train(model, optimizer)
    assert_unmoved(model, before)
    guard.detach()
    model(batch(0)[0])
    assert_moved(model, before)


def test_the_mode_that_was_asked_for_comes_back():
    model = dense().train()
    guard, _ = frozen(model)
    model.eval()
    guard.detach()
    assert not model[1].training


def test_two_guards_keep_it_until_both_are_detached():
    model = dense().train()
    first, second = consolidated(model, batch_norm="freeze"), consolidated(model, batch_norm="freeze")
    first.detach()
    assert not model[1].training
    second.detach()
    assert model[1].training


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_are_frozen_too_and_a_copied_guard_can_unfreeze_them(way):
    model = dense().train()
    guard, optimizer = frozen(model)
    guard.detach()
    guard.consolidate([batch(9)])
    if way == "deepcopy":
        model, guard = copy.deepcopy((model, guard))
    else:
        torch.save((model, guard), file := io.BytesIO())
        file.seek(0)
        model, guard = torch.load(file, weights_only=False)
    before = statistics(model)
    model.train()
    model(batch(0)[0])
    assert_unmoved(model, before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    train(model, optimizer)
    assert_unmoved(model, before)
    guard.detach()
    assert model[1].training


def test_a_state_that_is_loaded_freezes_and_one_from_before_thaws():
    model = dense().train()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="freeze")
    early = guard.state_dict()
    guard.consolidate([batch(9)])
    late = guard.state_dict()
    assert late["batch_norm"] == "freeze" and late["frozen_norms"] == ["1"]
    guard.load_state_dict(early)
    assert model[1].training
    twin = dense().train()
    again = anchorhold.Guard(twin, anchorhold.Fisher(), batch_norm="freeze")
    again.load_state_dict(late)
    assert not twin[1].training and not twin.train()[1].training


def test_a_state_says_nothing_of_it_where_nothing_is_done():
    model = dense()
    guard = consolidated(model)
    assert {"batch_norm", "frozen_norms", "folded_norms"}.isdisjoint(guard.state_dict())
    other = anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="freeze")
    with pytest.raises(anchorhold.errors.StateError, match="batch_norm=None; this Guard has batch_norm=freeze"):
        other.load_state_dict(guard.state_dict())


def test_a_state_of_another_network_is_refused():
    guard = consolidated(dense(), batch_norm="freeze", protect=["0.*", "3.*", "1.*"])
    state = guard.state_dict()
    bare = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
    with pytest.raises(anchorhold.errors.StateError, match="batch norm '1' with running statistics"):
        anchorhold.Guard(bare, anchorhold.Fisher(), batch_norm="freeze").load_state_dict(state)


def test_files_keep_it(tmp_path):
    model = dense().train()
    consolidated(model, batch_norm="freeze").save(tmp_path / "guard.safetensors")
    twin = dense().train()
    anchorhold.Guard(twin, anchorhold.Fisher(), batch_norm="freeze").load(tmp_path / "guard.safetensors")
    assert not twin[1].training


def test_what_is_left_out_of_protection_is_left_alone():
    class TwoParts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = dense(), dense(affine=False, seed=1)

        def forward(self, x):
            return self.body(x) + self.head(x)

    model = TwoParts().train()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), protect="body.*", batch_norm="freeze")
    guard.consolidate([batch(9)])
    assert not model.body[1].training and model.head[1].training
    everything = TwoParts().train()
    anchorhold.Guard(everything, anchorhold.Fisher(), batch_norm="freeze").consolidate([batch(9)])
    assert not everything.body[1].training and not everything.head[1].training


def test_a_layer_that_has_seen_no_data_yet_is_left_to_learn():
    model = dense().train()
    model[1].reset_running_stats()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="freeze")
    guard.consolidate([batch(9)])
    assert model[1].training
    model(batch(0)[0])
    guard.consolidate([batch(8)])
    assert not model[1].training


def test_without_running_statistics_there_is_nothing_to_freeze():
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double().train()
    guard = consolidated(model, batch_norm="freeze")
    assert all(module.training for module in model.modules())
    assert "frozen_norms" not in guard.state_dict()


def test_a_compiled_model_stops_following_the_data_too():
    model = dense().train()
    compiled = torch.compile(model, backend="eager")
    compiled(batch(0)[0])
    guard = consolidated(compiled, batch_norm="freeze")
    before = statistics(model)
    compiled.train()
    compiled(batch(1)[0])
    assert_unmoved(model, before)
    guard.detach()
    compiled(batch(1)[0])
    assert_moved(model, before)


def test_a_failed_consolidation_freezes_nothing():
    model = dense().train()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="freeze")
    with pytest.raises(anchorhold.errors.BatchError):
        guard.consolidate([])
    assert model[1].training


def test_other_words_are_refused():
    with pytest.raises(anchorhold.errors.ConfigurationError, match="batch_norm='frozen': expected 'freeze'"):
        anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="frozen")


def test_a_guard_prints_it():
    assert "running statistics frozen in the batch norm '1'" in repr(consolidated(dense(), batch_norm="freeze"))
