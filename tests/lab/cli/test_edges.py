"""Values that nobody means: each is refused in a line, with its code, and nothing is made."""

import json
import re

import pytest

from tests.lab.cli.small import OPTIONS, small_spec, small_store

LONG = "x" * 300
DIGITS = "9" * 4000
RUN = ("run", "permuted-digits", *OPTIONS)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("runs", "list", "--store", LONG), 4, "File name too long. Give it a shorter name."),
        ((*RUN, "--store", LONG), 4, "File name too long"),
        ((*RUN, "--store", f"new/{LONG}/store"), 4, "File name too long"),
        (("run", f"{LONG}.py:blobs"), 2, "File name too long"),
        (("measures", "--with", LONG), 2, "File name too long"),
        (("data", "fetch", "MNIST", "--data-dir", LONG, "--mirror", "http://127.0.0.1:1/"), 3, "File name too long"),
        ((*RUN, "--tensorboard", LONG), 2, "File name too long"),
        ((*RUN, "--store", "~nosuchuser/store"), 2, "the home folder of ~nosuchuser is not known"),
        (("data", "--data-dir", "~nosuchuser"), 2, "the home folder of ~nosuchuser is not known"),
        (("run", "~nosuchuser/study.py:blobs"), 2, "the home folder of ~nosuchuser is not known"),
        ((*RUN, "--device", "hpu"), 2, "--device 'hpu' cannot be used: .* Try cpu, or leave it out"),
        ((*RUN, "--device", "nosuch"), 2, "--device 'nosuch' cannot be used"),
        ((*RUN, "--hidden", DIGITS), 2, r"--hidden '9+…9+' \(4002 characters\): expected widths"),
        ((*RUN, "--seed", DIGITS), 2, "is not in the range 0<=x<=9223372036854775807"),
        ((*RUN, "--seed", "9" * 5000), 2, "is too long; expected at most 4096"),
        ((*RUN, "--epochs", "9" * 400), 2, r"epochs=9+…9+ \(400 characters\): expected a whole number, 1 to"),
        ((*RUN, "--batch-size", "9" * 40), 2, "batch_size=9+: expected a whole number, 1 to"),
        ((*RUN, "--strength", DIGITS), 2, "strength=inf: expected a number from 0 to 1e38"),
        (
            (*RUN, "-m", "SI", "--set", f"damping={DIGITS}"),
            2,
            r"damping=9+…9+ \(4000 characters\): expected",
        ),
        ((*RUN, "-m", "SI", "--set", f"damping={'(' * 4000}"), 2, "SI takes another kind of value there"),
        ((*RUN, "-m", "SOS", "--set", "alpha=1e308"), 2, r"alpha=1e\+308: expected .*no larger than 1e\+38"),
        ((*RUN, "-m", "SI", "--set", "damping=1e308"), 2, r"damping=1e\+308: expected .*no larger than 1e\+38"),
        ((*RUN, "--lr", "1e300"), 2, r"learning_rate=1e\+300: expected"),
        ((*RUN, "--seeds", "1000000000"), 2, "1000000000 is not in the range 1<=x<=10000"),
        (("search", "permuted-digits", "--seeds", "1000000000"), 2, "is not in the range 1<=x<=10000"),
        (("measures", "a" * 4000), 2, r"No measure is called 'a+…a+' \(4002 characters\)"),
        (("measures", "--with", "/dev/zero"), 2, "/dev/zero is a device or a pipe; expected a Python file"),
        ((*RUN, "--store", "/dev/null"), 4, "/dev/null is a file; expected a folder"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_values_that_nobody_means(call, tmp_path, line, code, said):
    shown = call(*line)
    assert shown.exit_code == code
    assert re.search(said, " ".join(shown.stderr.replace("│", " ").split()))
    assert len(shown.stderr) < 7000  # with a number that fills the lines of a frame
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_single_task_forgets_nothing_that_could_be_said(call, tmp_path):
    small_store(tmp_path, small_spec(tasks=1))
    for line in (("list",), ("compare",), ("show", small_spec(tasks=1).id)):
        shown = call("runs", *line, "--store", tmp_path)
        assert shown.exit_code == 0 and "nan" not in shown.stdout
        assert " - " in shown.stdout
    assert json.loads(call("runs", "list", "--store", tmp_path, "--json").stdout)["forgetting"] is None


def test_a_folder_whose_name_is_no_text_holds_runs_like_any_other(call, tmp_path):
    store = tmp_path / "n\udcffame"
    assert call("run", "permuted-digits", "-m", "SI", *OPTIONS, "--store", store).exit_code == 0
    shown = call("runs", "list", "--store", store, "--json")
    assert shown.exit_code == 0 and json.loads(shown.stdout)["status"] == "finished"
