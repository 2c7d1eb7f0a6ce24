"""Source files: their content names runs, travels with the store, and is run for nobody who only looks."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys

import pytest

import anchorhold
from anchorhold import registry
from anchorhold.errors import ConfigurationError, DamagedError
from anchorhold_lab.cli.commands.stored_runs.comparison import compare
from anchorhold_lab.experiments import (
    SCENARIOS,
    Spec,
    Store,
    execute,
    load_source,
    paper_spec,
    register_scenario,
    search,
)
from anchorhold_lab.experiments.running.grouping import plan
from anchorhold_lab.experiments.specs.spec_fields import fields_of
from anchorhold_lab.experiments.store.listing.making_rows import rows_of_results
from anchorhold_lab.scenarios import scenario_of
from tests.lab.experiments.helpers import StopAfter, same_result
from tests.lab.experiments.study_file import OTHER, STUDY, write_study

DIGEST = hashlib.sha256(STUDY.encode()).hexdigest()[:16]


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path)


@pytest.fixture
def loaded(study):
    return load_source(study)


def unload():
    """Be like a process that has not loaded any file."""
    registry._FILES.clear()


def test_what_a_file_registers_is_known_and_its_content_names_the_runs(loaded):
    assert loaded.digest == DIGEST
    assert loaded.names == {"network": ["narrow"], "measure": ["walk"], "scenario": ["blobs"]}
    spec = paper_spec("Blobs", "Walk")
    assert (spec.scenario, spec.measure, spec.strength, spec.source) == ("blobs", "walk", 0.1, DIGEST)
    assert spec.id != dataclasses.replace(spec, seed=1).id
    assert json.loads(json.dumps(spec.to_dict()))["source"] == DIGEST
    assert Spec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    "changes", [{"scenario": "blobs"}, {"measure": "walk"}, {"watch": ("walk:far",)}, {"network": "narrow"}]
)
def test_whatever_of_a_file_a_run_names_makes_it_a_run_of_that_file(loaded, changes):
    usual = {"scenario": "split-digits", "measure": "SI"}
    assert Spec(**usual).source is None
    assert Spec(**usual | changes).source == DIGEST
    assert Spec(**usual, source=DIGEST) == Spec(**usual)  # of the file it names nothing


def test_neither_path_nor_name_of_the_file_is_in_the_id(loaded, tmp_path):
    spec = paper_spec("blobs", "SI")
    (tmp_path / "elsewhere").mkdir()
    unload()
    load_source(write_study(tmp_path / "elsewhere", name="renamed.txt"))
    assert paper_spec("blobs", "SI").id == spec.id


def test_another_content_is_another_run_and_both_are_known_side_by_side(loaded, tmp_path):
    first = paper_spec("blobs", "SI")
    second = load_source(write_study(tmp_path, OTHER))
    other = paper_spec("blobs", "SI")
    assert other.source == second.digest != DIGEST and other.id != first.id
    spread = [spec.make_scenario({}).tasks[0].train.x.std() for spec in (first, other)]
    assert spread[1] == pytest.approx(2 * spread[0])
    assert Spec.from_dict(first.to_dict()) == first  # and not a run of what is called the same in the second
    load_source(write_study(tmp_path, STUDY))
    assert paper_spec("blobs", "SI") == first


def test_a_file_is_run_once_for_each_content(tmp_path):
    path = write_study(tmp_path, f"with open({str(tmp_path / 'log')!r}, 'a') as log:\n    log.write('+')\n{STUDY}")
    for _ in range(3):
        load_source(path)
    load_source(str(path.rename(tmp_path / "moved.py")))
    assert (tmp_path / "log").read_text() == "+"


def test_things_of_two_files_are_not_mixed(loaded, tmp_path):
    imported = "from anchorhold_lab.networks import mlp, register_network"
    other = f'{imported}\n@register_network("wide")\ndef wide(scenario): ...\n'
    load_source(write_study(tmp_path, other, "other.py"))
    with pytest.raises(ConfigurationError, match=r"are registered by 2 files .*; expected one file for all that a run"):
        Spec("blobs", network="wide")
    with pytest.raises(ConfigurationError, match="No network is called 'wide'"):
        Spec("blobs", network="wide", source=DIGEST)


def test_it_is_a_module_that_knows_its_name(loaded):
    module = sys.modules[loaded.module]
    assert module.__name__ == loaded.module == f"anchorhold_source_{DIGEST}"
    assert module.Walk.__module__ == loaded.module and module.__file__ == str(loaded.place)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\ny = x / 0\n", r"study.py could not be loaded: line 3: ZeroDivisionError: division by zero\."),
        ("def f(:\n", r"study.py could not be loaded: line 1: SyntaxError: "),
        ("import not_there_at_all\n", "line 1: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("def deep():\n    raise OSError\n\ndeep()\n", r"line 2: OSError\.$"),
        ("raise ValueError('a\\nb')\n", "line 1: ValueError: a b"),
        ("print()\n", "study.py registers nothing; expected a Python file that registers"),
        (STUDY.replace('"blobs"', '"split-digits"'), "ConfigurationError: A scenario is called 'split-digits' already"),
        ("\0", "could not be loaded: .*null bytes"),
    ],
)
def test_a_file_that_cannot_be_loaded_leaves_nothing_behind(tmp_path, text, message):
    modules = set(sys.modules)
    with pytest.raises(ConfigurationError, match=message):
        load_source(write_study(tmp_path, text))
    assert "blobs" not in SCENARIOS and "walk" not in anchorhold.measures.default_measures()
    assert not [name for name in set(sys.modules) - modules if name.startswith("anchorhold_source")]


def test_what_is_no_file_of_text(tmp_path):
    with pytest.raises(ConfigurationError, match=r"There is no file .*/nowhere.py; expected a Python file"):
        load_source(tmp_path / "nowhere.py")
    with pytest.raises(ConfigurationError, match="is a folder; expected a Python file"):
        load_source(tmp_path)
    (tmp_path / "latin.py").write_bytes("x = 'é'".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        load_source(tmp_path / "latin.py")


def test_a_name_that_the_program_has_registered_itself(study):
    register_scenario("blobs", tasks=1)(lambda: scenario_of([]))
    with pytest.raises(ConfigurationError, match="A scenario is called 'blobs' already"):
        load_source(study)


def test_the_store_keeps_the_text_once(loaded, tmp_path):
    store = Store(tmp_path / "store")
    execute([paper_spec("blobs", "SI", seed=seed) for seed in range(2)], store)
    (kept,) = (store.folder / "sources").iterdir()
    assert kept.name == f"{DIGEST}.py" and kept.read_text() == STUDY
    before = kept.stat().st_mtime_ns
    execute(paper_spec("blobs", "walk"), store)
    assert kept.stat().st_mtime_ns == before
    execute(paper_spec("split-digits", "SI", epochs=1), store)
    assert len(list((store.folder / "sources").iterdir())) == 1


def test_who_has_not_loaded_the_file_can_look_at_its_runs(loaded, tmp_path):
    store = Store(tmp_path / "store")
    spec = paper_spec(
        "blobs", "walk", network="narrow", watch=("walk:far",), watch_settings={"walk:far": {"power": 2.0}}
    )
    (result,) = execute([spec], store).finished
    known = fields_of(spec)
    unload()
    (entry,) = store.entries()
    assert (entry.status, entry.damage, entry.spec) == ("finished", "", spec)
    assert entry.spec.id == spec.id and same_result(store.get(spec), result)
    assert fields_of(entry.spec) == known
    frame = store.frame()
    assert list(frame.source) == [DIGEST] and list(frame["measure.power"]) == [1.0] and len(store.curves()) == 12
    (line,) = compare(rows_of_results(store.results()))
    assert line.key["scenario"] == "blobs"
    assert plan([spec], store, 1, print)[0].members == (spec,)
    assert "blobs" not in SCENARIOS  # all this has run nothing


def test_what_is_made_from_a_file_that_is_not_loaded_says_which(loaded):
    spec = paper_spec("blobs", "walk", network="narrow")
    tasks = spec.make_scenario({})
    unload()
    told = (
        rf"Run {spec.id} with the {{}} was made from a file that is not loaded here: .* begins with {DIGEST}\. Name it"
    )
    for make, what in (
        (lambda: spec.make_scenario({}), "scenario 'blobs'"),
        (lambda: spec.make_network(tasks), "network 'narrow'"),
        (spec.make_measure, "measure 'walk'"),
    ):
        with pytest.raises(ConfigurationError, match=told.format(what)):
            make()
    with pytest.raises(ConfigurationError, match=rf"FILE.py:SCENARIO.*sources/{DIGEST}\.py"):
        paper_spec("blobs", "SI", source=DIGEST)
    with pytest.raises(ConfigurationError, match="A spec with scenario='blobs' that is not complete was made from"):
        Spec("blobs", source=DIGEST)


def test_another_version_that_is_loaded_does_not_stand_in(loaded, tmp_path):
    spec = paper_spec("blobs", "walk")
    unload()
    load_source(write_study(tmp_path, OTHER))
    assert Spec.from_dict(spec.to_dict()) == spec
    with pytest.raises(ConfigurationError, match=DIGEST):
        spec.make_measure()


@pytest.mark.parametrize("wrong", ["", "short", "G" * 16, DIGEST.upper() + "A", 3])
def test_a_source_is_a_digest(wrong):
    with pytest.raises(ConfigurationError, match=r"source=.*expected 16 hexadecimal digits"):
        Spec("split-digits", source=wrong)


def test_a_stopped_run_goes_on_with_the_text_in_its_store(loaded, tmp_path):
    spec, store = paper_spec("blobs", "SI", epochs=5), Store(tmp_path / "store")
    stop = StopAfter(4)
    assert execute(spec, store, on_event=stop.on_event, stop=stop, checkpoint_seconds=0).interrupted
    (whole,) = execute(spec, tmp_path / "whole").finished
    unload()
    (found,) = store.ids()
    (result,) = execute(store.spec(found), store).finished
    assert result.resumed == 1 and same_result(result, whole)
    assert "blobs" in SCENARIOS  # to make the run is to run its file


def test_only_the_files_of_the_runs_that_are_asked_for_are_run(loaded, tmp_path):
    store = Store(tmp_path / "store")
    execute(paper_spec("blobs", "SI"), store)
    unload()
    execute(paper_spec("split-digits", "SI", epochs=1), store)
    finished = store.spec(Store(store.folder).results()[0].spec.id)
    assert finished.scenario == "blobs"
    execute(finished, store)  # there is nothing to make
    assert "blobs" not in SCENARIOS


def test_a_run_whose_file_is_nowhere(loaded, tmp_path):
    spec = paper_spec("blobs", "SI")
    unload()
    with pytest.raises(ConfigurationError, match=rf"Run {spec.id} with the scenario 'blobs' was made from a file"):
        execute(spec, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_text_that_was_changed_in_the_store_is_never_run(loaded, tmp_path):
    spec, store = paper_spec("blobs", "SI"), Store(tmp_path / "store")
    store.keep_source(loaded.content)
    store.source_path(DIGEST).write_text(STUDY + "\nraise SystemExit('it was run')\n")
    for again in (False, True):
        if again:
            unload()
        with pytest.raises(DamagedError, match=rf"sources/{DIGEST}\.py is not the file that its name says"):
            execute(spec, store)
    assert store.source_path(DIGEST).read_text().endswith("it was run')\n")  # nor overwritten


def test_a_search_of_what_a_file_registers(loaded, tmp_path):
    quick = {"low": 1.0, "high": 1.0, "reinitialise": False, "seeds": [0], "search_seeds": [9], "epochs": 1}
    found = search("blobs", "walk", tmp_path / "store", **quick)
    assert found.test is not None
    assert {spec.source for spec in (result.spec for result in Store(tmp_path / "store").results())} == {DIGEST}


def test_a_fresh_process_lists_and_resumes(study, tmp_path):
    """The same in a process that has never seen the file, which is gone by then."""
    program = (
        "import sys; from anchorhold_lab.experiments import *; store = Store('store');"
        "(entry,) = store.entries(); print(entry.status, entry.spec.scenario, 'blobs' in SCENARIOS);"
        "print(len(execute(entry.spec, store, device='cpu').finished), 'blobs' in SCENARIOS)"
    )
    spec = _begun(study, tmp_path / "store")
    study.unlink()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["started blobs False", "1 True"], done.stderr
    assert Store(tmp_path / "store").get(spec) is not None
    assert re.fullmatch("[0-9a-f]{16}", spec.source)


def _begun(study, folder):
    load_source(study)
    spec = paper_spec("blobs", "walk")
    stop = StopAfter(2)
    assert execute(spec, folder, on_event=stop.on_event, stop=stop, checkpoint_seconds=0).interrupted
    return spec
