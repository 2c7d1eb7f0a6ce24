"""Regressions and labels that are each 0 or 1, where classes lie, and means per token: against brute force."""

import math

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from anchorhold.errors import ConfigurationError
from tests import oracles
from tests.engine.agreement import FOR_POSITIONS, Measure, assert_agrees
from tests.engine.test_scores import PerPosition


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def mlp(outputs):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def inputs(*shape):
    return torch.randn(*shape, 4).double()


def gaussian(labels="exact", **settings):
    return LogLikelihood(labels, likelihood="gaussian", **settings)


def bernoulli(labels="exact", **settings):
    return LogLikelihood(labels, likelihood="bernoulli", **settings)


# A regression.


@pytest.mark.parametrize("budget", [None, 2**12], ids=["all at once", "in blocks"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_fisher_of_a_regression(outputs, budget):
    """Told by the targets, and named without any."""
    x, y = inputs(6), 3 * torch.randn(6, outputs).double()
    told = Measure(LogLikelihood(), SQUARE, oracles.every_value)
    assert_agrees(mlp(outputs), x, y, told, budget=budget)
    assert_agrees(mlp(outputs), x, None, Measure(gaussian(), SQUARE, oracles.every_value), budget=budget)


@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
@pytest.mark.parametrize("outputs", [1, 3])
def test_empirical_fisher_of_a_regression(outputs, phi):
    y = 3 * torch.randn(6, outputs)
    assert_agrees(mlp(outputs), inputs(6), y, Measure(LogLikelihood("true"), phi, oracles.true_value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_targets_of_one_value_without_its_dimension(dtype):
    """As Hugging Face's regressions have them; whole numbers too, such as ages."""
    y = torch.tensor([25, 61, 3, 0]).to(dtype)
    assert_agrees(mlp(1), inputs(4), y, Measure(LogLikelihood("true"), SQUARE, oracles.true_value))


def test_regression_at_every_position():
    x, y = inputs(3, 2), 3 * torch.randn(3, 2, 2).double()
    model = PerPosition(classes=2).double()
    assert_agrees(model, x, y, Measure(LogLikelihood(), SQUARE, oracles.every_value))
    assert_agrees(model, x, y, Measure(LogLikelihood("true"), SQUARE, oracles.true_value))
    separate = Measure(LogLikelihood(positions="separate"), SQUARE, oracles.separately(oracles.every_value))
    # The oracle's targets would be labels, one a position; a Fisher needs none.
    assert_agrees(model, x, None, separate._replace(score=gaussian(positions="separate")))
    found = sample_importance(model, [(x, y)], separate.score, SQUARE)
    assert found.samples == 6


def test_whole_numbers_that_do_not_count_in_a_regression():
    model, x = PerPosition(classes=1).double(), inputs(2, 3)
    y = torch.tensor([[3, -100, 5], [-100, -100, 7]])
    found = sample_importance(model, [(x, y)], LogLikelihood("true"), SQUARE).values

    def counted(outputs, target):
        kept = target != -100
        return oracles.true_value(outputs[kept], target[kept])

    expected = oracles.importance(model, oracles.one_by_one(x, y), counted, SQUARE)
    for name, value in expected.items():
        assert oracles.relative_error(found[name], value) < 1e-10


def test_exact_absolute_fisher_of_one_value():
    """E|ε ∂z| = √(2/π) |∂z|."""
    scale = math.sqrt(2 / math.pi)
    oracle = Measure(gaussian(), ABSOLUTE, lambda z, y=None: [[(scale, z.reshape(()))]])
    assert_agrees(mlp(1), inputs(5), None, oracle)
    separate = Measure(gaussian(positions="separate"), ABSOLUTE, oracles.separately(oracle.oracle))
    assert_agrees(PerPosition(classes=1).double(), inputs(3, 2), None, separate)


# Labels that are each 0 or 1.


@pytest.mark.parametrize("budget", [None, 2**12], ids=["all at once", "in blocks"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_fisher_of_several_labels(outputs, budget):
    x, t = inputs(6), torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]])[:, :outputs]
    for given in (t, t.double(), t.half(), t.bool(), None):
        score = bernoulli() if given is None else LogLikelihood()
        assert_agrees(mlp(outputs), x, given, Measure(score, SQUARE, oracles.every_set_of_labels), budget=budget)


@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (4,)], ids=str)
def test_empirical_fisher_of_several_labels(shape, phi):
    t = torch.tensor([1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0])[: math.prod(shape)].view(shape).float()
    measure = Measure(LogLikelihood("true"), phi, oracles.true_set_of_labels)
    assert_agrees(mlp(3 if shape == (4, 3) else 1), inputs(4), t, measure)


def test_soft_labels_of_a_named_bernoulli():
    """The binary cross-entropy takes them: u = t − p."""
    model, x, t = mlp(2), inputs(4), torch.rand(4, 2).double()
    found = sample_importance(model, [(x, t)], bernoulli("true"), SQUARE).values

    def cross_entropy(outputs, target):
        return [[(1.0, nn.functional.binary_cross_entropy_with_logits(outputs, target, reduction="sum"))]]

    expected = oracles.importance(model, oracles.one_by_one(x, t), cross_entropy, SQUARE)
    for name, value in expected.items():
        assert oracles.relative_error(found[name], value) < 1e-10


def test_exact_absolute_fisher_of_one_label():
    assert_agrees(mlp(1), inputs(5), None, Measure(bernoulli(), ABSOLUTE, oracles.every_set_of_labels))
    score = bernoulli(positions="separate")
    measure = Measure(score, ABSOLUTE, oracles.separately(oracles.every_set_of_labels))
    assert_agrees(PerPosition(classes=1).double(), inputs(3, 2), None, measure)


def test_labels_at_every_position():
    model, x = PerPosition(classes=2).double(), inputs(3, 2)
    t = torch.tensor([[[1, 1], [0, 0]], [[0, 1], [1, 1]], [[0, 0], [1, 0]]])
    assert_agrees(model, x, t, Measure(LogLikelihood(), SQUARE, oracles.every_set_of_labels))
    assert_agrees(model, x, t, Measure(LogLikelihood("true"), SQUARE, oracles.true_set_of_labels))


def test_labels_that_are_missing_do_not_count():
    """−100 of some of a sample's labels, and of some positions of a sequence."""
    x, t = inputs(3), torch.tensor([[1, -100, 0], [-100, -100, -100], [1, 1, 1]])
    model = mlp(3)

    def counted(scores):
        def of_some(outputs, target):
            kept = target.reshape(-1) != -100
            return scores(outputs.reshape(-1)[kept], target.reshape(-1)[kept]) if kept.any() else []

        return of_some

    for score, scores in (
        (LogLikelihood(), oracles.every_set_of_labels),
        (LogLikelihood("true"), oracles.true_set_of_labels),
    ):
        assert assert_agrees(model, x, t, Measure(score, SQUARE, counted(scores))).samples == 2
    t = torch.tensor([[1, -100], [-100, -100], [0, 1]])
    measure = Measure(LogLikelihood("true"), SQUARE, counted(oracles.true_set_of_labels))
    assert assert_agrees(PerPosition(classes=1).double(), inputs(3, 2), t, measure).samples == 2


@pytest.mark.parametrize("dominant", [False, True])
def test_mas_of_several_labels(dominant):
    t = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).float()
    oracle = oracles.squared_largest_sigmoid if dominant else oracles.squared_sigmoids
    assert_agrees(mlp(3), inputs(4), t, Measure(OutputNorm(dominant=dominant), ABSOLUTE, oracle))
    named = OutputNorm(dominant=dominant, likelihood="bernoulli")
    assert_agrees(PerPosition().double(), inputs(4, 2), None, Measure(named, ABSOLUTE, oracle))


@pytest.mark.parametrize("labels", ["exact", "true"])
@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
def test_one_logit_is_two_of_which_one_is_0(labels, phi):
    model, x, t = mlp(1), inputs(20), torch.arange(20) % 2
    one = sample_importance(model, [(x, t)], LogLikelihood(labels), phi)
    two = sample_importance(
        model, [(x, t)], LogLikelihood(labels), phi, forward=lambda net, x: nn.functional.pad(net(x), (1, 0))
    )
    torch.testing.assert_close(one.values, two.values, rtol=1e-12, atol=0)


@pytest.mark.parametrize("doubt", [1e-8, 1e-22, 1e-100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_labels_that_are_nearly_certain(dtype, doubt):
    """In float32, logits have to be computed with more digits than they have."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype), torch.randn(6, 4).to(dtype)
    with torch.no_grad():
        model[-1].bias.zero_()
        model[-1].weight.mul_(-math.log(doubt) / model(x).abs().min())
    for phi in (SQUARE,):
        measure = Measure(bernoulli(), phi, oracles.every_set_of_labels)
        assert_agrees(model, x, None, measure, tolerance=1e-10 if dtype == torch.float64 else 1e-6)


# Drawn targets.


@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
@pytest.mark.parametrize(("score", "outputs"), [(gaussian, 1), (gaussian, 3), (bernoulli, 1), (bernoulli, 3)])
def test_drawn_targets_are_unbiased(score, outputs, phi):
    """Every element lies within five standard errors of the exact value; those follow from the draws' own spread."""
    if phi == ABSOLUTE and outputs > 1:
        pytest.skip("has no exact value")
    model, x, draws = mlp(outputs), inputs(2), 400
    exact = sample_importance(model, [x], score(), phi).values
    runs = []
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)
        runs.append(sample_importance(model, [x], score("sampled", draws=draws), phi, generator=generator).values)
    for name, value in exact.items():
        found = torch.stack([run[name] for run in runs])
        error = found.std(0) / len(runs) ** 0.5
        assert ((found.mean(0) - value).abs() < 5 * error + 1e-14).all()
        # As small as they should be: a mean over draws, of one that spreads about as widely as it is large.
        assert (found.std(0) < 3 * value / draws**0.5 + 1e-14).all()


def test_drawn_targets_of_many_positions_go_in_blocks():
    model, x = PerPosition(classes=2).double(), inputs(2, 3)
    exact = sample_importance(model, [x], gaussian(), SQUARE).values
    generator = torch.Generator().manual_seed(0)
    drawn = sample_importance(model, [x], gaussian("sampled", draws=20_000), SQUARE, generator=generator, budget=2**22)
    for name, value in exact.items():
        assert oracles.relative_error(drawn.values[name], value) < 0.03


# Where classes lie.


class Segmenter(nn.Module):
    """Outputs ``[N, C, H, W]``, or ``[N, C, L]`` of signals."""

    def __init__(self, classes=3, flat=False):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Conv2d(4, classes, 1)
        self.flat = flat

    def forward(self, x):
        z = self.head(self.first(x).tanh())
        return z.flatten(2) if self.flat else z


SEGMENTED = {
    "Fisher": (LogLikelihood, {}, SQUARE),
    "Fisher, separate": (LogLikelihood, {"positions": "separate"}, SQUARE),
    "AF, separate": (LogLikelihood, {"positions": "separate"}, ABSOLUTE),
    "empirical Fisher": (LogLikelihood, {"labels": "true"}, SQUARE),
    "Fisher, per token": (LogLikelihood, {"per": "token"}, SQUARE),
    "MAS": (OutputNorm, {}, ABSOLUTE),
    "MASX": (OutputNorm, {"dominant": True}, ABSOLUTE),
    "MASX on logits": (OutputNorm, {"dominant": True, "output": "logits"}, ABSOLUTE),
}


@pytest.mark.parametrize("kind", SEGMENTED)
@pytest.mark.parametrize("flat", [False, True], ids=["[N, C, H, W]", "[N, C, L]"])
def test_classes_that_lie_second_are_moved(flat, kind):
    model, x = Segmenter(flat=flat).double(), torch.randn(3, 2, 4, 3).double()
    labels = torch.randint(3, (3, 12) if flat else (3, 4, 3))
    labels[0, 1] = -100
    make, settings, phi = SEGMENTED[kind]
    moved = sample_importance(
        model, [(x, labels)], make(**settings), phi, forward=lambda net, x: net(x).movedim(1, -1).contiguous()
    )
    for score in (make(**settings), make(**settings, class_dim=1)):
        found = sample_importance(model, [(x, labels)], score, phi)
        assert found.samples == moved.samples
        torch.testing.assert_close(found.values, moved.values, rtol=1e-10, atol=1e-15)


def test_segmentation_by_brute_force():
    model, x, labels = Segmenter().double(), torch.randn(2, 2, 3, 2).double(), torch.randint(3, (2, 3, 2))
    measure = FOR_POSITIONS["empirical Fisher"]
    assert_agrees(model, x, labels, measure._replace(oracle=lambda z, y: measure.oracle(z.movedim(0, -1), y)))


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 1, 4, 3)], ids=str)
def test_one_class_of_pixels(shape):
    """Binary segmentation: one logit a pixel, its label with or without a dimension of its own."""
    model, x = Segmenter(classes=1).double(), torch.randn(2, 2, 4, 3).double()
    mask = torch.arange(24).view(shape) % 5 % 2
    for labels in (mask, mask.float(), mask.bool(), mask.byte()):
        found = sample_importance(model, [(x, labels)], LogLikelihood("true"), SQUARE).values
        expected = oracles.importance(model, oracles.one_by_one(x, mask), oracles.true_set_of_labels, SQUARE)
        for name, value in expected.items():
            assert oracles.relative_error(found[name], value) < 1e-10


def test_a_batch_that_fits_both_ways_is_read_as_the_one_before_it():
    class Signals(nn.Conv1d):
        pass

    model = Signals(2, 3, 1).double()
    longer, square = torch.randn(2, 2, 5).double(), torch.randn(2, 2, 3).double()
    batches = [(longer, torch.randint(3, (2, 5))), (square, torch.randint(3, (2, 3)))]
    found = sample_importance(model, batches, LogLikelihood("true"), SQUARE).values
    named = sample_importance(model, batches, LogLikelihood("true", class_dim=1), SQUARE).values
    torch.testing.assert_close(found, named, rtol=1e-12, atol=0)
    alone = sample_importance(model, batches[1:], LogLikelihood("true"), SQUARE).values
    last = sample_importance(model, batches[1:], LogLikelihood("true", class_dim=-1), SQUARE).values
    torch.testing.assert_close(alone, last, rtol=0, atol=0)


def test_labels_of_a_byte_are_not_taken_for_the_mark():
    """−100 as a byte is 156, which is a class like any other."""
    model, x = nn.Linear(4, 200).double(), inputs(3)
    labels = torch.tensor([156, 3, 156])
    for score in (LogLikelihood("true"), OutputNorm()):
        byte, long = (sample_importance(model, [(x, y)], score, SQUARE) for y in (labels.byte(), labels))
        assert byte.samples == long.samples == 3
        assert torch.equal(byte.values["weight"], long.values["weight"])


# Per token.


@pytest.mark.parametrize(
    ("score", "phi", "oracle"),
    [
        (LogLikelihood, SQUARE, oracles.every_joint_label),
        (lambda per: LogLikelihood("true", per=per), SQUARE, oracles.joint_true_label),
        (lambda per: OutputNorm(per=per), ABSOLUTE, oracles.squared_norm),
    ],
)
def test_per_token_divides_by_the_positions_that_count(score, phi, oracle):
    """Sums over samples, of φ of joint gradients, divided by tokens: ω of one sample is its sum."""
    model, x = PerPosition().double(), inputs(3, 3)
    labels = torch.tensor([[0, -100, 1], [-100, 2, -100], [1, 1, 1]])
    found = sample_importance(model, [(x, labels)], score(per="token"), phi)
    assert found.samples == 6
    sums = [oracles.importance(model, [sample], oracle, phi) for sample in oracles.one_by_one(x, labels)]
    for name, value in found.values.items():
        assert oracles.relative_error(value, sum(one[name] for one in sums) / 6) < 1e-10


def test_per_token_does_not_depend_on_packing():
    """Two texts of two tokens or one of four, in a model whose tokens do not mix: an exact Fisher is the same."""
    model, x = nn.Linear(4, 3).double(), inputs(2, 2)
    apart = sample_importance(model, [x], LogLikelihood(per="token"), SQUARE).values
    packed = sample_importance(model, [x.view(1, 4, 4)], LogLikelihood(per="token"), SQUARE).values
    torch.testing.assert_close(apart, packed, rtol=1e-12, atol=0)


def test_per_token_is_not_separate_positions():
    """φ is of a sample's joint gradient, in one backward pass, and not of each position's."""
    model, x, y = PerPosition().double(), inputs(3, 3), torch.randint(3, (3, 3))
    joint = sample_importance(model, [(x, y)], LogLikelihood("true", per="token"), SQUARE)
    separate = sample_importance(model, [(x, y)], LogLikelihood("true", positions="separate"), SQUARE)
    assert joint.samples == separate.samples == 9
    assert oracles.relative_error(joint.values["head.weight"], separate.values["head.weight"]) > 0.1


# What has no exact value.


@pytest.mark.parametrize(
    ("score", "outputs", "message"),
    [
        (gaussian(), 3, r"over 3 outputs with normal noise is no finite sum of gradients. Use labels='sampled'\.$"),
        (bernoulli(), 3, r"over 3 outputs that are each 0 or 1 has 2\^3 terms. Use labels='sampled'\.$"),
    ],
)
def test_exact_absolute_fisher_of_several_outputs_is_refused(score, outputs, message):
    with pytest.raises(ConfigurationError, match=message):
        sample_importance(mlp(outputs), [inputs(3)], score, ABSOLUTE)


@pytest.mark.parametrize("score", [gaussian(), bernoulli()])
def test_exact_absolute_fisher_of_several_positions_is_refused(score):
    with pytest.raises(ConfigurationError, match=r"over 2 outputs .*labels='sampled', or positions='separate'\.$"):
        sample_importance(PerPosition(classes=1), [torch.randn(3, 2, 4)], score, ABSOLUTE)


@pytest.mark.parametrize("score", [gaussian(), bernoulli()])
def test_an_endless_number_of_outputs_is_refused(score):
    with pytest.raises(ConfigurationError, match=r"Every one of 110,000 outputs at 1 position, .*Use labels='sampled'"):
        sample_importance(nn.Linear(1, 110_000), [torch.randn(1, 1)], score, SQUARE)


def test_the_largest_of_several_labels_is_one_that_counts():
    """MASX: a marked output is none, however large it is."""
    model, x = mlp(3), inputs(4)
    y = torch.tensor([[1, 0, 1]] * 4)
    with torch.no_grad():
        y.scatter_(1, model(x).argmax(1, keepdim=True), -100)
    found = sample_importance(model, [(x, y)], OutputNorm(dominant=True), ABSOLUTE).values

    def largest(outputs, target):
        return oracles.squared_largest_sigmoid(outputs[target.reshape(outputs.shape) != -100])

    expected = oracles.importance(model, oracles.one_by_one(x, y), largest, torch.abs)
    for name, value in expected.items():
        assert oracles.relative_error(found[name], value) < 1e-10
