"""The three kinds of continual learning."""

import copy

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data import digits_dataset
from anchorhold_lab.experiments import Spec, paper_spec
from anchorhold_lab.scenarios import of_kind, open_outputs, split
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner

DIGITS = split(digits_dataset(), 2, 3, flat=True, validation=0.1)


def test_tasks_have_heads_and_labels_as_their_kind_says():
    by_task, by_domain, by_class = (of_kind(DIGITS, kind) for kind in ("task", "domain", "class"))
    assert (by_task.heads, by_task.classes, by_task.grows) == (3, 2, False)
    assert (by_domain.heads, by_domain.classes, by_domain.grows) == (1, 2, False)
    assert (by_class.heads, by_class.classes, by_class.grows) == (1, 6, True)
    assert [task.outputs for task in by_class.tasks] == [2, 4, 6]
    for i, (task, before) in enumerate(zip(by_class.tasks, DIGITS.tasks, strict=True)):
        for part in ("train", "test", "validation"):
            assert torch.equal(getattr(task, part).y, getattr(before, part).y + 2 * i)
            assert torch.equal(getattr(task, part).x, getattr(before, part).x)
    with pytest.raises(ConfigurationError, match="kind='classes'"):
        of_kind(DIGITS, "classes")


def test_closed_outputs_have_no_probability_and_no_gradient():
    logits = torch.randn(4, 6, requires_grad=True)
    opened = open_outputs(logits, 2)
    torch.testing.assert_close(opened.softmax(1)[:, :2], logits[:, :2].softmax(1))
    assert (opened.softmax(1)[:, 2:] == 0).all()
    torch.nn.functional.cross_entropy(opened, torch.zeros(4, dtype=torch.long)).backward()
    assert (logits.grad[:, 2:] == 0).all() and (logits.grad[:, :2] != 0).all()
    assert open_outputs(logits, None) is logits


class Growing(torch.nn.Module):
    """A head that really gets more rows with every task: those of a whole one, a few more of them each time."""

    def __init__(self, whole):
        super().__init__()
        self.whole = whole
        self.rows = torch.nn.Parameter(whole.weight.detach()[:2].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach()[:2].clone())

    def grow(self, rows):
        with torch.no_grad():
            self.rows = torch.nn.Parameter(torch.cat([self.rows, self.whole.weight[len(self.rows) : rows]]))
            self.bias = torch.nn.Parameter(torch.cat([self.bias, self.whole.bias[len(self.bias) : rows]]))


def test_a_masked_head_learns_what_one_does_that_grows():
    settings = Settings(epochs=2, batch_size=16, learning_rate=0.05, optimizer="sgd", momentum=0.0)
    spec = Spec("split-digits", "fine-tune", tasks=3, hidden=(8,), incremental="class", engine="plain")
    scenario = of_kind(DIGITS, "class")
    model = spec.make_network(scenario)
    run = PlainRun(make_learner("fine-tune", settings=settings, scenario=scenario, model=model, watch=()))
    learner = run.learner
    body = [p.detach().clone().requires_grad_() for p in learner.model.body.parameters()]
    head = Growing(copy.deepcopy(learner.model.heads[0]))
    orders = {(task, epoch): learner.order(task, epoch) for task in range(3) for epoch in range(2)}
    finish(run)
    for task in range(3):
        head.grow(2 * task + 2)
        samples = learner.samples(task)
        parameters = [*body, head.rows, head.bias]
        for epoch in range(2):
            for chosen in orders[task, epoch]:
                features = torch.relu(torch.nn.functional.linear(samples.x[chosen], body[0], body[1]))
                logits = torch.nn.functional.linear(features, head.rows, head.bias)
                loss = torch.nn.functional.cross_entropy(logits, samples.y[chosen])
                for parameter, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.data -= 0.05 * g
    trained = learner.model.heads[0]
    torch.testing.assert_close(trained.weight, head.rows, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trained.bias, head.bias, rtol=1e-4, atol=1e-6)
    assert learner.outcome.matrix[0][1:] == [0.0, 0.0]  # classes that have not come are never said


@pytest.mark.parametrize("hold", ["replay", "distillation", "DER++", "A-GEM", "projection"])
def test_holds_do_with_a_head_that_grows(hold):
    spec = paper_spec("split-digits", "fine-tune", tasks=3, hidden=(8,), incremental="class", holds=(hold,))
    settings = Settings(epochs=1, batch_size=32, learning_rate=0.01)
    learner = make_learner(
        "fine-tune",
        settings=settings,
        scenario=of_kind(DIGITS, "class"),
        model=spec.make_network(of_kind(DIGITS, "class")),
        watch=(),
        holds=spec.make_holds(),
    )
    finish(PlainRun(learner))
    assert all(p.isfinite().all() and p.abs().max() < 100 for p in learner.model.parameters())


def test_a_spec_says_its_kind_only_where_it_is_another():
    plain, named = paper_spec("split-digits", "SI"), paper_spec("split-digits", "SI", incremental="task")
    assert plain == named and "incremental" not in plain.to_dict()
    domain = paper_spec("split-digits", "SI", incremental="domain")
    assert domain.id != plain.id and domain.engine == "fast"
    assert Spec.from_dict(domain.to_dict()) == domain
    assert paper_spec("permuted-digits", "SI", incremental="domain") == paper_spec("permuted-digits", "SI")
    by_class = paper_spec("split-digits", "SI", incremental="class")
    assert by_class.engine == "plain"
    with pytest.raises(ConfigurationError, match="a head that grows"):
        Spec("split-digits", "SI", incremental="class")
    with pytest.raises(ConfigurationError, match="incremental='classes'"):
        Spec("split-digits", "SI", incremental="classes")
