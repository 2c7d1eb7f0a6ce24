"""Layers measured in chunks: the same importance, and never more sums at once than were asked for."""

import weakref

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.accumulator import SampleAccumulator
from anchorhold.engine.reductions.layers import LayerReduction
from anchorhold.errors import BatchError, ConfigurationError
from anchorhold.forms import Kronecker, Rotated, RotatedMatrix
from anchorhold.guard.measurement import TaskResult


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 5)
    ).double()


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 6, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.fixture
def sums_at_once(monkeypatch):
    """Remember what the sums of each pass come to, in bytes."""
    found, result = [], SampleAccumulator.result

    def watched(collector):
        if isinstance(collector.reduction, LayerReduction):
            found.append(sum(total.nbytes for total in collector.sums.values()))
        return result(collector)

    monkeypatch.setattr(SampleAccumulator, "result", watched)
    return found


@pytest.mark.parametrize("form", ["rotated", "kronecker", Rotated(outputs="blocks", largest_block=3)], ids=str)
def test_turns_find_what_one_pass_finds_within_the_bytes_that_were_given(form, sums_at_once):
    whole, turned = (anchorhold.Guard(network(), "EWC", form=form, watch=["MAS"]) for _ in range(2))
    most = max(block.measuring for block in turned.cost().blocks)
    for task in range(2):
        whole.consolidate(data(task))
        passes = len(sums_at_once)
        sums_at_once.clear()
        found = turned.consolidate(data(task), within=most)
        assert max(sums_at_once) <= most and len(sums_at_once) == 3 * passes
        assert found["EWC"].samples == 24 and found["MAS"].importance.keys() == found["EWC"].importance.keys()
        sums_at_once.clear()
    for name, matrix in whole.held.matrices.items():
        for one, other in zip(matrix.diagonal().values(), turned.held.matrices[name].diagonal().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


def test_what_a_turn_has_found_is_put_to_rest_before_the_next():
    whole, turned = (anchorhold.Guard(network().float(), "EWC", form="rotated16") for _ in range(2))
    batches = [[x.float() for x in data(task)] for task in range(2)]
    for given in batches:
        whole.consolidate(given)
        turned.consolidate(given, within=max(block.measuring for block in turned.cost().blocks))
    for name, matrix in turned.held.matrices.items():
        assert {t.dtype for t in matrix.state().values()} == {torch.bfloat16}
        torch.testing.assert_close(matrix.trace(), whole.held.matrices[name].trace(), rtol=0.02, atol=0)


def test_each_matrix_is_dropped_once_its_diagonal_is_there(monkeypatch):
    """In 16 bits what is kept is another: both, and a diagonal of every weight, would be as much again at the end."""
    there, shown, diagonal = [], TaskResult.shown, RotatedMatrix.diagonal

    def of_the_task(finding):
        there.extend(weakref.ref(matrix.s) for matrix in finding.matrices.values() if matrix.block.is_matrix)
        return shown(finding)

    def counted(matrix):
        alive.append(sum(each() is not None for each in there))
        return diagonal(matrix)

    alive = []
    monkeypatch.setattr(TaskResult, "shown", of_the_task)
    monkeypatch.setattr(RotatedMatrix, "diagonal", counted)
    guard = anchorhold.Guard(network(), "EWC", strength=1.0, form=Rotated(bits=16))
    found = guard.consolidate(data())["EWC"]
    assert alive[-3:] == [3, 2, 1]
    assert list(found.importance) == list(found.forms) == [name for name, _ in guard.model.named_parameters()]


def test_the_gradient_of_the_loss_is_of_all_layers():
    whole, turned = (
        anchorhold.Guard(
            network(), "EWC", form="kronecker", anchor="mean", options=anchorhold.GuardOptions(gradient_term=True)
        )
        for _ in "ab"
    )
    given = [(x, torch.zeros(8, dtype=torch.long)) for x in data()]
    whole.consolidate(given)
    turned.consolidate(given, within=max(block.measuring for block in turned.cost().blocks))
    for name, r in whole.held.linear_term.items():
        torch.testing.assert_close(turned.held.linear_term[name], r, rtol=1e-10, atol=1e-14)


def test_what_cannot_be_within_is_refused_and_nothing_has_changed():
    guard = anchorhold.Guard(network(), "EWC", form="rotated")
    with pytest.raises(ConfigurationError, match=r"within=100 bytes: the sums of '3\.weight' alone take .* at least"):
        guard.consolidate(data(), within=100)
    with pytest.raises(ConfigurationError, match="within=0: expected a whole number of bytes"):
        guard.consolidate(data(), within=0)
    with pytest.raises(BatchError, match="times, and the batches given can be gone through once"):
        anchorhold.Guard(network(), "EWC", form=Kronecker()).consolidate(iter(data()), within=2000)
    with pytest.raises(ConfigurationError, match="'diagonal', which has no layers to be measured in chunks"):
        anchorhold.Guard(network(), "EWC").consolidate(data(), within=10_000)
    assert not guard.held.matrices


class Fork(nn.Module):
    """Two layers that see the same inputs, and one that does not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.second = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.first(x).tanh() * self.second(x))


def test_layers_with_coordinates_in_common_keep_them_in_one_turn():
    whole, turned = (anchorhold.Guard(Fork().double(), "EWC", form=Rotated(share_inputs=True)) for _ in range(2))
    most = {block.name: block.measuring for block in turned.cost().blocks}
    for task, within in enumerate((max(most.values()), most["first.weight"] + most["second.weight"])):
        whole.consolidate(data(task))
        turned.consolidate(data(task), within=within)
    assert turned.held.matrices["first.weight"].state()["UA"] is turned.held.matrices["second.weight"].state()["UA"]
    for name, matrix in whole.held.matrices.items():
        for key, tensor in matrix.state().items():
            torch.testing.assert_close(turned.held.matrices[name].state()[key], tensor, rtol=1e-10, atol=1e-14)
    with pytest.raises(ConfigurationError, match=f"'second.weight', which have the .* Give at least {within}"):
        turned.consolidate(data(), within=within - 1)
