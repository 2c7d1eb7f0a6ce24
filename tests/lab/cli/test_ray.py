"""The commands on a real Ray, and the guide's."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from anchorhold import registry
from anchorhold_lab.cli.exits import ExitCode
from anchorhold_lab.experiments import SCENARIOS, Store, execute, load_source, paper_spec
from anchorhold_lab.experiments.on_ray.ray_executor import execute_on_ray
from tests.lab.cli.small import OPTIONS
from tests.lab.experiments.helpers import StopAfter, same_result
from tests.lab.experiments.study_file import STUDY, write_study

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "ray.md").read_text(encoding="utf-8")


def test_the_runs_are_those_of_the_local_executor(call, on_ray, tmp_path):
    command = ("run", "permuted-digits", "-m", "SI", "-m", "EWC", "--seeds", "2", *OPTIONS)
    done = call(*command, "--executor", "Ray", "--json", "--store", tmp_path / "ray")
    assert (done.exit_code, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [events.count(event) for event in events if event["event"] == "finished"] == [1] * 4
    assert events[-1]["event"] == "summary" and events[-1]["finished"] == 4
    assert call(*command, "--store", tmp_path / "local").exit_code == 0
    local = Store(tmp_path / "local").results()
    assert len(local) == 4 and all(same_result(Store(tmp_path / "ray").get(result.spec), result) for result in local)


@pytest.mark.nightly
def test_a_search_makes_its_runs_there(call, on_ray, tmp_path):
    options = ("-m", "SI", "--from", "10", "--to", "20", "--no-reinit", "--seeds", "1", *OPTIONS, "--json")
    outcomes = []
    for executor in ("ray", "local"):
        store = tmp_path / executor
        done = call("search", "permuted-digits", *options, "--executor", executor, "--store", store)
        assert done.exit_code == 0, done.stderr
        outcomes.append({**json.loads(done.stdout.splitlines()[-1]), "store": None})
    assert outcomes[0] == outcomes[1]


@pytest.mark.nightly
def test_a_file_of_ones_own_travels_to_the_workers(call, on_ray, tmp_path):
    file = write_study(tmp_path)
    command = (
        "run",
        f"{file}:blobs",
        "-m",
        "walk",
        "-m",
        "SI",
        "--seeds",
        "2",
        "--network",
        "narrow",
        "--device",
        "cpu",
    )
    done = call(*command, "--executor", "ray", "--store", tmp_path / "ray")
    assert done.exit_code == 0, done.stderr
    assert call(*command, "--store", tmp_path / "local").exit_code == 0
    local = Store(tmp_path / "local").results()
    assert len(local) == 4 and all(same_result(Store(tmp_path / "ray").get(result.spec), result) for result in local)
    assert Store(tmp_path / "ray").source(local[0].spec.source) == file.read_bytes()


def test_a_run_of_a_file_goes_on_there_with_the_text_in_the_store(on_ray, tmp_path):
    load_source(write_study(tmp_path))
    spec, store = paper_spec("blobs", "walk", epochs=5), Store(tmp_path / "store")
    stop = StopAfter(4)
    assert execute(spec, store, on_event=stop.on_event, stop=stop, checkpoint_seconds=0).interrupted
    registry._FILES.clear()
    (result,) = execute_on_ray(store.spec(spec.id), store, device="cpu").finished
    assert result.resumed == 1
    assert "blobs" not in SCENARIOS  # the workers alone have run the file


def test_a_file_that_a_worker_cannot_load_is_told_before_anything_runs(call, on_ray, tmp_path):
    here = f"import os\nif os.getpid() != {os.getpid()}:\n    raise OSError('not on this node')\n"
    file = write_study(tmp_path, here + STUDY)
    done = call(
        "run", f"{file}:blobs", "--executor", "ray", "-c", "1", "--store", tmp_path / "store", "--device", "cpu"
    )
    assert done.exit_code == ExitCode.USAGE
    assert "could not be loaded: line 3: OSError: not on this node. That was on node" in done.stderr
    assert Store(tmp_path / "store").ids() == []


def test_an_address_is_for_ray_alone(call, tmp_path):
    done = call("run", "permuted-digits", *OPTIONS, "--address", "auto", "--store", tmp_path)
    assert done.exit_code == ExitCode.USAGE
    assert "--address auto: a Ray cluster's; expected --executor ray beside it." in done.stderr


def test_an_executor_that_there_is_not(call, tmp_path):
    done = call("run", "permuted-digits", *OPTIONS, "--executor", "rai", "--store", tmp_path)
    assert done.exit_code == ExitCode.USAGE
    assert "No executor is called 'rai'. Did you mean 'ray'? There are local, ray." in done.stderr


@pytest.mark.nightly
def test_the_guide(call, on_ray, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    local, by_address = re.findall(r"```sh\nanchorhold-lab (.*)\n```", GUIDE)
    assert "--address 10.0.0.1:6379" in by_address
    for command in (local, by_address.partition(" --address")[0]):  # an address is tested in a process of its own
        assert call(*shlex.split(command)).exit_code == 0
    assert len(Store("anchorhold-runs").results()) == 5
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL):
        exec(compile(block, "ray.md", "exec"), scope)
    assert "c = " in capsys.readouterr().out
    for spec in scope["specs"]:
        (result,) = execute(spec, tmp_path / "local").finished
        assert same_result(Store("results").get(spec), result)
