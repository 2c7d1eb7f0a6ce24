"""The unit of an exchange rate, what a ladder costs at κ = 1, and rows and page of the study."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import anchorhold
from anchorhold.guard.arguments.strengths import strength_of_rate
from benchmarks.language import lines
from benchmarks.language.corpus import Corpus, write
from benchmarks.language.gpt import GPT
from studies.exchange_rate import outcomes, rates, report, settings, texts
from studies.exchange_rate.__main__ import main
from studies.exchange_rate.outcomes import Setting, Tried
from studies.exchange_rate.settings import GRID, Base, Ladder, Run, ladders
from studies.exchange_rate.training import Learner, climb, cost, learn_old
from studies.pretrained.report import read
from tests.studies.pretrained.tiny import KINDS
from tests.studies.pretrained.tiny import model as llama

ROOT = Path(__file__).parents[3]
KAPPA, TOKENS = 3.0, 7
CPU = torch.device("cpu")


def kl_of_samples(before, after):
    """Return KL(before‖after) of each sample, summed over its tokens."""
    old, new = before.log_softmax(-1), after.log_softmax(-1)
    return (old.exp() * (old - new)).sum((1, 2))


def test_the_penalty_is_the_exchange_rate_times_the_nats_lost_per_token():
    # One sample and all of its labels, so that Q is no estimate: in a linear model of one weight matrix the Fisher
    # information of a sample is exact, and a dense form keeps all of it.
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4, bias=False).double()
    given = torch.randn(2, TOKENS, 3, dtype=torch.float64)
    strength = strength_of_rate(KAPPA, TOKENS)
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="exact"), strength=strength, form="dense")
    guard.consolidate([given])
    before = model(given).detach()
    with torch.no_grad():
        model.weight += 1e-4 * torch.randn(4, 3, dtype=torch.float64)
    per_token = kl_of_samples(before, model(given)).mean() / TOKENS
    assert_close(guard.penalty(batches=False), KAPPA * per_token, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_samples_importance_is_a_sum_over_the_tokens_that_are_predicted(kind):
    torch.manual_seed(0)
    model = GPT(8, 1, 2, TOKENS, KINDS) if kind == "gpt" else llama()
    # Of a causal model's mapping the first token is not predicted.
    tokens = torch.randint(KINDS, (6, TOKENS + (kind == "llama")))
    batch = tokens if kind == "gpt" else {"input_ids": tokens}
    found = {}
    for per in ("sample", "token"):
        guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled", per=per), strength=1.0)
        guard.consolidate([batch])
        found[per] = sum(float(omega.double().sum()) for omega in guard.held.importance.values())
    assert found["sample"] == pytest.approx(TOKENS * found["token"], rel=1e-5)


def test_every_ladder_and_run_has_a_name_of_its_own():
    planned = list(ladders())
    names = {ladder.name for ladder in planned} | {ladder.base.name for ladder in planned}
    runs = {ladder.run(kappa).name for ladder in planned for kappa in ladder.first}
    bases = {ladder.base for ladder in planned}
    assert len(bases) == 12 and len(planned) == 12 * 2 * 4
    assert len(names) == len(planned) + len(bases)
    assert len(runs) == len(bases) * 2 * (1 + 3 * len(GRID))
    assert planned[2].first[0] == 1.0 and set(planned[2].first) == set(GRID)


def test_a_ladder_goes_on_where_its_best_lies_at_an_edge():
    flat = dict.fromkeys(GRID, 1.0)
    assert settings.beyond(flat | {1.0: 0.5}) is None
    assert settings.beyond(flat | {GRID[0]: 0.5}) == 0.003
    assert settings.beyond(flat | {GRID[-1]: 0.5}) == 1000.0
    assert settings.beyond(flat | {0.003: 0.4, 0.001: 0.3}) is None
    assert settings.beyond(flat | {1000.0: 0.5}) == 3000.0


@pytest.fixture(scope="module")
def corpus():
    """Return letters in an order that can be learned, another one for each kind."""
    found = {}
    for number, kind in enumerate(texts.KINDS):
        for part in ("train", "validation"):
            found[kind, part] = (torch.arange(3000) * (number + 1) % 26 + 97).to(torch.uint8)
    return Corpus(found)


@pytest.fixture(scope="module")
def rows(corpus, tmp_path_factory):
    """Return the rows of a rehearsal, made by the command."""
    folder = tmp_path_factory.mktemp("study")
    write(folder / "corpus.npz", corpus)
    where = ["--rows", str(folder / "rows.jsonl"), "--networks", str(folder / "networks")]
    main(["work", str(folder / "corpus.npz"), "--rehearsal", *where])
    return folder / "rows.jsonl"


def test_a_rehearsal_runs_everything_once_and_makes_a_page(rows, tmp_path):
    found = lines.read(rows)
    planned = [ladder.run(kappa).name for ladder in ladders(settings.REHEARSED) for kappa in ladder.first]
    runs = [line["run"] for line in found]
    assert set(planned) <= set(runs) and len(set(runs)) == len(runs)
    packed = report.pack([rows, rows], tmp_path / "rows.jsonl.zst")
    assert sorted(line["run"] for line in read(packed)) == sorted(runs)
    page = report.text(read(packed), [])
    assert page.count("| GPT rehearsal, ") == 2 * 2 * (
        2 * 3 + 1
    )  # two pairs, two ways; two tables of three forms, a row of the third


def test_a_row_says_what_it_is_of(rows):
    for line in lines.read(rows):
        run = Run.of(line["of"])
        assert run.name == line["run"]
        assert line["c"] == pytest.approx(run.kappa / (2 * line["T"]))
        assert (line["trace"] > 0) == (run.form != "none") == ("predicted" in line)


def test_a_ladder_goes_on_after_an_interruption(corpus, tmp_path):
    base = Base("dictionary, C", "rehearsal", 0)
    learn_old(base, corpus, CPU, tmp_path / "network.safetensors")
    ladder = Ladder(base, "lora", "kronecker")
    learner = Learner(base, "lora", corpus, CPU, tmp_path / "network.safetensors")
    whole, parts = [], []
    climb(ladder, learner, {}, whole.append, lambda: False)
    climb(ladder, learner, {}, parts.append, lambda: len(parts) >= 3)
    assert [line["of"]["kappa"] for line in parts] == list(ladder.first[:3])
    climb(ladder, learner, {line["of"]["kappa"]: line for line in parts}, parts.append, lambda: False)
    assert [line["run"] for line in parts] == [line["run"] for line in whole]
    for one, other in zip(parts, whole, strict=True):
        assert one["after"] == pytest.approx(other["after"], rel=1e-6)
    # The strongest holds more than the weakest.
    by_kappa = {line["of"]["kappa"]: line["after"]["kl"] for line in whole}
    assert by_kappa[max(by_kappa)] < by_kappa[min(by_kappa)]


def tried(kappa, gained, lost):
    return Tried(kappa, 3.0 - gained, gained, lost, lost, lost)


def test_ratios_are_those_of_the_definition():
    ladder = [tried(0.1, 1.0, 0.5), tried(1.0, 0.9, 0.3), tried(10.0, 0.7, 0.05)]
    found = outcomes.ratios(ladder, least_new=1.95)
    # Costs are 2.5, 2.4 and 2.35; the least loss of the new text is 1.95.
    assert found.best == 10.0
    assert found.objective == pytest.approx(2.4 / 2.35)
    assert found.more == pytest.approx(0.05)
    assert found.excess == pytest.approx(0.45 / 0.40)
    # Between the neighbours, at a gain of 0.9, 0.35 is lost; and where 0.3 is lost, 5/9 of the way, 0.8667 gained.
    assert found.same_gain == pytest.approx(0.3 / 0.35)
    assert found.same_loss == pytest.approx((0.7 + 0.3 * 0.25 / 0.45) / 0.9)
    assert outcomes.ratios(ladder[::2], 1.95) is None
    assert outcomes.ratios(ladder[1:2], 1.95) is None


def test_a_gain_that_no_other_strength_reaches_is_not_compared():
    assert outcomes.ratios([tried(1.0, 0.9, 0.3), tried(10.0, 0.7, 0.05)], 2.0).same_gain is None


def test_nothing_is_paid_where_the_old_text_gains():
    ladder = [tried(1.0, 0.9, -0.1), tried(10.0, 0.7, -0.2)]
    found = outcomes.ratios(ladder, 2.1)
    assert found.excess is None and found.objective == pytest.approx(1.0)
    setting = Setting("", (tuple(ladder),), (2.1,))
    assert setting.excess is None and setting.objective == pytest.approx(1.0)


LADDER = (tried(0.1, 1.0, 0.5), replace(tried(1.0, 0.9, 0.3), predicted=0.03), tried(10.0, 0.7, 0.05))
"""Objectives are 2.5, 2.4 and 2.35, and the KL at 1 is ten times the predicted one."""


def test_each_exchange_rate_has_a_ratio_of_its_own():
    setting = Setting("", (LADDER, LADDER[1:]), (1.95, 1.95))
    assert setting.at(0.1) == pytest.approx((2.5 / 2.35, 0.55 / 0.40))  # of the one seed that tried it
    assert setting.at(10.0) == pytest.approx((1.0, 1.0)) and setting.at(3.0) is None
    assert setting.at(1.0) == pytest.approx((setting.objective, setting.excess))
    assert setting.best == pytest.approx(10.0) and setting.too_little == pytest.approx(10.0)


@pytest.mark.parametrize(("power", "cost_there"), [(0.0, 2.4), (0.5, 2.375), (1.0, 2.35), (3.0, 2.35), (-0.5, 2.45)])
def test_a_correction_lies_on_a_line_over_the_logarithm_and_ends_with_the_ladder(power, cost_there):
    found = Setting("", (LADDER,), (1.95,)).corrected(power)
    assert found == pytest.approx((cost_there / 2.35, (cost_there - 1.95) / 0.40))


def test_a_choice_is_judged_by_the_networks_that_it_was_not_made_on():
    names = ("a | LoRA | diagonal", "b | LoRA | diagonal", "c | LoRA | diagonal")
    small = [Setting(name, (), ()) for name in names]
    bad = {names[0]: {1.0: 1.0, 3.0: 1.1}, names[1]: {1.0: 1.3, 3.0: 1.0}, names[2]: {1.0: 1.2, 3.0: 1.0}}
    chosen, found = rates.left_out(small, (1.0, 3.0), lambda setting, kappa: bad[setting.name][kappa])
    assert chosen == {"a": 3.0, "b": 3.0, "c": 3.0} and found == [1.1, 1.0, 1.0]
    chosen, found = rates.left_out(small[:2], (1.0, 3.0), lambda setting, kappa: bad[setting.name][kappa])
    assert chosen == {"a": 3.0, "b": 1.0} and found == [1.1, 1.3]
    assert rates.left_out(small[:1], (1.0,), lambda setting, kappa: 1.0) is None


def test_a_judge_weighs_what_is_lost():
    ladder = [Tried(kappa, 2.0 + 0.01 * kappa, 0.0, 1.0 / (1.0 + kappa), 1.0, 1.0) for kappa in GRID]
    for weight in rates.WEIGHTS:
        objectives = {kappa: 2.0 + 0.01 * kappa + weight / (1.0 + kappa) for kappa in GRID}
        judged = rates.Judged([ladder], weight, "lost")
        assert judged.best == pytest.approx(min(objectives, key=objectives.__getitem__))
        assert judged.at[1.0] == pytest.approx(objectives[1.0] / min(objectives.values()))


def test_goals_are_of_the_median_and_the_worst():
    assert rates.meets([1.0, 1.1, 1.2])
    assert not rates.meets([1.0, 1.11, 1.2]) and not rates.meets([1.0, 1.0, 1.21]) and not rates.meets([])


def test_the_page_is_made_of_the_rows():
    kept = ROOT / report.ROWS
    if not kept.is_file():
        pytest.skip("the study has not been run")
    found = read(kept)
    page = (ROOT / "results" / "exchange-rate.md").read_text(encoding="utf-8")
    assert page == report.text(found, read(ROOT / report.PRETRAINED))
    digests = {json.dumps([line["of"]["base"], line["network"]]) for line in found}
    assert len(digests) == len({json.dumps(line["of"]["base"]) for line in found})
    assert all(cost(line) > 0 for line in found)


def test_the_answer_is_short_and_made_of_the_rows():
    kept = ROOT / report.ROWS
    if not kept.is_file():
        pytest.skip("the study has not been run")
    said = report.answer(read(kept), read(ROOT / report.PRETRAINED))
    readme = (ROOT / "studies" / "exchange_rate" / "README.md").read_text(encoding="utf-8")
    assert said in readme.splitlines() and len(said.removeprefix(report.ANSWER).split()) <= 60
