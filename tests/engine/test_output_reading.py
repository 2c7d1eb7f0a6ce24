"""What batches tell of a model's outputs: whose likelihood they are of, where classes lie, and what stays unclear."""

import types

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.accumulator import SampleAccumulator, sample_importance
from anchorhold.engine.conventions import problem_type
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError

ZEROS_AND_ONES = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
ONE_HOT = torch.eye(3)[[0, 2, 1, 0]]
VALUES = torch.tensor([[3.7, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
SHARES = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])


class Giving(nn.Module):
    """Outputs of any shape."""

    def __init__(self, *shape, problem=None):
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.ones(4, max(1, torch.Size(shape).numel())))
        if problem is not None:
            self.config = types.SimpleNamespace(problem_type=problem)

    def forward(self, x):
        return (x @ self.weight).view(len(x), *self.shape)


class GivingForSequenceClassification(Giving):
    """The same as a model whose loss its config chooses."""


def collector(model, score=None, phi=SQUARE, **options):
    return SampleAccumulator(model, score or LogLikelihood(), phi, **options)


def read(model, *targets, score=None, **options):
    """Return how the outputs were read after batches with these targets."""
    made = collector(model, score, **options)
    for given in targets:
        size = 4 if given is None else len(given)
        made.update(torch.randn(size, 4) if given is None else (torch.randn(size, 4), given))
    return made.reading


@pytest.mark.daily
@pytest.mark.parametrize(
    ("shape", "targets", "likelihood"),
    [
        ((3,), None, "categorical"),
        ((3,), torch.tensor([0, 1, 2, -100]), "categorical"),
        ((3,), torch.tensor([0, 1, 2, 1], dtype=torch.uint8), "categorical"),
        ((3,), torch.tensor([True, False, True, False]), "categorical"),
        ((3,), ZEROS_AND_ONES, "bernoulli"),
        ((3,), ZEROS_AND_ONES.half(), "bernoulli"),
        ((3,), ZEROS_AND_ONES.long(), "bernoulli"),
        ((3,), ZEROS_AND_ONES.bool(), "bernoulli"),
        ((3,), VALUES, "gaussian"),
        ((3,), VALUES.bfloat16(), "gaussian"),
        ((1,), torch.tensor([0, 1, 1, 0]), "bernoulli"),
        ((1,), torch.tensor([0, 1, -100, 0]), "bernoulli"),
        ((1,), torch.tensor([[0], [1], [1], [0]]), "bernoulli"),
        ((1,), torch.tensor([True, False, True, True]), "bernoulli"),
        ((1,), torch.tensor([0.0, 1.0, 1.0, 0.0]), "bernoulli"),
        ((1,), torch.tensor([25, 61, 3, 0]), "gaussian"),
        ((1,), torch.tensor([0.0, 1.0, 1.5, 0.0]), "gaussian"),
        ((1,), torch.tensor([[0.0], [1.0], [-0.5], [0.0]]), "gaussian"),
        ((2, 3), torch.zeros(4, 2, dtype=torch.long), "categorical"),
        ((2, 3), torch.zeros(4, dtype=torch.long), "categorical"),  # labels of something else, which are not needed
        ((2, 3), torch.randn(4, 2, 3), "gaussian"),
        ((2, 1), torch.tensor([[0, 1]] * 4), "bernoulli"),
        ((2, 1), torch.tensor([[0, 5], [7, 3]] * 2), "gaussian"),
        ((3,), SHARES, "categorical"),
    ],
)
def test_targets_tell_the_likelihood(shape, targets, likelihood):
    for labels in ("exact", "sampled"):
        assert read(Giving(*shape), targets, score=LogLikelihood(labels)).likelihood == likelihood


UNCLEAR = [
    ((3,), ONE_HOT, r"shape \(4, 3\).*for outputs \(4, 3\), all 0 or 1 with one 1 in each row, as one-hot labels have"),
    ((3,), ONE_HOT.long(), "with one 1 in each row"),
    ((3,), ONE_HOT.bool(), "with one 1 in each row"),
    ((1,), torch.tensor([0, 255, 0, 255], dtype=torch.uint8), "not only 0 and 1"),
    ((1,), torch.tensor([0, 1, 255, 0], dtype=torch.uint8), "not only 0 and 1"),
    ((1,), torch.tensor([-1, 1, 1, -1]), "not only 0 and 1"),
    ((1,), torch.rand(4, 1), "within 0..1 and not only 0 and 1"),
    ((1,), torch.rand(4), "within 0..1 and not only 0 and 1"),
    ((1,), torch.tensor([0.0, 1.0, -100.0, 0.0]), "some -100 and the others within 0..1"),
    ((3,), torch.tensor([[4, 2, 1]] * 4), r"type torch.int64.*not only 0 and 1 \(such as 4\)"),
    ((3, 2, 2), torch.eye(3)[torch.randint(3, (4, 2, 2))].movedim(-1, 1), "with one 1 in each row"),
]


@pytest.mark.daily
@pytest.mark.parametrize(("shape", "targets", "message"), UNCLEAR)
def test_what_targets_leave_unclear_is_refused_and_may_be_named(shape, targets, message):
    choices = "do not tell what the model's outputs are. Name it: likelihood='categorical' .*'bernoulli' .*'gaussian'"
    for score, phi in ((LogLikelihood(), SQUARE), (OutputNorm(), ABSOLUTE)):
        with pytest.raises(BatchError, match=message + ".*" + choices):
            read(Giving(*shape), targets, score=score, phi=phi)
    assert read(Giving(*shape), targets, score=LogLikelihood(likelihood="gaussian")).likelihood == "gaussian"
    if targets.max() <= 1 and targets.min() != -1:
        assert read(Giving(*shape), targets, score=LogLikelihood(likelihood="bernoulli")).likelihood == "bernoulli"


def test_one_hot_and_soft_labels_of_a_named_categorical():
    model, x = Giving(3), torch.randn(4, 4)
    one_hot, labels = (
        sample_importance(model, [(x, y)], LogLikelihood("true", likelihood="categorical"), SQUARE).values["weight"]
        for y in (ONE_HOT, ONE_HOT.argmax(-1))
    )
    assert torch.equal(one_hot, labels)
    soft = sample_importance(model, [(x, SHARES)], LogLikelihood(likelihood="categorical"), SQUARE).values["weight"]
    assert torch.equal(soft, sample_importance(model, [x], LogLikelihood(), SQUARE).values["weight"])
    with pytest.raises(BatchError, match="share a sample out between classes; labels='true' wants one class"):
        read(model, SHARES, score=LogLikelihood("true", likelihood="categorical"))
    with pytest.raises(BatchError, match="no shares of classes: some are negative, or do not sum to 1"):
        read(model, ZEROS_AND_ONES, score=LogLikelihood(likelihood="categorical"))


@pytest.mark.parametrize(
    ("shape", "targets"),
    [((3,), torch.randn(4)), ((3,), torch.randn(4, 2)), ((2, 3), torch.randn(4, 2))],
    ids=["one", "two", "of three"],
)
def test_real_targets_of_another_shape_are_refused(shape, targets):
    message = r"Targets of shape \(4.*\) and type torch.float32 for outputs \(4, .*; expected the outputs' own shape"
    with pytest.raises(BatchError, match=message):
        read(Giving(*shape), targets)
    for likelihood in ("gaussian", "bernoulli"):
        with pytest.raises(
            BatchError, match=r"have that same shape. Name another likelihood=, or leave the targets out"
        ):
            read(Giving(*shape), targets.clamp(0, 1), score=LogLikelihood(likelihood=likelihood))
    with pytest.raises(BatchError, match="want integer labels of shape"):
        read(Giving(*shape), targets, score=LogLikelihood(likelihood="categorical"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("likelihood", [None, "gaussian", "bernoulli"])
def test_targets_that_are_no_numbers_are_refused(likelihood, bad):
    targets = VALUES.clone()
    targets[2, 1] = bad
    with pytest.raises(BatchError, match=r"NaN or infinity among them.*Leave out the samples"):
        read(Giving(3), targets, score=LogLikelihood(likelihood=likelihood))


def test_complex_targets_are_refused():
    with pytest.raises(BatchError, match=r"Targets of type torch.complex64"):
        read(Giving(3), torch.zeros(4, 3, dtype=torch.complex64))


def test_values_that_a_named_likelihood_cannot_have_are_refused():
    with pytest.raises(BatchError, match=r"A target of 3.7; .*Bernoulli likelihood, from likelihood='bernoulli'"):
        read(Giving(3), VALUES, score=LogLikelihood(likelihood="bernoulli"))


# One output.


@pytest.mark.parametrize("score", [LogLikelihood(), LogLikelihood(likelihood="categorical"), OutputNorm()])
def test_one_output_without_targets_is_refused_unless_it_is_named(score):
    message = "one output, whose softmax is 1 whatever the weights.*likelihood='gaussian'.*'bernoulli'.*output='logits'"
    for shape in ((1,), (2, 1)):
        with pytest.raises(ConfigurationError, match=message):
            read(Giving(*shape), None, score=score)
    assert read(Giving(1), None, score=OutputNorm("logits"), phi=ABSOLUTE).likelihood is None
    assert read(Giving(1), None, score=LogLikelihood(likelihood="bernoulli")).likelihood == "bernoulli"


def test_probabilities_of_a_regression_are_refused():
    for dominant in (False, True):
        with pytest.raises(
            ConfigurationError, match=r"no probabilities .*targets of shape .*Use MAS\(output='logits'\)"
        ):
            read(Giving(3), VALUES, score=OutputNorm(dominant=dominant), phi=ABSOLUTE)
    with pytest.raises(ConfigurationError, match=r"from likelihood='gaussian'\). Use MAS\(output='logits'\)"):
        OutputNorm(likelihood="gaussian")
    assert OutputNorm("logits", likelihood="gaussian").likelihood == "gaussian"


def test_outputs_as_they_are_ask_nothing():
    for targets in (VALUES, SHARES, ONE_HOT, torch.full((4, 3), torch.nan), torch.randn(4), torch.randn(4, 7)):
        assert read(Giving(3), targets, score=OutputNorm("logits"), phi=ABSOLUTE).likelihood is None


# The model's own word.


@pytest.mark.parametrize(
    ("problem", "likelihood", "targets"),
    [
        ("regression", "gaussian", ZEROS_AND_ONES),
        ("multi_label_classification", "bernoulli", ONE_HOT),
        ("single_label_classification", "categorical", torch.tensor([0, 1, 2, 0])),
        ("regression", "gaussian", None),
        ("multi_label_classification", "bernoulli", None),
        ("something_else", "categorical", None),
    ],
)
def test_the_model_says_what_its_problem_is(problem, likelihood, targets):
    model = GivingForSequenceClassification(3, problem=problem)
    assert read(model, targets).likelihood == likelihood
    if targets is None:  # others have the field and never look at it, and nobody asks what lies within a model
        assert read(nn.Sequential(model), None).likelihood == "categorical"
        assert read(Giving(3, problem=problem), None).likelihood == "categorical"
    assert read(model, None, score=LogLikelihood(likelihood="gaussian")).likelihood == "gaussian"


def test_the_model_is_asked_when_it_is_measured():
    model = GivingForSequenceClassification(3)
    model.config = types.SimpleNamespace(problem_type=None)
    made = collector(model)
    assert problem_type(model, None) is None
    model.config.problem_type = "regression"
    made.update((torch.randn(4, 4), ZEROS_AND_ONES))
    assert made.reading.likelihood == "gaussian"


def test_targets_that_the_models_problem_cannot_have_are_refused():
    with pytest.raises(BatchError, match=r"A target of 3.7.*from the model's problem type 'multi_label_class"):
        read(GivingForSequenceClassification(3, problem="multi_label_classification"), VALUES)
    with pytest.raises(BatchError, match=r"the values of a regression .*have that same shape"):
        read(GivingForSequenceClassification(3, problem="regression"), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(BatchError, match="no shares of classes"):
        read(GivingForSequenceClassification(3, problem="single_label_classification"), VALUES)
    with pytest.raises(ConfigurationError, match="one output"):
        read(GivingForSequenceClassification(1, problem="single_label_classification"), None)


# One batch after another.


@pytest.mark.parametrize(
    ("targets", "likelihood"),
    [
        ((ZEROS_AND_ONES, ONE_HOT, None), "bernoulli"),
        ((VALUES, ZEROS_AND_ONES, SHARES, ONE_HOT, None), "gaussian"),
        ((None, torch.tensor([0, 1, 2, 0]), None), "categorical"),
        ((torch.tensor([0, 1, 2, 0]), SHARES, ONE_HOT), "categorical"),
    ],
)
def test_the_first_batch_speaks_for_later_ones_that_may_be_read_so(targets, likelihood):
    assert read(Giving(3), *targets).likelihood == likelihood


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (
            ZEROS_AND_ONES,
            VALUES,
            r"such as 3.7\), which speaks for 'gaussian'; .*read as 'bernoulli', by targets of shap",
        ),
        (ZEROS_AND_ONES, SHARES, r"which speaks for 'categorical' or 'gaussian'; .*read as 'bernoulli'"),
        (None, VALUES, r"speaks for 'gaussian'; .*read as 'categorical', by default, as no targets"),
        (torch.tensor([0, 1, 2, 0]), ZEROS_AND_ONES, r"speaks for 'bernoulli' or 'gaussian'; .*by integer labels"),
        (VALUES, torch.tensor([0, 1, 2, 0]), r"Integer labels .*speaks for 'categorical'; .*read as 'gaussian'"),
    ],
)
def test_a_later_batch_that_contradicts_the_first_is_refused(first, later, message):
    with pytest.raises(BatchError, match=message + ".*Name it: likelihood="):
        read(Giving(3), first, later)


@pytest.mark.parametrize("budget", [1, None], ids=["sample by sample", "all at once"])
def test_the_whole_batch_speaks_and_not_its_first_samples(budget):
    """Nor do those within a limit: two samples would be a rehearsal."""
    assert read(Giving(3), VALUES.flip(0), budget=budget).likelihood == "gaussian"
    assert read(Giving(3), torch.cat([ONE_HOT, ZEROS_AND_ONES]), budget=budget, samples=2).likelihood == "bernoulli"


# Where classes lie.


@pytest.mark.parametrize(
    ("shape", "labels", "dim"),
    [
        ((3,), (4,), -1),
        ((3, 5), (4, 3), -1),
        ((3, 5), (4, 5), 1),
        ((5, 5), (4, 5), -1),
        ((3, 5), None, -1),
        ((3, 5, 6), (4, 5, 6), 1),
        ((3, 5, 6), (4, 3, 5), -1),
        ((3, 4, 5, 6), (4, 4, 5, 6), 1),
    ],
)
def test_labels_tell_where_classes_lie(shape, labels, dim):
    targets = None if labels is None else torch.zeros(labels, dtype=torch.long)
    assert read(Giving(*shape), targets).class_dim == dim
    assert read(Giving(*shape), targets, score=OutputNorm(dominant=True), phi=ABSOLUTE).class_dim == dim


@pytest.mark.parametrize(
    ("targets", "why"), [(None, "there are no labels to tell"), (torch.zeros(4, 3, 3, dtype=torch.long), "fit both")]
)
def test_classes_of_images_that_may_lie_anywhere_are_refused(targets, why):
    model = Giving(3, 3, 3)
    message = rf"shape \(\d, 3, 3, 3\).*{why}. Name the dimension: class_dim=1 or class_dim=-1"
    for score in (LogLikelihood(), OutputNorm(), OutputNorm("logits", dominant=True), LogLikelihood(per="token")):
        with pytest.raises(ConfigurationError, match=message):
            read(model, targets, score=score)
    assert read(model, targets, score=LogLikelihood(class_dim=1)).class_dim == 1


def test_images_whose_outputs_all_count_need_no_dimension():
    """Nor do those of a regression, unless pixels are counted."""
    model = Giving(2, 3, 3)
    assert read(model, torch.randn(4, 2, 3, 3)).class_dim is None
    assert read(model, None, score=LogLikelihood(likelihood="bernoulli")).class_dim is None
    assert read(model, None, score=OutputNorm("logits"), phi=ABSOLUTE).class_dim is None
    for settings in ({"per": "token"}, {"positions": "separate"}):
        with pytest.raises(ConfigurationError, match="class_dim=1"):
            read(model, None, score=LogLikelihood(likelihood="gaussian", **settings))
        made = collector(model, LogLikelihood(likelihood="gaussian", class_dim=1, **settings))
        made.update(torch.randn(4, 4))
        assert made.samples == 4 * 9


def test_labels_that_put_classes_elsewhere_than_before_are_refused():
    model = Giving(3, 5)
    last, second = torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 5, dtype=torch.long)
    for first, later in ((last, second), (second, last), (None, second)):
        with pytest.raises(
            BatchError, match=r"classes lie in dimension -?1, and those of the batches before were read"
        ):
            read(model, first, later)
    assert read(model, second, None).class_dim == 1


def test_a_dimension_that_is_not_there_is_refused():
    for dim in (2, -2):
        with pytest.raises(ConfigurationError, match=rf"class_dim={dim} for outputs of shape \(1, 3\)"):
            read(Giving(3), None, score=LogLikelihood(class_dim=dim))


def test_labels_that_do_not_fit_the_named_dimension_are_refused():
    with pytest.raises(BatchError, match=r"want integer labels of shape \(1, 5\), one for each position beside dim"):
        read(Giving(3, 5), torch.zeros(4, 3, dtype=torch.long), score=LogLikelihood(class_dim=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_that_ends_in_a_softmax_is_told_of(dtype):
    body, x = nn.Linear(4, 3).to(dtype), torch.randn(8, 4, dtype=dtype)
    model = nn.Sequential(body, nn.Softmax(-1))
    with pytest.warns(AnchorholdWarning, match=r"outputs are probabilities.*expected are logits.*\.log\(\)"):
        anchorhold.Fisher().measure(model, [x])


def test_logarithms_of_probabilities_are_logits():
    """What the warning says to do: the importance is that of the model without its softmax."""
    body, x = nn.Linear(4, 3).double(), torch.randn(8, 4).double()
    ends, logs = nn.Sequential(body, nn.Softmax(-1)), nn.Sequential(body, nn.LogSoftmax(-1))
    of_logits = anchorhold.Fisher().measure(nn.Sequential(body), [x])
    of_logs = anchorhold.Fisher().measure(logs, [x])
    said = anchorhold.Fisher().measure(ends, [x], forward=lambda model, inputs: model(inputs).clamp(min=1e-30).log())
    for name, omega in of_logits.items():
        torch.testing.assert_close(of_logs[name], omega)
        torch.testing.assert_close(said[name], omega)
