"""Recipes on a tiny network: adapters as peft computes them, and a model that is put back after each run."""

import copy

import pytest
import torch
from torch.testing import assert_close

from anchorhold.seeding import generator_for
from studies.pretrained import recipes, training
from studies.pretrained.texts import KEPT, LESSONS
from tests.studies.pretrained.tiny import LESSON, learner, model, rows


def adapter(keep=False):
    kept = {"keep": "own text", "strength": 1.0, "kept_rows": 2} if keep else {}
    return recipes.Recipe("tiny", LESSON, "lora", 1e-2, 3, rank=3, batch=9, **kept)


def test_an_adapter_computes_what_pefts_does():
    peft = pytest.importorskip("peft")
    ours, theirs = model(), model()
    training.adapt(ours, 4, seed=7)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=r"model\.layers\..*_proj", lora_dropout=0.0)
    wrapped = peft.get_peft_model(theirs, config)
    given = {name: weight for name, weight in ours.named_parameters() if "lora_" in name}
    for name, weight in given.items():
        with torch.no_grad():
            weight.normal_(std=0.3, generator=generator_for(1, name))
            there, which = name.rsplit(".", 1)
            module = wrapped.base_model.model.get_submodule(there)
            getattr(module, "lora_A" if which == "lora_a" else "lora_B")["default"].weight.copy_(weight)
    assert len(given) == 2 * 2 * 7
    tokens = rows(3, 12, 5).tokens.clamp(min=0)
    assert_close(ours(input_ids=tokens).logits, wrapped(input_ids=tokens).logits, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours(input_ids=tokens).logits, model()(input_ids=tokens).logits, atol=1e-2)


@pytest.mark.parametrize("keep", [False, True])
def test_an_adapter_is_trained_and_taken_off_again(keep):
    found = learner(own=True)
    before = copy.deepcopy(found.model.state_dict())
    lines = []
    training.run(found, adapter(keep), lines.append)
    after = found.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    ends = {line["share"]: line["texts"] for line in lines if line.get("part") == "test"}
    assert set(ends) == {*training.SHARES, 1.0}
    assert lines[-1]["end"] is True
    assert all(line["run"] == adapter(keep).name for line in lines)
    assert any(abs(ends[1.0][kind]["change"]) > 1e-4 for kind in KEPT)
    # A small share of the change changes less than the whole.
    small, whole = (sum(abs(ends[share][kind]["change"]) for kind in KEPT) for share in (0.2, 1.0))
    assert small < whole


def test_a_run_is_the_same_again_and_learns():
    recipe = recipes.Recipe("tiny", LESSON, "all", 1e-2, 3, batch=6)
    found = learner()
    runs = []
    for _ in range(2):
        lines = []
        training.run(found, recipe, lines.append)
        runs.append([line["texts"] for line in lines if "texts" in line])
        losses = next(line["training_loss"] for line in lines if "training_loss" in line)
        assert losses[-1] < losses[0] - 0.5
    assert runs[0] == runs[1]


def test_rows_in_parts_are_as_rows_together():
    ends = []
    for together in (16, 4):
        found = learner(own=True)
        found.rows_together = together
        lines = []
        training.run(found, adapter(keep=True), lines.append)
        ends.append(next(line["texts"] for line in lines if line.get("part") == "test"))
    for kind in (LESSON, *KEPT):
        assert ends[0][kind]["change"] == pytest.approx(ends[1][kind]["change"], abs=2e-4)


def test_the_divergence_keeps_closer_to_the_model_before():
    found = learner(own=True)
    free = recipes.Recipe("tiny", LESSON, "all", 1e-2, 3, batch=6)
    kept = recipes.Recipe("tiny", LESSON, "all", 1e-2, 3, batch=6, keep="own text", strength=30.0, kept_rows=8)
    moved = []
    for recipe in (free, kept):
        training.run(found, recipe, lambda line: None)
        trained = training.to_train(found, recipe)
        assert len(trained) == len(list(found.model.parameters()))
        lines = []
        training.run(found, recipe, lines.append)
        end = next(line["texts"] for line in lines if (line.get("part"), line.get("share")) == ("test", 1.0))
        moved.append(sum(abs(end[kind]["change"]) for kind in KEPT))
    assert moved[1] < moved[0]


def test_a_recipe_with_own_text_is_refused_where_there_is_none():
    with pytest.raises(SystemExit, match="own text"):
        training.run(learner(), adapter(keep=True), lambda line: None)


def test_rates_rise_and_fall_to_nothing():
    rates = [training.rate_at(step, 100) for step in range(100)]
    assert rates[0] < rates[1] < rates[2] == 1.0
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0.0 < rates[-1] < 0.02


def test_each_epoch_reads_all_rows_once():
    recipe = recipes.Recipe("tiny", LESSON, "all", 1e-2, 2, batch=4)
    given = torch.arange(10)[:, None]
    read = [batch.flatten().tolist() for batch in training.batches(recipe, given)]
    assert len(read) == training.steps_of(recipe, 10) == 4
    assert len(set(read[0] + read[1])) == 8
    assert read[:2] != read[2:]


def test_recipes_have_names_of_their_own():
    plans = [
        recipe
        for name in ("a", "b")
        for plan in (
            recipes.screening(name, seeds=(0, 1)),
            recipes.rates(name, LESSONS),
            recipes.own_text(name, LESSONS),
        )
        for recipe in plan
    ]
    assert len({recipe.name for recipe in plans}) == len(plans)
    assert all(recipes.Recipe.of(vars(recipe)) == recipe for recipe in plans)


@pytest.fixture
def guarded(monkeypatch):
    """Return a learner with own text, and a function that runs a guard of some form, weights and exchange rate."""
    monkeypatch.setattr(training, "JUDGED", 4)
    found = learner(own=True)

    def run(form, weights, kappa):
        lines = []
        rank = 3 if weights == "lora" else 0
        recipe = recipes.Recipe("tiny", LESSON, weights, 1e-2, 3, rank=rank, batch=6, keep=form, strength=kappa)
        training.run(found, recipe, lines.append)
        return lines

    return found, run


@pytest.mark.parametrize("weights", ["lora", "all"])
@pytest.mark.parametrize("form", recipes.GUARDS)
def test_a_guard_holds_by_its_exchange_rate(guarded, form, weights):
    found, run = guarded
    weak, strong, again = (run(form, weights, kappa) for kappa in (1e-3, 100.0, 1e-3))
    far = [lines[-1]["guard"]["predicted"] for lines in (weak, strong)]
    assert 0 < far[1] < 0.5 * far[0]
    learned = [next(x["training_loss"] for x in lines if "training_loss" in x)[-1] for lines in (weak, strong)]
    assert learned[0] < learned[1]
    ends = [next(x["texts"] for x in lines if x.get("part") == "test") for lines in (weak, strong)]
    assert all(set(end) == {LESSON, *KEPT, training.OWN_TEXT} for end in ends)
    about = weak[-1]["guard"]
    context = found.own.shape[1] - 1
    assert (about["T"], about["c"]) == (context, pytest.approx(1e-3 / (2 * context)))
    assert about["space"] == ("merged" if (form, weights) == ("kronecker", "lora") else "weights")
    # A guard that was measured before is the one that is measured now.
    assert [x["texts"] for x in again if "texts" in x] == [x["texts"] for x in weak if "texts" in x]
    assert again[-1]["guard"]["predicted"] == weak[-1]["guard"]["predicted"] > 0


def test_guards_are_planned_with_the_most_telling_first():
    planned = list(recipes.guards("tiny", LESSONS[:2]))
    assert {recipe.strength for recipe in planned[:6]} == {1.0}
    assert len({recipe.name for recipe in planned}) == len(planned) == 6 * len(recipes.EXCHANGE_RATES)
