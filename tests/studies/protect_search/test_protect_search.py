"""A search in a tiny model: what is put back, what settings do, and what the page says of lines."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast

from anchorhold.adapters import Product
from anchorhold.seeding import generator_for
from benchmarks.language.lora import SCALE, Adapted, AdaptedLayer
from studies.pretrained import recipes
from studies.pretrained.texts import KEPT
from studies.protect_search import __main__ as command
from studies.protect_search import report, settings, training
from studies.protect_search.settings import DEFAULT, Run, Setting
from tests.studies.pretrained import tiny

LESSON = "lesson-german"
STRONG = Setting(1000.0, 3 / 4)


def tokenizer():
    words = {"<s>": 0, **{f"w{number}": number for number in range(1, tiny.KINDS)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="<s>", pad_token="<s>")


@pytest.fixture
def subject(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "JUDGED", 4)
    learner = tiny.learner(own=True)
    for config in (learner.model.config, learner.model.generation_config):
        config.bos_token_id = config.eos_token_id = 0
    return training.Subject(learner, tokenizer(), tmp_path / "own", {"tokens": 64 * 11, "length": 11})


def recipe(weights="all"):
    rank = 3 if weights == "lora" else 0
    return recipes.Recipe("tiny", LESSON, weights, 1e-2, 4, rank=rank, batch=9)


@pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")
@pytest.mark.parametrize("weights", ["all", "lora"])
def test_each_setting_begins_where_the_first_began(subject, weights):
    training.write_text(subject)
    before = {name: weight.clone() for name, weight in subject.model.state_dict().items()}
    lines = []
    order = [DEFAULT, STRONG, DEFAULT]
    training.search(subject, [Run(recipe(weights), each) for each in order], lines.append)
    first, strong, again = lines
    assert first["ends"] == again["ends"] and first["finish"] == again["finish"]
    assert first["c"] == again["c"] == pytest.approx(strong["c"] / 1000)
    assert first["form"] == ("rotated" if weights == "all" else "kronecker")
    after = subject.model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)

    moved = [sum(abs(line["ends"]["1.0"]["test"][text][1]) for text in (*KEPT, "own")) for line in (first, strong)]
    assert moved[1] < moved[0] / 2
    # The less is left of what was learned, the less has moved.
    at = [sum(abs(first["ends"][str(share)]["test"][text][1]) for text in KEPT) for share in settings.AVERAGES]
    assert at == sorted(at, reverse=True) and at[-1] < at[0]
    # Half of what was lost is given back, as when this was run.
    assert 0 <= first["finish"]["share"] < 1 and first["finish"]["lost"] <= first["finish"]["lost_before"] / 2
    assert set(first["ends"]["finish"]["validation"]) == {LESSON, *KEPT, "own"}


@pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")
def test_what_is_asked_for_is_protect_with_no_option(subject):
    guard, trained = training.protected(subject, recipe())
    assert guard.report.exchange_rate == DEFAULT.exchange_rate == 1
    assert [hold.share for hold in guard.options.holds] == [DEFAULT.share]
    assert len(trained) == len(list(subject.model.parameters()))
    text = training.text_digest(guard.samples.text)
    # An adapter reads the text that was written without it.
    adapted, _ = training.protected(subject, recipe("lora"))
    assert training.text_digest(adapted.samples.text) == text


def test_an_adapter_without_text_and_a_cache_of_two_models_are_refused(subject):
    with pytest.raises(SystemExit, match="no own text yet"):
        training.protected(subject, recipe("lora"))
    subject.learner.restart()
    training.write_text(subject)
    with torch.no_grad():
        subject.model.lm_head.weight.mul_(2)
    training.write_text(subject)
    with pytest.raises(SystemExit, match="texts of 2 models"):
        subject.written()


def test_nothing_is_begun_when_time_is_up_and_the_model_is_kept_before_it_is_averaged(subject, tmp_path):
    training.write_text(subject)
    lines = []
    asked = [Run(recipe(), each) for each in (DEFAULT, STRONG)]
    training.search(subject, asked, lines.append, lambda: bool(lines), keep=tmp_path / "after")
    assert [line["setting"]["share"] for line in lines] == [DEFAULT.share]
    there = type(subject.model).from_pretrained(tmp_path / "after")
    moved = max(
        float((now - then).detach().abs().max())
        for now, then in zip(there.parameters(), subject.model.parameters(), strict=True)
    )
    assert moved > 1e-3


def test_documents_are_told_in_words(subject):
    (first, *_) = training.documents(subject.learner.tokens, subject.tokenizer, LESSON, 2)
    row = subject.learner.tokens.rows[LESSON, "test"].tokens[0]
    assert first.split() == [f"w{token}" if token else "<s>" for token in row[1:].tolist() if token >= 0]


def test_an_average_of_the_benchmarks_adapter_is_of_what_it_adds():
    layer = Adapted(torch.nn.Linear(5, 4, bias=False), 2, generator_for(0, "adapter"))
    with torch.no_grad():
        layer.lora_b.normal_(generator=generator_for(1, "b"))
    end = layer.lora_a.detach() + 0.3
    then = {layer.lora_a: layer.lora_a.detach(), layer.lora_b: torch.zeros(4, 2)}
    now = {layer.lora_a: end, layer.lora_b: layer.lora_b.detach()}
    found = AdaptedLayer(layer).between(now.__getitem__, then.__getitem__, 0.4)
    made = SCALE * found.values[layer.lora_b] @ found.values[layer.lora_a]
    assert_close(made, 0.4 * SCALE * now[layer.lora_b] @ end)
    assert isinstance(AdaptedLayer(layer).change(), Product)


def told(setting, gains, losses, new=(3.0, 3.1)):
    """A line with an end at each average, the same on both parts but for what the lesson begins at."""

    def part(begin, gained, lost):
        return {"lesson-records": [begin - gained, -gained, 0.1], "own": [1.0, lost, 0.1]} | {
            kind: [1.0, 2 * lost, 0.1] for kind in KEPT
        }

    ends = {
        average: {"validation": part(new[0], gained, lost), "test": part(new[1], gained, lost)}
        for average, gained, lost in zip(("1.0", "0.8", "finish"), gains, losses, strict=True)
    }
    line = {"run": f"{setting}", "ends": ends, "finish": {"share": 0.7}, "seconds": 60.0, "protecting": 5.0}
    line |= {"machine": "M", "date": "D", "steps": 76, "form": "kronecker"}
    of = recipes.Recipe("m", "lesson-records", "lora", 1e-4, 2, rank=16)
    return {**line, **Run(of, setting).told()}


LINES = [
    told(DEFAULT, (2.0, 1.8, 1.7), (0.5, 0.3, 0.25)),
    told(Setting(3.0, 1 / 2), (1.9, 1.75, 1.6), (0.2, 0.1, 0.08)),
]


def test_the_verdict_is_what_the_lines_come_to():
    found = report.verdict(LINES, "own text")
    assert found.ours.objective == pytest.approx(3.1 - 1.7 + 0.25)
    # Objectives on validation text, by hand: 1.5, 1.5, 1.55 and 1.3, 1.35, 1.48.
    assert (found.chosen.setting, found.chosen.average) == (Setting(3.0, 1 / 2), "1.0")
    assert found.objective == pytest.approx((1.4 + 0.25) / (1.2 + 0.2))
    assert found.least_new == pytest.approx(1.1)
    assert found.cost == pytest.approx((1.65 - 1.1) / (1.4 - 1.1))
    # Ours gained 1.7; of those that gained as much, that which lost least lost 0.1.
    assert found.same_gain.lost == pytest.approx(0.1)
    assert found.averaged.setting == DEFAULT and found.averaged.average in {"1.0", "0.8"}
    real = report.verdict(LINES, "real text")
    assert real.ours.lost == pytest.approx(0.5)
    assert report.verdict(LINES[1:], "own text") is None and report.verdict(LINES[:1], "own text") is None


def test_the_average_that_is_weighed_goes_by_own_text_on_validation_text_alone():
    """By own text 1.25 and 1.3, by real text 1.5 and 1.4: what judges has no part in it."""
    ours = told(DEFAULT, (2.0, 1.8, 1.7), (0.25, 0.1, 0.05))
    for judge, lost in (("own text", 0.25), ("real text", 0.5)):
        found = report.verdict([ours, LINES[1]], judge)
        assert (found.weighed.setting, found.weighed.average) == (DEFAULT, "1.0")
        assert found.by_weighing == pytest.approx((3.1 - 2.0 + lost) / found.chosen.objective)
    assert report.verdict([ours, LINES[1]], "real text").averaged.average == "0.8"
    page = report.text([ours, LINES[1]])
    assert "| LoRA r 16 | records | own text | " in page and " | 1.0 |" in page


def forgotten(device, dtype, kl):
    def number(value):
        return {"value": value, "error": 0.01}

    rows = [
        {"part": part, "kind": part, "kl": number(kl), "loss_before": number(2.0), "loss_after": number(2.5 + kl)}
        | {"change": number(0.5)}
        for part in ("text", "new")
    ]
    return {"device": device, "dtype": dtype, "machine": f"a {device}", "seconds": 9.0, "rows": rows}


def test_the_page_is_written_and_the_answer_with_it(tmp_path):
    given = tmp_path / "rows.jsonl"
    devices = [forgotten("cpu", "float32", 0.3), forgotten("cuda", "float32", 0.3001)]
    # A run that was written twice counts once, by its first line.
    given.write_text("".join(json.dumps(line) + "\n" for line in [*LINES, *devices, {**LINES[0], "ends": {}}]))
    packed, page, readme = tmp_path / "r.jsonl.zst", tmp_path / "page.md", tmp_path / "README.md"
    readme.write_text("# Q\n\n- **Answer:** none\n- **Numbers:** none\n")
    command.main(["pack", str(given), "--rows", str(packed)])
    command.main(["report", "--rows", str(packed), "--page", str(page), "--readme", str(readme)])
    said = page.read_text()
    assert (
        "| LoRA r 16 | records | 2 | 1.700 / +0.250 | 1.900 / +0.200 | κ 3, share 0.5, average 1.0 | 1.179 | 1.833 |"
        in said
    )
    assert "| a cuda | float32 | 9 | 0.3001 ± 0.0100 | 2.8001 ± 0.0100 | -0.5000 | 1.0e-04 |" in said
    told_there = readme.read_text().splitlines()
    answer = told_there[2]
    assert answer.startswith("- **Answer:** Not as it was run: by own text 1.18 times the best of a hand's search with")
    assert "times as `finish(new)` averages now" in answer and "after these rows were seen" in answer
    assert "| trained | lesson | judged by | objective, half given back | objective, weighed | at the average |" in said
    assert told_there[3] == "- **Numbers:** [results/page.md](../../results/page.md)"


def test_the_settings_begin_with_none_and_name_each_run():
    found = list(settings.runs("m", "lesson-basque", "all"))
    assert found[0].setting == DEFAULT and len({run.name for run in found}) == len(settings.TRIED)
    assert all(Run.of(json.loads(json.dumps(run.told()))) == run for run in found)
    assert {run.recipe.rate for run in found} == {5e-5}
