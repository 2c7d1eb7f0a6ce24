"""Scores of outputs with positions, ignored labels, drawn labels and scores of one's own."""

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import CustomScore, LogLikelihood, OutputNorm
from anchorhold.errors import BatchError, ConfigurationError
from tests import oracles
from tests.engine.agreement import FOR_POSITIONS, MEASURES, Measure, assert_agrees


class PerPosition(nn.Module):
    """Outputs of ``[N, *positions, C]`` that mix a sample's positions."""

    def __init__(self, positions: tuple[int, ...] = (2,), classes: int = 3) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, classes)
        self.positions = positions

    def forward(self, x):
        x = self.mix(x).tanh()
        return self.head(x.flatten(1, -2).cumsum(1).view_as(x))


def test_exact_joint_fisher_is_the_mean_over_all_joint_labels():
    measure = Measure(LogLikelihood(), SQUARE, oracles.every_joint_label)
    assert_agrees(PerPosition().double(), torch.randn(3, 3, 4).double(), None, measure)


def test_exact_joint_fisher_of_positions_that_count():
    targets = torch.tensor([[0, -100, 1], [-100, 2, -100], [1, 1, 1]])
    measure = Measure(LogLikelihood(), SQUARE, oracles.every_joint_label)
    assert_agrees(PerPosition().double(), torch.randn(3, 3, 4).double(), targets, measure)


@pytest.mark.parametrize("measure", FOR_POSITIONS)
@pytest.mark.parametrize("positions", [(1,), (3,), (2, 3)], ids=str)
def test_positions_and_ignored_labels(positions, measure):
    targets = torch.randint(3, (4, *positions))
    targets.view(4, -1)[1, 0] = -100
    assert_agrees(PerPosition().double(), torch.randn(4, *positions, 4).double(), targets, FOR_POSITIONS[measure])


def test_sample_whose_labels_are_all_ignored_does_not_count():
    targets = torch.tensor([[0, 1], [-100, -100], [2, -100]])
    found = assert_agrees(
        PerPosition().double(), torch.randn(3, 2, 4).double(), targets, FOR_POSITIONS["empirical Fisher"]
    )
    assert found.samples == 2


def test_ignored_labels_of_plain_outputs():
    model, x = nn.Linear(4, 3), torch.randn(4, 4)
    part = sample_importance(model, [(x, torch.tensor([0, -100, 2, -100]))], LogLikelihood(), SQUARE)
    whole = sample_importance(model, [(x[::2], torch.tensor([0, 2]))], LogLikelihood(), SQUARE)
    assert part.samples == whole.samples == 2
    torch.testing.assert_close(part.values, whole.values)


def test_exact_joint_absolute_fisher_is_refused():
    with pytest.raises(ConfigurationError, match=r"3\^2 terms.*positions='separate'"):
        sample_importance(PerPosition(), [torch.randn(3, 2, 4)], LogLikelihood(), ABSOLUTE)


@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
def test_drawn_labels_converge_to_all_labels(phi):
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), torch.randn(3, 4).double()
    exact = sample_importance(model, [x], LogLikelihood(), phi).values
    few = sample_importance(model, [x], LogLikelihood("sampled", draws=30), phi).values
    many = sample_importance(model, [x], LogLikelihood("sampled", draws=30_000), phi, budget=2**24).values
    for name, value in exact.items():
        assert oracles.relative_error(many[name], value) < 0.02
        assert oracles.relative_error(few[name], value) > oracles.relative_error(many[name], value)


def test_drawn_joint_labels_converge_to_the_sum_over_positions():
    model, x = PerPosition().double(), torch.randn(2, 2, 4).double()
    exact = sample_importance(model, [x], LogLikelihood(), SQUARE).values
    drawn = sample_importance(model, [x], LogLikelihood("sampled", draws=20_000), SQUARE, budget=2**24).values
    for name, value in exact.items():
        assert oracles.relative_error(drawn[name], value) < 0.03


def test_drawn_labels_follow_the_generator_and_differ_between_batches():
    model, x = nn.Linear(4, 50), torch.randn(1, 4)

    def measured(batches, seed):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return sample_importance(model, batches, LogLikelihood("sampled"), SQUARE, generator=generator).values["weight"]

    assert torch.equal(measured([x], 1), measured([x], 1))
    assert not torch.equal(measured([x], 1), measured([x], 2))
    for seed in (1, None):  # the second batch has labels of its own, also where no generator was given
        assert not torch.equal(measured([x, x], seed), measured([x], seed))


def test_drawn_labels_do_not_touch_the_global_random_state():
    model, x = nn.Linear(4, 50), torch.randn(3, 4)
    before = torch.get_rng_state()
    sample_importance(model, [x], LogLikelihood("sampled"), SQUARE)
    assert torch.equal(torch.get_rng_state(), before)


def test_mean_over_draws_does_not_grow_with_their_number():
    model, x = nn.Linear(4, 2), torch.randn(200, 4)
    one = sample_importance(model, [x], LogLikelihood("sampled"), SQUARE).values["bias"]
    ten = sample_importance(model, [x], LogLikelihood("sampled", draws=10), SQUARE).values["bias"]
    assert 0.5 < float(ten.sum() / one.sum()) < 2.0


def test_regression_of_one_value():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    assert_agrees(model, torch.randn(4, 4).double(), torch.randn(4, 1), MEASURES["MAS on logits"])


def test_custom_score_of_targets():
    def squared_error(outputs, targets):
        return (outputs - targets).square().sum(-1, keepdim=True)

    model, x, y = nn.Linear(4, 2).double(), torch.randn(3, 4).double(), torch.randn(3, 2).double()
    measure = Measure(
        CustomScore(squared_error), SQUARE, lambda outputs, target: [[(1.0, squared_error(outputs, target)[0])]]
    )
    assert_agrees(model, x, y, measure)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (CustomScore(lambda z, y: z.sum()), r"returned shape \(\) for 1 samples; expected \[N, S\]"),
        (CustomScore(lambda z, y: z.detach()), "do not depend on the outputs"),
        (CustomScore(lambda z, y: z, lambda z, y: -z.square()), "not negative"),
        (CustomScore(lambda z, y: z, lambda z, y: z[:, 0]), r"of the scores' shape \(1, 2\)"),
    ],
)
def test_custom_score_that_makes_no_sense(score, message):
    with pytest.raises(BatchError, match=message):
        sample_importance(nn.Linear(4, 2), [torch.randn(3, 4)], score, SQUARE)


@pytest.mark.daily
@pytest.mark.parametrize(
    "make",
    [
        lambda: LogLikelihood("all"),
        lambda: LogLikelihood(positions="each"),
        lambda: LogLikelihood("sampled", draws=0),
        lambda: OutputNorm("softmax"),
        lambda: OutputNorm(positions="each"),
        lambda: LogLikelihood(likelihood="normal"),
        lambda: OutputNorm(likelihood="softmax"),
        lambda: LogLikelihood(class_dim=0),
        lambda: LogLikelihood(class_dim=1.5),
        lambda: LogLikelihood(per="batch"),
    ],
)
def test_settings_are_checked(make):
    with pytest.raises(ConfigurationError, match="expected"):
        make()
