"""Loss change allocation, against its definition: the integral of the full gradient along every step, in float64."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import (
    AnchorholdWarning,
    ConfigurationError,
    ModelError,
    NotFiniteError,
    OptimizerError,
    OrderError,
)
from anchorhold_lab.analysis import LossChangeAllocation

SAMPLES = 60


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def problem():
    x = torch.randn(SAMPLES, 5, dtype=torch.float64)
    return x, (x[:, :3] + 0.3 * torch.randn(SAMPLES, 3)).argmax(1)


def network(activation=nn.Tanh):
    return nn.Sequential(nn.Linear(5, 8), activation(), nn.Linear(8, 3)).double()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def set_weights(model, values):
    nn.utils.vector_to_parameters(values, model.parameters())


def flat(allocation, model):
    return torch.cat([allocation.by_weight[name].flatten() for name, _ in model.named_parameters()])


class Training:
    """A few steps of Adam on random batches; the weights before each step and after the last are kept."""

    def __init__(self, model, rate=0.02, batch=10):
        self.model, self.batch = model, batch
        self.x, self.y = problem()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        self.path = [weights(model)]

    def full_loss(self):
        for x, y in zip(self.x.split(25), self.y.split(25), strict=True):
            yield F.cross_entropy(self.model(x), y, reduction="sum") / SAMPLES

    def loss_at(self, values):
        other = copy.deepcopy(self.model).eval()
        set_weights(other, values)
        return F.cross_entropy(other(self.x), self.y), list(other.parameters())

    def gradient_at(self, values):
        loss, parameters = self.loss_at(values)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def decrease(self):
        return (self.loss_at(self.path[0])[0] - self.loss_at(self.path[-1])[0]).item()

    def steps(self, count):
        for _ in range(count):
            chosen = torch.randint(SAMPLES, (self.batch,))
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x[chosen]), self.y[chosen]).backward()
            self.optimizer.step()
            self.path.append(weights(self.model))

    def allocated(self, points, shares):
        """By the definition, with any rule of integration: one row for each step."""
        rows = []
        for before, after in itertools.pairwise(self.path):
            move = after - before
            mean = sum(share * self.gradient_at(before + s * move) for s, share in zip(points, shares, strict=True))
            rows.append(-move * mean)
        return torch.stack(rows)


def test_against_the_definition():
    """Integrated by Gauss's rule with twelve points, whose error is rounding here."""
    training = Training(network())
    allocation = LossChangeAllocation(training.model, training.full_loss, tolerance=1e-12)
    with allocation.along(training.optimizer):
        training.steps(6)
    points, shares = np.polynomial.legendre.leggauss(12)
    rows = training.allocated((points + 1) / 2, shares / 2)
    torch.testing.assert_close(flat(allocation, training.model), rows.sum(0), rtol=0, atol=1e-10)
    assert allocation.decrease == pytest.approx(training.decrease(), abs=1e-12)
    assert allocation.error == pytest.approx(0, abs=1e-11)
    assert allocation.helps == pytest.approx(float((rows > 0).double().mean()))
    assert allocation.hurts == pytest.approx(float((rows < 0).double().mean()))
    assert allocation.zeros == 0
    assert (allocation.steps, allocation.unsettled) == (6, 0)
    assert allocation.elsewhere == pytest.approx(0, abs=1e-12)


def test_simpson_is_exact_where_the_loss_is_a_polynomial_of_the_fourth_degree():
    """On squares of what is linear in the weights, and on the fourth powers of it, no split is needed."""
    for power in (2, 4):
        model = nn.Linear(5, 3).double()
        x = torch.randn(40, 5, dtype=torch.float64)
        y = torch.randn(40, 3, dtype=torch.float64)

        def loss(model=model, x=x, y=y, power=power):
            return ((model(x) - y) ** power).mean()

        allocation = LossChangeAllocation(model, loss, tolerance=1e-12)
        before, start = weights(model), loss().item()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        expected = torch.zeros_like(before)
        with allocation.along(optimizer):
            for _ in range(5):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
                move, at = weights(model) - before, before
                # Gauss's rule with three points: exact too, and another one.
                mean = torch.zeros_like(at)
                for s, share in ((0.5, 8 / 18), (0.5 - math.sqrt(0.15), 5 / 18), (0.5 + math.sqrt(0.15), 5 / 18)):
                    other = copy.deepcopy(model)
                    set_weights(other, at + s * move)
                    gradient = torch.autograd.grad(((other(x) - y) ** power).mean(), list(other.parameters()))
                    mean += share * torch.cat([g.flatten() for g in gradient])
                expected -= move * mean
                before = weights(model)
        torch.testing.assert_close(flat(allocation, model), expected, rtol=0, atol=1e-10)
        assert allocation.total == pytest.approx(start - loss().item(), abs=1e-10)
        assert allocation.splits == 0


@pytest.mark.parametrize(
    ("activation", "splits", "factor"), [(nn.Tanh, (0, 1, 3, 7, 15), 5), (nn.ReLU, (0, 15, 100), 20)]
)
def test_the_sum_tends_to_the_decrease_as_intervals_are_split(activation, splits, factor):
    """Large steps of one training, with more and more splits allowed: the kinks of a ReLU take more of them."""
    errors = []
    for most in splits:
        torch.manual_seed(1)
        training = Training(network(activation), rate=0.3)
        allocation = LossChangeAllocation(training.model, training.full_loss, tolerance=1e-12, most_splits=most)
        told = pytest.warns(AnchorholdWarning, match=f"after {most} splits; expected at most tolerance=1e-12")
        with told, allocation.along(training.optimizer):
            training.steps(3)
        assert len(told.list) == 1 and allocation.unsettled == 3
        assert allocation.splits == 3 * most and allocation.split_steps == 3 * (most > 0)
        errors.append(abs(allocation.error))
    assert errors[0] > 1e-4
    assert all(later < earlier / factor for earlier, later in itertools.pairwise(errors))


def test_it_splits_until_every_step_is_within_the_tolerance():
    for tolerance in (1e-2, 1e-3, 1e-4):
        torch.manual_seed(1)
        training = Training(network(nn.ReLU), rate=0.1)
        allocation = LossChangeAllocation(training.model, training.full_loss, tolerance=tolerance)
        with allocation.along(training.optimizer):
            training.steps(4)
        assert abs(allocation.error) <= 4 * tolerance
        assert allocation.unsettled == 0
    assert allocation.splits > 0 and allocation.most_splits <= allocation.splits
    many = 500  # midpoints, since no rule of a high order knows of the kinks
    rows = training.allocated([(k + 0.5) / many for k in range(many)], [1 / many] * many)
    torch.testing.assert_close(flat(allocation, training.model), rows.sum(0), rtol=0, atol=4e-4)


def test_si_siu_and_sib_beside_it():
    """From one path: with all samples as every batch SI has no bias, so that SIB is 0; what is left is the left end."""
    training = Training(network(), rate=0.05, batch=SAMPLES)
    guard = anchorhold.Guard(training.model, "SI", watch=("SIU", "SIB"), from_scratch=True)
    guard.attach(training.optimizer)
    allocation = LossChangeAllocation(training.model, training.full_loss, tolerance=1e-10)
    with allocation.along(training.optimizer):
        for _ in range(10):
            training.optimizer.zero_grad()
            F.cross_entropy(training.model(training.x), training.y).backward()
            guard.gradients.independent(F.cross_entropy(training.model(training.x), training.y))
            training.optimizer.step()
            training.path.append(weights(training.model))
    moves = [(before, after - before) for before, after in itertools.pairwise(training.path)]
    left = sum(-training.gradient_at(before) * move for before, move in moves)
    right = sum(-training.gradient_at(before + move) * move for before, move in moves)
    found = guard.consolidate([(training.x, training.y)])
    for name, expected in (("SI", left), ("SIU", left), ("SIB", torch.zeros_like(left))):
        raw = torch.cat([found[name].raw[key].flatten() for key, _ in training.model.named_parameters()])
        torch.testing.assert_close(raw, expected, rtol=0, atol=1e-10)
    noiseless = torch.cat([allocation.left_end[key].flatten() for key, _ in training.model.named_parameters()])
    torch.testing.assert_close(noiseless, left, rtol=0, atol=1e-10)
    decrease = training.decrease()
    assert allocation.total == pytest.approx(decrease, abs=1e-9)
    assert abs(float(left.sum()) - decrease) > 0.05 * decrease
    # The trapezoid takes most of what is wrong away, weight by weight.
    trapezoid = (left + right) / 2
    lca = flat(allocation, training.model)
    assert float((trapezoid - lca).norm()) < 0.1 * float((left - lca).norm())


def test_training_is_the_same_with_and_without_it():
    """With dropout and batch norm: weights, statistics, gradients, modes and random numbers are untouched."""
    found = []
    for looked_at in (True, False):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)).double()
        training = Training(model)
        memory = [p.data_ptr() for p in model.parameters()]
        allocation = LossChangeAllocation(model, training.full_loss)
        if looked_at:
            with allocation.along(training.optimizer):
                training.steps(4)
        training.steps(4 if not looked_at else 0)
        training.steps(2)
        assert model.training
        assert [p.data_ptr() for p in model.parameters()] == memory
        found.append((model.state_dict(), [p.grad for p in model.parameters()], torch.rand(3)))
        if looked_at:
            assert allocation.steps == 4
            # What moving statistics did to the loss is told apart from what weights did.
            assert abs(allocation.elsewhere) > 1e-6
            whole = allocation.loss_before - allocation.loss_after
            assert allocation.decrease + allocation.elsewhere == pytest.approx(whole, abs=1e-12)
            assert abs(allocation.error) < 4e-4
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_steps_without_an_optimizer():
    training = Training(network())
    allocation = LossChangeAllocation(training.model, training.full_loss)
    allocation.begin()
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    allocation.end()
    training.path.append(weights(training.model))
    assert allocation.total == pytest.approx(training.decrease(), abs=1e-4)
    with pytest.raises(OrderError, match="without begin"):
        allocation.end()


def test_what_stands_still_or_is_frozen():
    """A frozen parameter has no part; a weight whose unit is dead, or that does not move, is counted as neither."""
    model = network(nn.ReLU)
    with torch.no_grad():
        model[0].bias[0] = -100.0
    model[2].bias.requires_grad_(False)
    training = Training(model)
    allocation = LossChangeAllocation(model, training.full_loss)
    with allocation.along(training.optimizer):
        training.steps(3)
    assert "2.bias" not in allocation.by_weight
    assert allocation.counts["0.bias"]["zeros"] == 3
    assert allocation.counts["0.weight"]["zeros"] == 15
    assert allocation.counts["2.weight"]["zeros"] == 9
    assert sum(allocation.counts["0.weight"].values()) == 3 * 40
    assert allocation.helps + allocation.hurts + allocation.zeros == pytest.approx(1)
    model[2].bias.requires_grad_(True)
    with allocation.along(training.optimizer):
        training.steps(1)
    assert sum(allocation.counts["2.bias"].values()) == 3


def test_it_goes_on_from_a_state():
    found = []
    for stop in (False, True):
        torch.manual_seed(4)
        training = Training(network())
        allocation = LossChangeAllocation(training.model, training.full_loss)
        with allocation.along(training.optimizer):
            training.steps(2)
        state = allocation.state_dict()
        if stop:
            allocation = LossChangeAllocation(training.model, training.full_loss)
            allocation.load_state_dict(state)
        with allocation.along(training.optimizer):
            training.steps(2)
        found.append(allocation.state_dict())
        assert state["steps"] == 2  # and is nobody else's
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert "4 steps lowered the loss by" in str(allocation)
    other = LossChangeAllocation(nn.Linear(2, 2), lambda: ())
    with pytest.raises(ConfigurationError, match="lacks by_weight"):
        other.load_state_dict({name: 0 for name in state if name != "by_weight"})
    with pytest.raises(ConfigurationError, match="which the model has not"):
        other.load_state_dict(state)
    assert other.steps == 0 and not other.by_weight


class Twice(torch.optim.SGD):
    """Calls its base's step within its own, so that hooks run for both."""

    def step(self, closure=None):
        return super().step(closure)


def test_one_step_is_counted_once():
    training = Training(network())
    training.optimizer = Twice(training.model.parameters(), lr=0.1)
    allocation = LossChangeAllocation(training.model, training.full_loss)
    with allocation.along(training.optimizer):
        training.steps(3)
    training.steps(1)  # which it does not see any more
    assert allocation.steps == 3


def test_what_is_refused():
    model = network()
    training = Training(model)
    with pytest.raises(ConfigurationError, match="tolerance=0: expected a number above 0"):
        LossChangeAllocation(model, training.full_loss, tolerance=0)
    with pytest.raises(ConfigurationError, match="most_splits=-1"):
        LossChangeAllocation(model, training.full_loss, most_splits=-1)
    with pytest.raises(ConfigurationError, match="loss is a Tensor; expected a function"):
        LossChangeAllocation(model, next(training.full_loss()))
    allocation = LossChangeAllocation(model, training.full_loss)
    other = torch.optim.SGD(network().parameters(), lr=0.1)
    for given, message in ((other, "trains none of the model's"), ("Adam", "was given a str")):
        with pytest.raises(OptimizerError, match=message), allocation.along(given):
            pass
    with pytest.raises(OptimizerError, match="no optimizer"), allocation.along():
        pass
    with pytest.warns(AnchorholdWarning, match="No step was seen"), allocation.along(training.optimizer):
        pass
    spent = iter([])
    elsewhere = network()
    for loss, message in (
        (lambda: model(training.x), r"a tensor of shape \(60, 3\)"),
        (lambda: model(training.x).mean().detach(), "cannot be differentiated"),
        (lambda: 0.5, "gave 0.5, which cannot be differentiated"),
        (lambda: [0.5], "gave 0.5"),
        (lambda: spent, "gave no parts"),
        (lambda: elsewhere(training.x).mean(), "does not depend on the model's weights"),
    ):
        with pytest.raises(ModelError, match=message):
            LossChangeAllocation(model, loss).begin()
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="No weight of the model needs a gradient"):
        allocation.begin()
    with pytest.raises(ModelError, match="complex64; expected whole, real weights"):
        LossChangeAllocation(nn.Linear(2, 2, dtype=torch.complex64), training.full_loss).begin()


def test_a_loss_that_is_no_number_leaves_what_was_found():
    training = Training(network())
    allocation = LossChangeAllocation(training.model, training.full_loss)
    with allocation.along(training.optimizer):
        training.steps(2)
        kept = allocation.state_dict()
        allocation.begin()
        with torch.no_grad():
            training.model[0].weight[0, 0] = math.nan
        with pytest.raises(NotFiniteError, match="is nan"):
            allocation.end()
    torch.testing.assert_close(allocation.state_dict(), kept, rtol=0, atol=0)
