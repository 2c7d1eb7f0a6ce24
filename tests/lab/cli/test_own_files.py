"""Files of one's own on the command line."""

import json
import re

import pytest

from anchorhold import registry
from anchorhold_lab.experiments import SCENARIOS, Store
from tests.lab.cli.small import OPTIONS
from tests.lab.experiments.study_file import OTHER, STUDY, write_study

WITHOUT_SCENARIO = STUDY[: STUDY.index("@register_scenario")]


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def run(call, store):
    def in_store(*arguments):
        return call(*arguments, "--store", store.folder, "--device", "cpu")

    return in_store


@pytest.mark.parametrize("name", ["blobs", "Blobs", "clouds"])
def test_a_scenario_by_its_name_or_that_of_its_function(run, study, store, name):
    shown = run("run", f"{study}:{name}", "-m", "SI", "-m", "walk")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[0].strip() == "blobs"
    specs = [result.spec for result in store.results()]
    assert {(spec.measure, spec.strength) for spec in specs} == {("SI", 2.0), ("walk", 0.1)}
    assert {spec.source for spec in specs} == {path.stem for path in (store.folder / "sources").iterdir()}


def test_a_path_that_is_not_absolute(run, study, monkeypatch):
    monkeypatch.chdir(study.parent)
    assert run("run", "study.py:blobs", "-m", "SI").exit_code == 0
    assert "skipped: finished already" in run("run", "./study.py:blobs", "-m", "SI").stderr


def test_another_content_is_another_run_and_a_copy_is_not(run, call, study, store, tmp_path):
    run("run", f"{study}:blobs", "-m", "SI")
    copied = write_study(tmp_path, name="copy.py")
    assert "skipped: finished already" in run("run", f"{copied}:blobs", "-m", "SI").stderr
    write_study(tmp_path, OTHER)
    assert "skipped" not in run("run", f"{study}:blobs", "-m", "SI").stderr
    assert len(store.results()) == 2
    registry._FILES.clear()
    assert "source" in call("runs", "compare", "--store", store.folder).stdout.splitlines()[1]


def test_what_has_not_loaded_the_file_lists_and_shows_its_runs(run, call, study, store):
    run("run", f"{study}:blobs", "-m", "walk", "--network", "narrow")
    registry._FILES.clear()
    study.unlink()
    (found,) = store.ids()
    listed = call("runs", "list", "--store", store.folder)
    assert (listed.exit_code, listed.stderr) == (0, "") and "blobs" in listed.stdout and "walk" in listed.stdout
    shown = call("runs", "show", found, "--store", store.folder)
    assert shown.exit_code == 0 and "narrow" in shown.stdout and "measure.power" in shown.stdout
    assert json.loads(call("runs", "show", found, "--store", store.folder, "--json").stdout)["status"] == "finished"
    assert call("runs", "compare", "--store", store.folder).exit_code == 0
    assert "blobs" not in SCENARIOS
    again = run("run", f"{store.source_path(store.spec(found).source)}:blobs", "-m", "walk", "--network", "narrow")
    assert "skipped: finished already" in again.stderr  # the text in the store is the file


def test_a_search(run, study, store):
    options = ("-m", "walk", "--no-reinit", "--from", "0.1", "--to", "0.1", "--search-seeds", "1", "--seeds", "1")
    done = run("search", f"{study}:clouds", *options, "--epochs", "1")
    assert done.exit_code == 0, done.stderr
    assert "walk on blobs: accuracy" in done.stdout
    assert all(result.spec.source for result in store.results())


def test_measures_and_networks_beside_another_scenario(run, study, store):
    command = ("run", "permuted-digits", *OPTIONS[:-2], "--with", study)
    done = run(*command, "-m", "walk", "-m", "SI", "-c", "walk=1", "--set", "walk.power=2")
    assert done.exit_code == 0, done.stderr
    found = {result.spec.measure: result.spec for result in store.results()}
    assert found["walk"].source and found["walk"].measure_settings["power"] == 2
    assert found["SI"].source is None  # it has nothing of the file
    assert run(*command, "-m", "SI", "--network", "narrow").exit_code == 0
    assert {result.spec.network for result in store.results()} == {None, "narrow"}
    assert run("search", "permuted-digits", *OPTIONS[:-2], "--with", study, "-m", "wakl").exit_code == 2


def test_the_list_of_measures_has_those_of_a_file(call, study):
    listed = call("measures", "--with", study)
    assert listed.exit_code == 0
    assert "How far a weight is from zero." in listed.stdout and " Walk, extra cost: none" in listed.stdout
    one = call("measures", "walk", "--with", study)
    assert one.stdout.splitlines()[0] == "walk: Walk" and "power" in one.stdout
    as_json = call("measures", "walk", "--with", study, "--json")
    assert json.loads(as_json.stdout)["settings"] == {"power": 1.0}


def test_what_a_file_prints_does_not_get_among_the_results(run, tmp_path):
    file = write_study(tmp_path, "print('hello')\n" + STUDY)
    shown = run("run", f"{file}:blobs", "-m", "SI", "--json")
    assert shown.exit_code == 0 and "hello" in shown.stderr
    assert all(json.loads(line) for line in shown.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{study}:blob"], "No scenario of {study} is called 'blob'. Did you mean 'blobs'? There are blobs, clouds."),
        (
            ["{study}"],
            "Which scenario of {study}? It registers blobs; expected one of them after a colon, as in {study}:blobs.",
        ),
        (["{study}:"], "Which scenario of {study}? It registers blobs"),
        (["{study}:blobs", "--with", "{study}"], "expected one file for all that a run is made from"),
        (["{part}:blobs"], "registers no scenario, only the network narrow, the measure walk; expected one with"),
        (["{folder}:blobs"], "{folder} is a folder; expected a Python file"),
        (["{folder}/nowhere.py:blobs"], "There is no file {folder}/nowhere.py"),
        (["{folder}/nowhere.py"], "There is no file {folder}/nowhere.py"),
        (["permuted-digits", "--with", "{folder}/nowhere.py"], "There is no file {folder}/nowhere.py"),
        (["{broken}:blobs"], "{broken} could not be loaded: line 2: ZeroDivisionError: division by zero."),
        (["{text}:blobs"], "{text} could not be loaded: line 1: SyntaxError: invalid syntax."),
        (["{bytes}:blobs"], "{bytes} is not UTF-8 text"),
        (["{study}:blobs", "-m", "SI", "--network", "narow"], "No network is called 'narow'. Did you mean 'narrow'"),
        (["permuted-digits", "-m", "walk"], "No measure is called 'walk'"),
        (["permuted-digits", "--network", "cnn", "--hidden", "9"], "learned by the paper's CNN, which has no hidden"),
        (["{raising}:blobs", "-m", "SI"], "could not be made: line 42: NameError: name 'nothing' is not defined. That"),
    ],
)
@pytest.mark.parametrize("command", ["run", "search"])
def test_mistakes_are_explained_in_a_line(run, study, store, tmp_path, command, arguments, message):
    files = {"study": study, "folder": tmp_path}
    texts = {"part": WITHOUT_SCENARIO, "broken": "x = 1\nx / 0\n", "text": "dear diary\n"}
    texts["raising"] = STUDY.replace("    generator = torch", "    nothing\n    generator = torch")
    files |= {name: write_study(tmp_path, text, f"{name}.py") for name, text in texts.items()}
    files["bytes"] = tmp_path / "bytes.py"
    files["bytes"].write_bytes(b"\xff\xfe\x00")
    shown = run(command, *(word.format(**files) for word in arguments))
    assert shown.exit_code == 2, shown.stderr
    assert message.format(**files) in shown.stderr
    assert len(shown.stderr.splitlines()) == 1 and shown.stdout == ""
    assert not list(store.folder.glob("runs/*"))


def test_measures_of_a_file_that_is_not_there(call, tmp_path):
    shown = call("measures", "--with", tmp_path / "nowhere.py")
    assert shown.exit_code == 2 and f"There is no file {tmp_path}/nowhere.py" in shown.stderr


def test_a_strength_that_the_file_does_not_give(run, study):
    shown = run("run", f"{study}:blobs", "-m", "EWC")
    assert shown.exit_code == 2 and "No strength is known for 'EWC' on 'blobs'; give one" in shown.stderr


def test_a_measure_that_raises_fails_its_own_runs_alone(run, store, tmp_path):
    file = tmp_path / "raising.py"
    file.write_text(
        "import dataclasses\n"
        "from typing import ClassVar\n"
        "import anchorhold\n\n\n"
        '@anchorhold.register_measure("raising")\n'
        "@dataclasses.dataclass(frozen=True)\n"
        "class Raising(anchorhold.measures.WeightMeasure):\n"
        '    choose_when: ClassVar[str] = "never"\n\n'
        "    def importance(self, parameter):\n"
        '        return parameter + "one"\n'
    )
    shown = run("run", "permuted-digits", "-m", "raising", "-m", "SI", "-c", "raising=1", "--with", file, *OPTIONS)
    assert shown.exit_code == 1
    assert [result.spec.measure for result in store.results()] == ["SI"]
    (failed,) = [entry for entry in store.entries() if entry.status == "failed"]
    assert re.match(r"TypeError: .* \(in importance, raising\.py line 12\)\.$", failed.failures[-1].reason)


def test_two_files_beside_a_scenario_are_refused_and_one_named_twice_is_one(run, call, study, store, tmp_path):
    other = write_study(tmp_path, OTHER, "other.py")
    for command in (("run", "permuted-digits", "-m", "walk", *OPTIONS[:-2], "-c", "1"), ("search", "permuted-digits")):
        shown = run(*command, "--with", study, "--with", other)
        assert shown.exit_code == 2
        assert f"--with {study} --with {other}: expected one file for all that a run is made from." in shown.stderr
    assert call("measures", "--with", study, "--with", other).exit_code == 2
    assert store.ids() == [] and "walk" not in call("measures").stdout
    assert "walk" in call("measures", "--with", study, "--with", study).stdout
