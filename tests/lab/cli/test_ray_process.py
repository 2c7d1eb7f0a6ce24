"""The command with Ray as a shell sees it: its output is its own, and signals stop it as they do without Ray."""

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from anchorhold_lab.experiments import Store, execute, paper_spec
from tests.lab.experiments.helpers import same_result
from tests.limits import limit, patient_ray

ANCHORHOLD = (sys.executable, "-m", "anchorhold_lab")
# The token is that of the cluster below; without one, Ray would write some into the home folder.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex()}
ENVIRONMENT = {**os.environ, **TOKEN, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **patient_ray()}
ENVIRONMENT.pop("RAY_ADDRESS", None)
LONG = ("--tasks", "3", "--epochs", "4000", "--hidden", "16", "--device", "cpu", "--json", "--executor", "ray")
GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "ray.md").read_text(encoding="utf-8")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def ended(process):
    """Make sure that a process is gone afterwards."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="module")
def address():
    """A cluster of one core, as `ray start` makes it."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # names of sockets must be short
    port = free_port()
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    command += [f"--port={port}", "--node-ip-address=127.0.0.1", f"--ray-client-server-port={free_port()}"]
    command += [f"--temp-dir={folder}", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)) as head:
        told = []
        for line in head.stdout:
            told.append(line)
            if "Ray runtime started" in line:
                break
        else:
            pytest.fail("".join(told))
        yield f"127.0.0.1:{port}"
        head.terminate()
        head.stdout.read()
    shutil.rmtree(folder)


@contextlib.contextmanager
def running(store, *options):
    """A run that takes minutes, from its first progress on."""
    command = [*ANCHORHOLD, "run", "permuted-digits", *LONG, "--store", store, *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )
    with ended(process):
        wait_for("progress", process)
        yield process


def wait_for(event, process):
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            return
    pytest.fail(process.stderr.read())


def worker_of(store):
    """Return the process that makes a run: the one that holds a store of its own."""
    (run,) = Store(store).ids()
    for spec in Path(tempfile.gettempdir()).glob(f"anchorhold-worker-*/runs/{run}/lock"):
        inode = spec.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            if line.split()[5].endswith(f":{inode}"):
                return int(line.split()[4])
    return pytest.fail("nobody makes it")


STOPPED = "Stopped with 0 of 1 runs finished. The same command goes on.\n"


@pytest.mark.nightly
def test_ctrl_c_saves_and_leaves_nothing_running(tmp_path):
    with running(tmp_path) as child:
        os.killpg(child.pid, signal.SIGINT)  # as a terminal sends it: to all that the command has started, too
        told, complaints = child.communicate(timeout=limit(30))
    assert (child.returncode, complaints) == (130, STOPPED)
    assert json.loads(told.splitlines()[-1])["interrupted"]
    assert list(tmp_path.glob("runs/*/within-task.safetensors"))
    assert not list(Path(tempfile.gettempdir()).glob(f"anchorhold-worker-*/runs/{Store(tmp_path).ids()[0]}"))


@pytest.mark.nightly
def test_a_request_to_terminate_saves_also_after_a_worker_was_killed(tmp_path, address):
    with running(tmp_path, "--address", address) as child:
        os.kill(worker_of(tmp_path), signal.SIGKILL)
        wait_for("started", child)
        wait_for("progress", child)
        child.terminate()
        told, complaints = child.communicate(timeout=limit(30))
    assert (child.returncode, complaints) == (143, STOPPED)  # and nothing of Ray's is on stdout, which is all JSON
    assert [json.loads(line) for line in told.splitlines()][-1]["interrupted"]
    assert list(tmp_path.glob("runs/*/within-task.safetensors"))


def raylet_of(process):
    """Return the process of Ray's that a command has started, and that starts the workers."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
            if name == "raylet" and int(rest.split()[1]) == process.pid:
                return int(status.parent.name)
    return pytest.fail("there is none")


@pytest.mark.nightly
def test_a_ray_that_ends_by_itself_is_one_line(tmp_path):
    with running(tmp_path) as child:
        os.kill(raylet_of(child), signal.SIGKILL)
        _, complaints = child.communicate(timeout=limit(30))
    assert child.returncode == 1
    (line,) = complaints.splitlines()
    assert line.startswith("error: Ray has ended while runs were under way: ")
    assert line.endswith("the same command goes on from the checkpoints.")


@pytest.mark.nightly
def test_the_guides_command_for_a_cluster(tmp_path, address):
    (command,) = re.findall(r"```sh\nanchorhold-lab (.* --address .*)\n```", GUIDE)
    done = subprocess.run(
        [*ANCHORHOLD, *shlex.split(command.replace("10.0.0.1:6379", address)), "--store", tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=limit(30),
    )
    assert done.returncode == 0, done.stderr
    found = Store(tmp_path / "store").results()
    assert [result.spec for result in found] == [paper_spec("permuted-digits", "SI", epochs=1, hidden=(20,))]
    (alone,) = execute(found[0].spec, tmp_path / "local", device="cpu").finished
    assert same_result(found[0], alone)
