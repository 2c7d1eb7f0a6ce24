import json

import pytest

from tests.lab.cli.small import small_spec, small_store

SPECS = [small_spec("SI", 0), small_spec("SI", 1), small_spec("SOS", 0), small_spec("EWC", 0, tolerance=0.1, kept=50)]
FAILS = small_spec("fine-tune", 0, optimizer="sgd", learning_rate=1e30, momentum=0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("store"), *SPECS, FAILS)[0]


@pytest.fixture
def plot(call, store):
    return lambda *arguments: call("runs", "plot", *arguments, "--store", store.folder)


def told(shown):
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


def test_all_finished_runs_are_drawn_or_those_that_are_asked_for(plot, tmp_path):
    picture = tmp_path / "all.png"
    found = told(plot("--out", picture, "--json"))
    assert found["picture"] == str(picture) and picture.read_bytes().startswith(b"\x89PNG")
    assert set(found["runs"]) == {spec.id for spec in SPECS}
    assert found["what"] == ["accuracy", "forgetting", "trade-off", "following", "matrix"]
    asked = told(plot(SPECS[0].id[:10], SPECS[2].id, "-o", tmp_path / "two.pdf", "--what", "forgetting", "--json"))
    assert (set(asked["runs"]), asked["what"]) == ({SPECS[0].id, SPECS[2].id}, ["forgetting"])
    assert (tmp_path / "two.pdf").read_bytes().startswith(b"%PDF")
    filtered = told(plot("-m", "SI", "--where", "seed=1", "-o", tmp_path / "one.png", "--json"))
    assert filtered["runs"] == [SPECS[1].id]
    said = plot("-m", "SI", "-o", tmp_path / "said.png").stdout.replace("\n", "")
    assert said.endswith("said.png: accuracy, forgetting, trade-off, matrix of 2 runs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FAILS.id], f"Run {FAILS.id} has no result to draw; `anchorhold-lab runs show {FAILS.id[:8]}` says why"),
        (["zzz"], "begins with 'zzz'"),
        (["-m", "MAS"], "No run here has measure 'MAS'"),
        ([SPECS[0].id, "-m", "SOS"], "No run here has measure 'SOS'"),
        (["--what", "everything"], "'everything' cannot be drawn; expected one of accuracy"),
        (["-m", "SI", "--what", "following"], "none was looked at within tasks"),
    ],
)
def test_mistakes_are_explained_in_a_line(plot, tmp_path, arguments, message):
    refused = plot(*arguments, "-o", tmp_path / "picture.png")
    assert refused.exit_code == 2 and message in refused.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())
