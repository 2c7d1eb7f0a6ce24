"""What is noticed on a GPU, where looking at a number means waiting for it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold.guard.monitors.unseen_steps import MOVES
from anchorhold.guard.task_classes import LOOKED_AT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def started(classes=3, measure="EWC"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)).cuda()
    x, y = torch.randn(32, 4, device="cuda"), torch.arange(32, device="cuda") % classes
    guard = anchorhold.Guard(model, measure, strength=0.01)
    guard.consolidate([(x, y)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
    guard.attach(optimizer)
    return model, guard, optimizer, x, y


def train(model, optimizer, x, y, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_guard_in_a_few_lines():
    model, guard, optimizer, x, y = started()
    train(model, optimizer, x, y, 3)
    assert "3 steps of task 2 seen" in str(guard)
    assert "moved since by" in str(guard)


def test_new_classes_and_optimizers_that_pass_by_are_told():
    model, guard, optimizer, x, y = started()
    with pytest.warns(anchorhold.AnchorholdWarning, match="are all new"):
        train(model, optimizer, x, y + 3, LOOKED_AT)
    with pytest.warns(anchorhold.AnchorholdWarning, match="is not attached"):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y, 1)
    guard.detach()


def test_weights_that_move_within_backward_are_told():
    model, _, _, x, y = started()

    def update(parameter):
        parameter.data.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def by_backward(steps):
        for _ in range(steps):
            cross_entropy(model(x), y).backward()

    with pytest.warns(anchorhold.AnchorholdWarning, match="from one backward pass to the next"):
        by_backward(MOVES + 1)


def test_a_backward_pass_can_be_captured_before_the_first_step():
    model, _, optimizer, x, y = started()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            cross_entropy(model(x), y).backward()
            model.zero_grad()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cross_entropy(model(x), y).backward()
    before = model[0].weight.detach().clone()
    graph.replay()
    optimizer.step()
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("measure", ["SI", "EWC"])
@pytest.mark.parametrize("warm", [3, 15, 16])
def test_a_step_can_be_captured(measure, warm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)).cuda()
    x, y = torch.randn(32, 4, device="cuda"), torch.arange(32, device="cuda") % 3
    guard = anchorhold.Guard(model, measure, strength=0.01, from_scratch=True)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    guard.attach(optimizer)
    train(model, optimizer, x, y, 2)
    guard.consolidate([(x, y)])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train(model, optimizer, x, y, warm)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        cross_entropy(model(x), y).backward()
        optimizer.step()
    before = model[0].weight.detach().clone()
    graph.replay()
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("measure", ["SI", "EWC"])
def test_a_model_that_is_moved_in_the_middle_of_a_task(measure):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    guard = anchorhold.Guard(model, measure, strength=0.01, from_scratch=True)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    train(model, optimizer, x, y, 3)
    model.cuda()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    train(model, optimizer, x.cuda(), y.cuda(), 3)
    guard.consolidate([(x, y)])
