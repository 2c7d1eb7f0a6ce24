"""The command as a shell sees it: a process of its own, with its output, its exit code and its signals."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

import anchorhold
import anchorhold_lab
from anchorhold_lab.experiments import Store, paper_spec
from tests.lab.cli.small import OPTIONS
from tests.lab.data.mirror import serving
from tests.limits import limit

ANCHORHOLD = (sys.executable, "-m", "anchorhold_lab")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "no_proxy": "*"}


def run(*arguments, **options):
    return subprocess.run(
        [str(a) for a in arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=limit(20),
        **options,
    )


def test_the_first_thing_that_a_new_user_tries(tmp_path):
    done = run(*ANCHORHOLD, "run", "permuted-digits", *OPTIONS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(Store(tmp_path / "anchorhold-runs").results()) == 1
    assert done.stdout.split()[:2] == ["permuted-digits", "measure"]


def test_the_help_shows_the_commands_and_the_exit_codes():
    done = run(*ANCHORHOLD, "--help")
    assert done.returncode == 0
    assert all(f"{code} " in done.stdout for code in (0, 1, 2, 3, 4, 130, 143))
    assert all(name in done.stdout for name in ("run", "search", "runs", "measures", "data"))


def test_ctrl_c_while_the_commands_are_loaded():
    program = """
import os, signal, sys
from anchorhold_lab.cli import main

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "anchorhold_lab.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
main()
"""
    done = run(sys.executable, "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.nightly
def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_result(call, tmp_path):
    changes = {"tasks": 3, "epochs": 40, "hidden": (16,), "engine": "plain"}
    options = ["--tasks", "3", "--epochs", "40", "--hidden", "16", "--engine", "plain", "--device", "cpu", "--json"]
    command = ["run", "permuted-digits", "-m", "SI", *options, "--store"]
    spec = paper_spec("permuted-digits", "SI", **changes)

    with subprocess.Popen(
        [*ANCHORHOLD, *command, tmp_path / "stopped"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as child:
        told = []
        for line in child.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "progress" and told[-1]["task"] == 1:
                child.send_signal(signal.SIGINT)
                break
        told += [json.loads(line) for line in child.stdout]
        complaints = child.stderr.read()
    assert child.returncode == 130
    assert complaints == "Stopped with 0 of 1 runs finished. The same command goes on.\n"
    assert told[-1]["event"] == "summary" and told[-1]["interrupted"]

    again = call(*command, tmp_path / "stopped")
    assert again.exit_code == 0
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert events[0]["event"] == "started" and events[0]["resumed"]
    assert next(event for event in events if event["event"] == "progress")["task"] >= 1
    assert call(*command, tmp_path / "whole").exit_code == 0
    stopped, whole = (Store(tmp_path / name).get(spec.id) for name in ("stopped", "whole"))
    assert stopped.matrix == whole.matrix and stopped.state_digest == whole.state_digest
    assert (stopped.resumed, whole.resumed) == (1, 0)


LONG = ("--tasks", "3", "--epochs", "4000", "--hidden", "16", "--engine", "plain", "--device", "cpu", "--json")


@contextmanager
def running(store):
    """A run that takes minutes, from its first progress on."""
    with subprocess.Popen(
        [*ANCHORHOLD, "run", "permuted-digits", *LONG, "--store", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as child:
        for line in child.stdout:
            if '"progress"' in line:
                break
        yield child


def test_a_request_to_terminate_saves_too(tmp_path):
    with running(tmp_path) as child:
        child.terminate()
        told, complaints = child.communicate(timeout=limit(20))
    assert child.returncode == 143
    assert complaints == "Stopped with 0 of 1 runs finished. The same command goes on.\n"
    assert json.loads(told.splitlines()[-1])["interrupted"]
    assert list(tmp_path.glob("runs/*/within-task.safetensors"))


def test_many_ctrl_c_stop_at_once_without_noise(tmp_path):
    with running(tmp_path) as child:
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.02)
        complaints = child.stderr.read()
    assert child.returncode == 130
    assert complaints in ("Interrupted.\n", "Stopped with 0 of 1 runs finished. The same command goes on.\n")


def test_the_version():
    done = run(*ANCHORHOLD, "--version")
    both = f"anchorhold-lab {anchorhold_lab.__version__} (anchorhold {anchorhold.__version__})\n"
    assert (done.returncode, done.stdout) == (0, both)


def test_ctrl_c_while_fetching_keeps_what_has_arrived(tmp_path):
    with serving() as mirror:
        mirror.files["train-images-idx3-ubyte.gz"] = bytes(9912422)
        mirror.faults = [("drop", 500_000), ("stall", 0)]  # the second request comes once the first has been kept
        command = [*ANCHORHOLD, "data", "fetch", "MNIST", "--data-dir", tmp_path, "--mirror", mirror.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as p:
            assert mirror.stalled.wait(60)
            p.send_signal(signal.SIGINT)
            _, complaints = p.communicate(timeout=limit(20))
        mirror.released.set()
    assert p.returncode == 130
    assert complaints.strip() == "Interrupted."
    (part,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert part.name == "train-images-idx3-ubyte.gz.part"
    assert part.stat().st_size == 500_000
