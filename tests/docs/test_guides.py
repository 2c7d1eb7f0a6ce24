"""The pages that a new user reads first do what they say."""

import re
from pathlib import Path
from unittest import mock

import pytest

import anchorhold
from anchorhold.engine.conventions import base, registered_conventions
from anchorhold.engine.rules import RULES
from tests.docs.pages import DOCS, blocks, page, run_page
from tests.helpers import grouped

TESTS = Path(__file__).parents[1]


def test_start_shows_what_comes_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run_page("start.md")
    unprotected, held = (scope["accuracies"](scope[name]) for name in ("unprotected", "model"))
    assert held[0] > unprotected[0] + 0.2
    shown = re.findall(r"(\d+)%", blocks(page("start.md"), "text")[1])
    printed = re.findall(r"(\d+)%", capsys.readouterr().out)
    assert len(shown) == len(printed) == 6
    assert [int(accuracy) for accuracy in printed] == pytest.approx([int(accuracy) for accuracy in shown], abs=6)


def test_ones_own_loop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page("guides/own-loop.md")
    assert scope["guard"].tasks == 2
    assert scope["ewc"].tasks == 2
    assert not any(name.startswith("heads") for name in scope["ewc"].importance)


def test_another_gradient():
    scope = run_page("guides/another-gradient.md")
    assert scope["watched"].tasks == 1
    assert min(omega.sum() for omega in scope["halved"].importance.values()) > 0


def test_choosing(capsys):
    scope = run_page("guides/choosing.md")
    guard, shown = scope["guard"], capsys.readouterr().out
    assert guard.retention().is_within and guard.options.form.name == "rotated"
    assert "kept set" in shown and "within the tolerance of 0.1" in shown
    for way in ("what_to_try_first", "what_a_search_found"):
        anchorhold.Guard(scope["model"], anchorhold.Fisher(), form="rotated", **grouped(**scope[way]))


def test_recipes():
    scope = run_page("guides/recipes.md")
    assert scope["replay"].buffer is not None and len(scope["own"]) == 64
    linked = set(re.findall(r"\]\(#([\w-]+)\)", page("guides/recipes.md")))
    headed = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^## (.*)$", page("guides/recipes.md"), flags=re.MULTILINE)
    }
    assert linked == headed - {"at-other-sizes", "how-strong", "the-code"}


def test_beyond_the_diagonal(capsys):
    scope = run_page("guides/forms.md")
    assert scope["guard"].tasks == 1
    assert "rotated" in capsys.readouterr().out


def test_adapters(capsys):
    pytest.importorskip("peft")
    scope = run_page("guides/adapters.md")
    assert scope["guard"].options.space == scope["own"].options.space == "merged"
    assert "adapters by their merged weights" in capsys.readouterr().out


def test_importance_for_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_page("guides/sharing.md")["guard"].tasks == 1
    assert "in the form 'rotated'" in capsys.readouterr().out
    assert (tmp_path / "importance" / "README.md").is_file()


def test_safe_at_any_strength():
    with pytest.warns(anchorhold.AnchorholdWarning, match="is far too much for this task"):
        scope = run_page("guides/safe-at-any-strength.md")
    assert scope["guard"].options.implicit and scope["guard"].penalty().isfinite()


def test_how_strong(capsys):
    scope = run_page("guides/how-strong.md")
    assert "relative strength 0.03, which is strength " in capsys.readouterr().out
    assert scope["guard"].strength == {"0.*": 5.0, "2.*": 0.0}


def test_projection(capsys):
    scope = run_page("guides/projection.md")
    assert scope["guard"].tasks == 2
    assert capsys.readouterr().out == blocks(page("guides/projection.md"), "text")[0]


def test_merging(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run_page("guides/merging.md")
    assert 0 < scope["chosen"].share <= 1 and scope["chosen"].lost <= 0.05
    assert set(scope["states"]) == {0.3, 0.5, 0.7}
    assert len(capsys.readouterr().out.splitlines()) > 10


def test_how_much_may_be_lost(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run_page("guides/tolerance.md")
    printed = capsys.readouterr().out
    assert "beyond the tolerance of 0.05" in printed and "within the tolerance of 0.05" in printed
    assert scope["guard"].retention().is_within and scope["again"].tolerance == 0.05
    assert scope["again"].retention() == scope["guard"].retention()
    assert scope["logged"]["anchorhold/kl/old"] <= 0.05


def test_everything_that_keeps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run_page("guides/keeping.md")
    assert "beside it holds replay: a share of 0.125 of each step" in capsys.readouterr().out
    assert scope["guard"].options.holds[0].last > 0


def test_new_classes_with_one_head():
    assert run_page("guides/class-incremental.md")["guard"].tasks == 1


def test_without_tasks(capsys):
    run_page("guides/task-free.md")
    assert capsys.readouterr().out.startswith("[")


def test_weights_as_distributions(capsys):
    assert len(run_page("guides/variational.md")["hold"].prior) == 4
    shown = re.findall(r"(\d+)%", "".join(blocks(page("guides/variational.md"), "text")))
    printed = re.findall(r"(\d+)%", capsys.readouterr().out)
    assert len(shown) == 6
    assert [int(accuracy) for accuracy in printed] == pytest.approx([int(accuracy) for accuracy in shown], abs=6)


def test_own_text(capsys):
    scope = run_page("guides/own-text.md")
    assert "64 pieces" in capsys.readouterr().out
    assert scope["guard"].tasks == 1


def test_measure_forgetting(capsys):
    scope = run_page("guides/measure-forgetting.md")
    assert str(scope["report"]) in capsys.readouterr().out
    assert 0 < scope["lost"].error < scope["lost"].value and scope["report"].rows[0].bits_before is None


def test_adding_ones_own():
    with mock.patch.dict(RULES), mock.patch.object(base, "_conventions", registered_conventions()):  # for other tests
        run_page("guides/extending.md")


def test_a_measure_of_ones_own():
    run_page("guides/new-measure.md")


def test_gotchas():
    run_page("gotchas.md")


def test_no_page_has_code_that_no_test_runs():
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    with_code = [
        path for path in DOCS.rglob("*.md") if path.parent.name != "measures" and "```python\n" in path.read_text()
    ]
    assert with_code
    assert [path.name for path in with_code if path.name not in tests] == []
