"""How much of what was learned is left by finish(new): new loss + κ·KL is least there, and nothing else has moved."""

import copy

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional as F

from anchorhold import protect
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, OrderError
from anchorhold.protection import weighing
from tests.integrations import tiny
from tests.protection import language
from tests.protection.test_classifiers import batches, data, fit, taught

# A model of seven tokens writes some texts twice.
pytestmark = pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")

TOKENIZER = tiny.tokenizer()
HELD_OUT = torch.tensor([[1, 6, 6, 3, 3, 6, 6, 3, 2, 0], [1, 3, 6, 6, 3, 3, 6, 6, 3, 2]])
"""Like what is learned, and the first ends early."""
NEW = {"input_ids": HELD_OUT, "attention_mask": (HELD_OUT != 0).long()}


def classifier(rate=1.0, steps=60, x_new=None):
    """A classifier in float64 that was protected and has learned a second task, and batches of that."""
    model = taught().double()
    x, y = data(0)
    guard = protect(model, batches(x.double(), y), exchange_rate=rate, progress=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard.attach(optimizer)
    x, y = data(1)
    fit(model, x.double(), y, steps, optimizer)
    x, y = data(1, rows=96)
    return model, guard, batches(x[64:].double(), y[64:])


def writer(rate=1.0, steps=20):
    model = language.taught().double()
    guard = protect(model, TOKENIZER, exchange_rate=rate, **language.FEW)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard.attach(optimizer)
    language.fit(model, language.NEW, steps, optimizer)
    return model, guard


def at(model, guard, share):
    """The model at θ* + share·(θ − θ*), by the formula."""
    there = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in there.named_parameters():
            weight.copy_(guard.anchor[name] + share * (weight - guard.anchor[name]))
    return there.eval()


def mean_kl(old, new):
    p, q = old.log_softmax(-1), new.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@torch.no_grad()
def worth_of_classifier(model, guard, new, share, rate):
    there, before = at(model, guard, share), at(model, guard, 0.0)
    loss = F.cross_entropy(torch.cat([there(x) for x, _ in new]), torch.cat([y for _, y in new]))
    aside = torch.cat([x for x, _ in guard.samples.aside])
    kl = mean_kl(before(aside), there(aside))
    return float(loss), kl, float(loss) + rate * kl


@torch.no_grad()
def worth_of_writer(model, guard, share, rate):
    """What is scored is a token behind a token, neither of them padding: the first row has 8 such, the second 9."""
    there, before = at(model, guard, share), at(model, guard, 0.0)
    logits = there(**NEW).logits[:, :-1]
    scored = HELD_OUT[:, 1:] != 0
    assert scored.sum(1).tolist() == [8, 9]
    loss = float(F.cross_entropy(logits[scored], HELD_OUT[:, 1:][scored]))
    old, now = [], []
    for batch in guard.samples.aside:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        # Own text scores what was written, which its labels say.
        counted = batch["labels"][:, 1:] != -100
        old.append(before(**inputs).logits[:, :-1][counted])
        now.append(there(**inputs).logits[:, :-1][counted])
    kl = mean_kl(torch.cat(old), torch.cat(now))
    return loss, kl, loss + rate * kl


def check(model, guard, new, worth, rate):
    """The share that is found against a scan of a thousand, and what is reported against what is measured."""
    end, weights = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    scan = {share: worth(end, guard, share, rate)[-1] for share in np.linspace(0, 1, 1001)}
    report = guard.finish(new)
    found = report.weighed
    assert found.exchange_rate == rate and 3 <= len(found.looks) <= weighing.LOOKS
    assert worth(end, guard, report.share, rate)[-1] <= 1.01 * min(scan.values())
    for look in (found.start, found.best):
        expected = worth(end, guard, look.share, rate)
        assert (look.new, look.kl, look.objective) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert found.start.share == 1 and report.share == found.best.share
    assert report.lost_before.kl == found.start.kl and report.lost.kl == found.best.kl
    for name, weight in model.named_parameters():
        expected = at(end, guard, report.share).get_parameter(name)
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-12)
        if report.share == 1:
            assert torch.equal(weight, weights[name])
    return report


@pytest.mark.parametrize("rate", [0.01, 1.0, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("steps", [15, 150])
def test_the_share_of_a_classifier_is_worth_as_much_as_the_best_of_a_thousand(rate, steps):
    model, guard, new = classifier(rate, steps)
    check(model, guard, new, lambda *given: worth_of_classifier(*given[:2], new, *given[2:]), rate)


@pytest.mark.parametrize(("rate", "steps"), [(0.3, 5), (1.0, 15), (3.0, 5), (30.0, 15)])
def test_the_share_of_a_language_model_is_worth_as_much_as_the_best_of_a_thousand(rate, steps):
    model, guard = writer(rate, steps)
    check(model, guard, [NEW], worth_of_writer, rate)


def looks_of(objective):
    tried = []

    def look_at(share):
        tried.append(share)
        return weighing.Look(share, objective(share), 0.0, objective(share))

    looks = weighing.best_share(look_at)
    assert sorted(tried, reverse=True) == [look.share for look in looks] and len(set(tried)) == len(tried)
    return tried, weighing.Weighed(1.0, True, 1, "token", looks).best.share


def test_few_looks_are_needed():
    assert looks_of(lambda share: 2 - share) == ([1.0, 0.9, 0.75], 1.0)
    assert looks_of(lambda share: 1.0) == ([1.0, 0.9, 0.75], 1.0)  # of equals the one that moves nothing
    tried, best = looks_of(lambda share: 1 + (share - 0.83) ** 2)
    assert best == pytest.approx(0.83, abs=0.05) and tried[:3] == [1.0, 0.9, 0.75] and 0.25 not in tried
    assert looks_of(lambda share: 1 + share)[1] == 0.0  # nothing of what was learned is worth anything
    for lowest in np.linspace(0, 1, 41):
        tried, best = looks_of(lambda share, lowest=lowest: 0.1 + abs(share - lowest) ** 1.5)
        assert best == pytest.approx(lowest, abs=0.06) and len(tried) <= weighing.LOOKS


def end_of(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def same(model, weights):
    return all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_without_new_batches_nothing_is_averaged_and_they_may_follow():
    model, guard, new = classifier(10.0)
    end = end_of(model)
    report = guard.finish()
    assert same(model, end) and report.share == 1 and report.weighed is None and report.lost == report.lost_before
    (line,) = [line for line in str(report).splitlines() if line.startswith("not averaged")]
    assert f"{report.lost.kl:.4g}" in line and "finish(new_batches) weighs" in line
    with pytest.raises(OrderError, match=r"since the last finish\(\)"):
        guard.finish()
    weighed = guard.finish(new)
    assert weighed.share < 1 and not same(model, end) and weighed.lost_before.kl == report.lost.kl
    with pytest.raises(OrderError, match=r"since the last finish\(\)"):
        guard.finish(new)


def test_the_report_says_what_was_weighed():
    _, guard, new = classifier(10.0)
    report = guard.finish(new)
    found, told = report.weighed, str(report)
    for look in (found.start, found.best):
        told_of = f"{look.new:.4g} + 10·{look.kl:.4g} = {look.objective:.4g} at share {look.share:.3g}"
        assert told_of in told
    assert "an exchange rate of 10, on 32 samples of the new batches; new loss a sample" in told
    assert report.to_dict()["weighed"]["looks"][0]["new"] == found.start.new
    unmoved = classifier(0.01, 15)
    told = str(unmoved[1].finish(unmoved[2]))
    assert told.count("at share") == 1 and "at share 1" in told


def test_a_plain_strength_weighs_by_one():
    _, guard, new = classifier(10.0)
    guard.strength = 5.0
    found = guard.finish(new)
    assert found.weighed.exchange_rate == 1 and "an exchange rate of 1, which is taken, since the guard" in str(found)
    distilled = language.taught()
    guard = protect(distilled, TOKENIZER, exchange_rate=0, **language.FEW)
    optimizer = torch.optim.Adam(distilled.parameters(), 1e-2)
    guard.attach(optimizer)
    language.fit(distilled, language.NEW, 5, optimizer)
    assert guard.finish([NEW]).weighed.exchange_rate == 1


def test_rows_of_tokens_and_a_single_batch_are_read_as_mappings_are():
    found = []
    for new in ([{"input_ids": HELD_OUT[1:], "labels": HELD_OUT[1:]}], [HELD_OUT[1:]], HELD_OUT[1:], [(HELD_OUT[1:],)]):
        _, guard = writer(3.0, 5)
        found.append(guard.finish(new).weighed)
    assert all(each == found[0] for each in found) and found[0].per == "token"


def test_only_so_many_samples_are_read_and_the_last_batch_is_cut(monkeypatch):
    monkeypatch.setattr(weighing, "SAMPLES", 20)
    model, guard, new = classifier()
    x, y = torch.cat([new[0][0], new[1][0][:4]]), torch.cat([new[0][1], new[1][1][:4]])
    expected = worth_of_classifier(copy.deepcopy(model), guard, [(x, y)], 1.0, 1.0)[0]
    later = iter([*new, (new[0][0][:, :2], new[0][1])])  # which the model could not take
    found = guard.finish(later).weighed
    assert found.samples == 20 and found.start.new == pytest.approx(expected)


def test_new_batches_may_be_called_in_their_own_way():
    _, guard, new = classifier(10.0)
    named = [({"x": x}, y) for x, y in new]
    report = guard.finish(named, forward=lambda model, inputs: model(inputs["x"]))
    again = classifier(10.0)
    assert report.weighed == again[1].finish(again[2]).weighed


def test_an_adapter_goes_back_by_what_it_adds():
    torch.manual_seed(1)
    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(language.taught(), lora)
    guard = protect(model, TOKENIZER, exchange_rate=10.0, **language.FEW)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-2)
    guard.attach(optimizer)
    language.fit(model, language.NEW, 30, optimizer)
    b = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_B" in name}
    report = guard.finish([NEW])
    assert 0 < report.share < 1
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.testing.assert_close(p.detach(), report.share * b[name])
    assert report.lost.kl == pytest.approx(report.weighed.best.kl, rel=1e-5)


def test_it_is_the_same_after_a_checkpoint(tmp_path):
    model, guard = writer(10.0, 9)
    guard.checkpoint(tmp_path)
    again = language.untrained().double()
    again.load_state_dict(model.state_dict())
    resumed = protect(again, TOKENIZER, resume=tmp_path, progress=False)
    report = guard.finish([NEW])
    assert report.share < 1 and resumed.finish([NEW]) == report
    assert same(again, end_of(model))


def test_a_checkpoint_goes_on_with_how_the_model_is_called(tmp_path):
    old = [{"x": x} for x in data(0)[0].split(16)]
    model, given = taught(), {"forward": lambda model, inputs: model(inputs["x"]), "progress": False}
    guard = protect(model, old, **given)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard.attach(optimizer)
    x, y = data(1)
    fit(model, x, y, 5, optimizer)
    guard.checkpoint(tmp_path)
    again = taught()
    again.load_state_dict(model.state_dict())
    resumed = protect(again, old, resume=tmp_path, **given)
    new = [({"x": x}, y)]
    assert resumed.finish(new).weighed == guard.finish(new).weighed


class Diverges(nn.Module):
    """Gives what is no number where the first weight has gone half of the way back."""

    def __init__(self, inner, between):
        super().__init__()
        self.inner, self.between = inner, between

    def forward(self, x):
        found = self.inner(x)
        if self.between is not None and self.between(self.inner):
            raise RuntimeError("this model fails half-way")
        return found


def test_weights_stay_where_they_were_when_the_model_fails_on_the_way():
    model = Diverges(taught(), None)
    guard = protect(model, batches(*data(0)), exchange_rate=10.0, progress=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard.attach(optimizer)
    fit(model, *data(1), 60, optimizer)
    end = end_of(model)
    first = model.inner[0].weight.detach().clone()
    model.between = lambda inner: not torch.equal(inner[0].weight, first)
    with pytest.raises(
        BatchError, match=r"failed on the new batches, .* this model fails half-way.* nothing was moved"
    ):
        guard.finish(batches(*data(1)))
    assert same(model, end) and guard.report.share is None
    model.between = None
    steps = len(guard.control.trace)
    fit(model, *data(1), 1, optimizer)  # it is still held
    assert len(guard.control.trace) >= steps
    assert guard.finish(batches(*data(1))).weighed is not None


def refused(error, match, new, **options):
    model, guard, _ = classifier(steps=3)
    end = end_of(model)
    with pytest.raises(error, match=match):
        guard.finish(new, **options)
    assert same(model, end) and guard.report.share is None


X, Y = data(1)
X = X.double()


@pytest.mark.parametrize(
    ("error", "match", "new"),
    [
        (BatchError, "Of the new batches no label counts: all are -100", [(X, torch.full_like(Y, -100))]),
        (BatchError, "Batch 0 of the new batches has no labels for 64 predictions over 3 classes", [X]),
        (
            BatchError,
            r"Batch 1 of the new batches has labels of shape \(64, 2\)",
            [(X, Y), (X, torch.stack([Y, Y], 1))],
        ),
        (BatchError, "The new batches hold nothing; expected a few dozen", []),
        (BatchError, "The new batches hold nothing", iter([])),
        (BatchError, "A batch of 0 samples", [(X[:0], Y[:0])]),
        (BatchError, "64 inputs but 63 targets", [(X, Y[:63])]),
        (BatchError, r"failed on the new batches, on \(64, 5\) \(RuntimeError: ", [(X[:, :5], Y)]),
        (BatchError, "has the label 7, and the model has 3 classes", [(X, Y.clamp(max=0) + 7)]),
        (BatchError, "expected an iterable of batches", (X, Y)),
        (BatchError, "expected an iterable of batches", "texts"),
        (NotFiniteError, "the loss is nan", [(X * float("nan"), Y)]),
    ],
    ids=[
        "nothing counts",
        "no labels",
        "labels of another shape",
        "no batches",
        "an iterator at its end",
        "no samples",
        "a label missing",
        "inputs of another shape",
        "a label of no class",
        "a batch",
        "a text",
        "NaN",
    ],
)
def test_what_cannot_be_weighed_is_refused(error, match, new):
    refused(error, match, new)


def test_two_ways_to_finish_are_refused():
    refused(ConfigurationError, r"New batches of type list and share=0\.5 at the end: give one", [(X, Y)], share=0.5)
    refused(ConfigurationError, "and tolerance=0.1 at the end", [(X, Y)], tolerance=0.1)
    _, guard, new = classifier(steps=0)
    with pytest.raises(OrderError, match="no weight has moved since the model was protected"):
        guard.finish(new)


def test_nothing_of_a_model_in_training_is_disturbed():
    model, guard = writer(0.3, 15)
    model.train()
    model(input_ids=language.OLD, labels=language.OLD).loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    random, new = torch.get_rng_state(), {name: value.clone() for name, value in NEW.items()}
    end = end_of(model)
    assert guard.finish([new]).share == 1 and same(model, end)
    assert torch.equal(torch.get_rng_state(), random) and model.training
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters())
    assert all(torch.equal(new[name], value) for name, value in NEW.items())
