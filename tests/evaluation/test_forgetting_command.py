"""``anchorhold forgetting`` and ``anchorhold merge --until-kl``, called as a shell calls them."""

import json
import sys
import xml.etree.ElementTree as ET

import peft
import pytest
import torch

from anchorhold import command_line
from anchorhold.command_line import DONE, INTERRUPTED, STORE, USAGE
from anchorhold.errors import ConfigurationError
from anchorhold.evaluation import Estimate, Forgotten, Row, forgetting, measure_forgetting
from anchorhold.evaluation.picture import picture
from anchorhold.evaluation.until_kl import largest_share
from tests.calling import python
from tests.evaluation.models import WORDS, llama, moved, saved, tokenizer

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, words = tmp_path_factory.mktemp("models"), tokenizer()
    saved(root / "before", llama(), words)
    for name, size in (("near", 0.03), ("far", 0.2)):
        saved(root / name, moved(llama(), size), words)
    for name, part in (("old", WORDS[:60]), ("new", WORDS[60:])):
        (root / f"{name}.txt").write_text(part.replace(" ", "\n"), encoding="utf-8")
    return root


def test_a_table_numbers_and_a_picture(call, folders, tmp_path):
    models = [folders / name for name in ("before", "near", "far")]
    options = ("--text", folders / "old.txt", "--new", folders / "new.txt", "--separator", r"\n", "--context", 8)
    shown = call("forgetting", *models, *options, "--json", tmp_path / "all.json", "--picture", tmp_path / "a.svg")
    assert shown.exit_code == DONE
    expected = forgetting(
        models[0], models[1:], folders / "old.txt", new=folders / "new.txt", separator="\n", context=8
    )
    assert shown.stdout == f"{expected}\n" and (tmp_path / "all.json").read_text() == expected.to_json()
    assert "near: old.txt: " in shown.stderr and len(shown.stderr.splitlines()) == 4
    assert (tmp_path / "a.svg").read_text() == picture(expected)
    titles = [each.text for each in ET.parse(tmp_path / "a.svg").iter(f"{SVG}title")]
    assert [title.split(":")[0] for title in titles] == [
        "near, old.txt", "far, old.txt", "near, new.txt (new)", "far, new.txt (new)", "before", "near", "far",
    ]  # fmt: skip
    assert f"{expected.rows[0].change.signed}" in titles[0]
    again = call("forgetting", *models, *options, "--json", "-", "--quiet")
    assert (again.stdout, again.stderr) == (expected.to_json(), "")


def test_the_models_own_text_where_no_other_is_given(call, folders, tmp_path):
    models = (folders / "before", folders / "near")
    shown = call("forgetting", *models, "--pieces", 3, "--length", 5, "--own-text", tmp_path / "own", "--json", "-")
    assert [row["part"] for row in json.loads(shown.stdout)["rows"]] == ["own text"]
    assert shown.stderr.startswith("before writes: 3 of 3\n") and (tmp_path / "own" / "asked.json").is_file()
    again = call("forgetting", *models, "--own-text", tmp_path / "own", "--json", "-")
    assert again.stdout == shown.stdout and "writes" not in again.stderr
    both = call("forgetting", *models, "-t", folders / "old.txt", "--pieces", 3, "--length", 5, "--json", "-")
    assert [row["part"] for row in json.loads(both.stdout)["rows"]] == ["text", "own text"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("forgetting",), USAGE, "required: BEFORE, AFTER"),
        (("forgetting", "{}/before", "gpt2"), USAGE, "'gpt2' is no folder here, and nothing is fetched"),
        (("forgetting", "{}/before", "{}/near", "--dtype", "int8"), USAGE, "--dtype int8: expected one of float32"),
        (("forgetting", "{}/before", "{}/near", "--picture", "a.png"), USAGE, "expected a name such as 'a.svg'"),
        (("forgetting", "{}/before", "{}/near", "--json", "{}/no/a.json"), USAGE, "is to lie in "),
        (("forgetting", "{}/before", "{}/near", "--json", "{}"), USAGE, "is a folder. Give the name of a file"),
        (("forgetting", "{}/before", "{}/near", "--separator", ""), USAGE, "--separator is empty"),
        (("forgetting", "{}/before", "{}/near", "--text", "{}/no.txt"), USAGE, "There is no file or folder "),
        (("merge", "{}/before", "{}/near", "-o", "{}/m", "--until-kl", 1, "-s", 0.3), USAGE, "; --share is too much"),
        (("merge", "{}/before", "{}/near", "{}/far", "-o", "{}/m", "--until-kl", 1), USAGE, "several models AFTER"),
        (("merge", "{}/before", "{}/near", "-o", "{}/m", "--until-kl", -1), USAGE, "a number of nats a token above 0"),
        (("merge", "{}/before", "{}/near", "-o", "{}/far", "--until-kl", 1), USAGE, "not replaced"),
        (("merge", "{}/before", "{}/near", "-o", "{}/m", "--own-text", "a"), USAGE, "--own-text says on what"),
        (
            ("merge", "{}/before", "{}/near", "-o", "{}/m", "--until-kl", 1, "--own-text", "a", "-t", "{}/old.txt"),
            *(USAGE, "goes by one text"),
        ),
    ],
)
def test_mistakes(call, folders, arguments, code, said):
    shown = call(*(str(argument).format(folders) for argument in arguments))
    assert shown.exit_code == code and said in shown.stderr
    assert not (folders / "m").exists()


def test_a_file_that_cannot_be_written_leaves_the_table(call, folders, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError("no space left")

    monkeypatch.setattr("anchorhold.whole_files.write_whole", full)
    shown = call(
        "forgetting", folders / "before", folders / "near", "-t", folders / "old.txt", "--json", tmp_path / "a"
    )
    assert shown.exit_code == STORE and "old.txt" in shown.stdout and "no space left" in shown.stderr


def test_ctrl_c_shows_what_was_measured(call, folders, tmp_path, monkeypatch):
    real = measure_forgetting.sums_together

    def sums(documents, before, after, context, done):
        if after.name == "far":
            raise KeyboardInterrupt
        return real(documents, before, after, context, done)

    monkeypatch.setattr(measure_forgetting, "sums_together", sums)
    monkeypatch.setattr(command_line.signal, "signal", lambda *_: None)  # or later tests could not interrupt anything
    models = [folders / name for name in ("before", "near", "far")]
    shown = call("forgetting", *models, "-t", folders / "old.txt", "--json", tmp_path / "a.json")
    assert shown.exit_code == INTERRUPTED and shown.stderr.endswith("Interrupted.\n")
    assert "before → near" in shown.stdout and "Measured were near: old.txt; the rest is missing" in shown.stdout
    assert json.loads((tmp_path / "a.json").read_text())["complete"] is False


def test_a_model_that_fails_leaves_the_others(call, folders, tmp_path):
    torch.manual_seed(0)
    broken = llama()
    broken.model.norm.weight.data[0] = torch.inf
    saved(tmp_path / "broken", broken, tokenizer())
    shown = call("forgetting", folders / "before", folders / "near", tmp_path / "broken", "-t", folders / "old.txt")
    assert shown.exit_code == USAGE and "before → near" in shown.stdout and "Note: broken was not" in shown.stdout
    assert shown.stderr.endswith("error: Not all models could be measured; the notes below the table say why.\n")


def test_a_merge_until_some_kl(call, folders, tmp_path):
    models, text = (folders / "before", folders / "far"), ("-t", folders / "old.txt")
    whole = forgetting(*models, folders / "old.txt").row().kl.value
    limit = whole / 10
    shown = call("merge", *models, "--until-kl", limit, *text, "-o", tmp_path / "merged", "--json")
    assert shown.exit_code == DONE, shown.stderr
    told = json.loads(shown.stdout)
    measured = forgetting(folders / "before", tmp_path / "merged", folders / "old.txt").row().kl.value
    assert measured == told["kl"] and 0.95 * limit <= measured <= limit
    assert told["shares"] == [1 - told["shares"][1], told["shares"][1]] and len(told["tried"]) <= 8
    call("merge", *models, "--share", told["shares"][1], "-o", tmp_path / "again")
    assert forgetting(folders / "before", tmp_path / "again", folders / "old.txt").row().kl.value == measured
    assert call("merge", *models, "--until-kl", 2 * whole, *text, "-o", tmp_path / "all").exit_code == DONE
    shown = call("merge", *models, "--until-kl", 1e-12, *text, "-o", tmp_path / "none")
    assert shown.exit_code == USAGE and "At every share that was tried more than 1e-12" in shown.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "all", "merged"]


def test_a_merge_until_some_kl_loads_the_model_before_once(call, folders, tmp_path, monkeypatch):
    real, loaded = measure_forgetting.load_model, []

    def load(path, *given):
        loaded.append(path.name)
        return real(path, *given)

    monkeypatch.setattr(measure_forgetting, "load_model", load)
    models = (folders / "before", folders / "far")
    shown = call("merge", *models, "--until-kl", 0.01, "--pieces", 3, "--length", 5, "-o", tmp_path / "m", "--json")
    tried = json.loads(shown.stdout)["tried"]
    assert len(tried) > 1 and loaded == ["before", *(f"{each['share']:.4f}" for each in tried)]
    # The text of the model before is the same as if it had been written for this share alone.
    measured = forgetting(folders / "before", tmp_path / "m", pieces=3, length=5).row().kl.value
    assert measured == json.loads(shown.stdout)["kl"]


def test_a_merge_of_adapters_until_some_kl(call, folders, tmp_path):
    for seed in (1, 2):
        adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.5)
        adapted.peft_config["default"].base_model_name_or_path = str(folders / "before")
        adapted.save_pretrained(tmp_path / str(seed))
        tokenizer().save_pretrained(tmp_path / str(seed))
    options = ("--until-kl", 0.002, "-t", folders / "old.txt", "--json")
    on_base = call("merge", folders / "before", tmp_path / "1", *options, "-o", tmp_path / "whole")
    of_two = call("merge", tmp_path / "1", tmp_path / "2", *options, "-o", tmp_path / "both")
    for shown, name in ((on_base, "whole/model.safetensors"), (of_two, "both/adapter_model.safetensors")):
        assert shown.exit_code == DONE, shown.stderr
        assert 0 < json.loads(shown.stdout)["kl"] <= 0.002 and (tmp_path / name).is_file()


@pytest.mark.parametrize(("kl_at", "most"), [(lambda c: 0.3 * c**2, 2), (lambda c: c**6, 8), (lambda c: 5 * c**0.5, 8)])
def test_the_largest_share(kl_at, most):
    found = largest_share(kl_at, 0.1)
    edge = next(k for k in range(1, 10**6) if kl_at(k / 10**6) > 0.1) / 10**6
    assert found.kl == kl_at(found.share) <= 0.1 and len(found.tried) <= most
    assert found.share == pytest.approx(edge, rel=0.05) or len(found.tried) == 8
    assert largest_share(kl_at, 10.0).tried == ((1.0, kl_at(1.0)),)
    assert largest_share(lambda c: 1.0, 0.1).share == 0


def row(model, part, change, kl):
    return Row(model, part, part, 2, 9, 9, 9, kl, *[Estimate(1.0, 0.1)] * 2, change, *[Estimate(1.0, 0.1)] * 3)


def test_pictures_of_odd_reports():
    none = Forgotten("a", ("b",), ())
    assert ET.fromstring(picture(none)).tag == f"{SVG}svg"
    same = [row("<b> & c", "text", Estimate(0.0, None), Estimate(0.0, None))]
    drawn = ET.fromstring(picture(Forgotten("a", ("<b> & c",), tuple(same))))
    assert [each.text for each in drawn.iter(f"{SVG}title")] == ["<b> & c, text: +0.0000"]
    bits = [row(name, part, None, None) for name in "bc" for part in ("text", "new")]
    report = Forgotten("a", ("b", "c"), tuple(bits))
    assert "bits a byte" in picture(report) and report.points() == {"b": (-1.0, 1.0), "c": (-1.0, 1.0)}


def test_help_comes_without_torch():
    done = python(
        "import sys\nfrom anchorhold.command_line import main\n"
        "try:\n    main(['forgetting', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0 and "nats a token" in done.stdout


def test_without_transformers_the_extra_is_named(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"transformers is needed: pip install 'anchorhold\[huggingface\]'"):
        forgetting(folders / "before", folders / "near", folders / "old.txt")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "peft", None)
    (folders / "adapter").mkdir()
    (folders / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ImportError, match="to load it peft is needed: pip install peft"):
        forgetting(folders / "before", folders / "adapter", folders / "old.txt")
    assert not issubclass(ConfigurationError, ImportError)
