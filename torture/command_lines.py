"""Command lines that are typed by mistake or by nobody: each ends with a code and a line.

Every trial of ``python -m torture.command_lines`` is a child of one process that has loaded everything, and so takes
milliseconds: the command as the shell starts it, with its own standard streams, environment and folder, and limits on
its time and memory.
"""

import contextlib
import hashlib
import io
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from anchorhold_lab.cli import main as anchorhold_lab
from anchorhold_lab.cli.app import app
from anchorhold_lab.data import download
from torture.hostile_values import (
    ADDRESSES,
    DEVICES,
    ENVIRONMENTS,
    FILES,
    NUMBERS,
    PATHS,
    SETTINGS,
    STREAMS,
    TAME,
    WORDS,
)
from torture.outcome import Outcome, Verdict, main

PATIENCE = 4.0
"""Seconds of its own time after which a trial gets a Ctrl-C, which has to end it within as many again, times four."""
IDLE = 20
"""How many times as long it may be about it, since the machine may be busy with others."""
MEMORY = 8 << 30
ESCAPED = 99
"""The code of a child from which an exception escaped."""

SMALL = ("--tasks", "2", "--epochs", "1", "--hidden", "10", "--engine", "plain", "--device", "cpu")
FIRST = {
    ("run",): [("permuted-digits", *SMALL), ("split-digits", "-m", "SI", *SMALL)],
    ("search",): [("permuted-digits", "-m", "SI", "--from", "1", "--to", "1", "--no-reinit", "--seeds", "1", *SMALL)],
    ("reproduce",): [
        ("table1", "--preset", "digits", "--budget", "0", "--device", "cpu"),
        ("figure1", "--preset", "digits", "--only-report", "--store", "store"),
    ],
    ("runs", "list"): [(), ("--store", "store")],
    ("runs", "show"): [("RUN", "--store", "store"), ("", "--store", "store")],
    ("runs", "compare"): [("--store", "store")],
    ("measures",): [(), ("SOS",)],
    ("data",): [()],
    ("data", "list"): [()],
    ("data", "fetch"): [("MNIST", "--mirror", "http://127.0.0.1:1/")],
}
"""The commands, each with arguments that make it do something small."""


@dataclass(frozen=True)
class Line:
    """A command line and what surrounds it."""

    words: tuple[str, ...]
    stream: str
    environment: dict[str, str | None]

    def __str__(self) -> str:
        shown = " ".join(repr(word if len(word) < 60 else f"{word[:25]}…({len(word)})") for word in self.words)
        return f"{shown} ({self.stream}{f', {self.environment}' if self.environment else ''})"[:600]


def drawn(draw: random.Random, run: str) -> tuple[str, Line]:
    """Return a command's name and a line that calls it."""
    chosen = draw.choice(list(FIRST))
    words = [*chosen, *draw.choice(FIRST[chosen])]
    parameters = _parameters(chosen)
    for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3])):
        words += _option(draw, draw.choice(parameters)) if parameters else []
    if draw.random() < 0.1:
        words.insert(draw.randrange(len(words) + 1), draw.choice(WORDS + NUMBERS + PATHS))
    if draw.random() < 0.05:
        words.append(draw.choice(["--help", "-h", "--version", "--nosuch", "--sto"]))
    # No zero byte ever comes from a shell, and this one word stands for the id of a run that there is.
    found = tuple(run[:8] if word == "RUN" else word for word in words)
    return " ".join(chosen), Line(found, draw.choice(STREAMS), draw.choice(ENVIRONMENTS))


def _parameters(command: tuple[str, ...]) -> list[Any]:
    found: Any = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    return [each for each in found.params if each.name != "executor"]  # a cluster takes seconds to start


def _option(draw: random.Random, parameter: Any) -> list[str]:
    value = _value(draw, parameter.name or "", parameter.type.name)
    if parameter.param_type_name == "argument":
        return [value]
    name = draw.choice([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return [name] if draw.random() < 0.9 else [f"{name}={value}"]
    return [name, value] if draw.random() < 0.9 else [f"{name}={value}"]


def _value(draw: random.Random, name: str, kind: str) -> str:
    if name == "assign":
        return f"{draw.choice(SETTINGS)}={draw.choice(NUMBERS + WORDS)}" if draw.random() < 0.9 else draw.choice(WORDS)
    if name == "strength" and draw.random() < 0.5:
        return f"{draw.choice(['SI', 'SOS', 'nosuch', ''])}={draw.choice(NUMBERS)}"
    if name in ("scenario", "own_file") and draw.random() < 0.5:
        return draw.choice(FILES) + draw.choice(["", ":blobs", ":", "::x"]) * (name == "scenario")
    own = {"device": DEVICES, "mirror": ADDRESSES}.get(name)
    if own is not None and draw.random() < 0.8:
        return draw.choice(own)
    if "path" in kind.lower() or name in ("store", "data_dir", "out", "tensorboard", "own_file"):
        return draw.choice(PATHS if draw.random() < 0.8 else WORDS)
    if name in TAME and draw.random() < 0.4:
        return draw.choice(TAME[name])
    numeric = any(part in kind.lower() for part in ("int", "float", "range")) or name == "hidden"
    return draw.choice(NUMBERS if numeric and draw.random() < 0.8 else WORDS + NUMBERS)


def trials(seed: int, count: int | None = None) -> Iterator[Outcome]:
    """Call one hostile command line after another; trial k has the seed ``seed + k``.

    Args:
        seed: the first trial's.
        count: how many, without end if left out.
    """
    download.PAUSES = (0.0, 0.0, 0.0)
    _load_everything()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        ready = _prepared(root / "ready")
        run = next((ready / "store" / "runs").iterdir()).name
        for number in itertools.count(seed) if count is None else range(seed, seed + count):
            folder = root / str(number)
            shutil.copytree(ready, folder, symlinks=True, copy_function=_copied)
            for fifo in ("fifo", "fifo.py"):
                os.mkfifo(folder / fifo)
            try:
                yield _tried(folder, run, number)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _copied(source: str, target: str) -> None:
    shutil.copy2(source, target, follow_symlinks=False)


def _load_everything() -> None:
    import torch.utils.tensorboard  # noqa: F401

    import studies.benzing2020  # noqa: F401


def _prepared(folder: Path) -> Path:
    """Make a folder with a small store, and files of all kinds."""
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_text("a file\n")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nosuch")
    (folder / "full").symlink_to("/dev/full")
    (folder / "zero.py").symlink_to("/dev/zero")
    (folder / "folder.py").mkdir()
    for name, text in {
        "empty": "",
        "raises": "1 / 0",
        "exits": "import sys; sys.exit(3)",
        "syntax": "def (",
        "interrupts": "raise KeyboardInterrupt",
        "deep": "x = " + "(" * 300,
        "prints": "print('√' * 1000)",
    }.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "binary.py").write_bytes(bytes(range(256)))
    made = _ended(folder, Line(("run", "permuted-digits", "-m", "SI", *SMALL, "--store", "store"), "file", {}))
    if made.code != 0:
        raise SystemExit(f"The store could not be made: {made.errors}")
    return folder


def _tried(folder: Path, run: str, seed: int) -> Outcome:
    kind, line = drawn(random.Random(seed), run)
    result = folder / "store" / "runs" / run / "result.json"
    before = hashlib.sha256(result.read_bytes()).digest()
    ended = _ended(folder, line)
    said = (
        (ended.errors or ended.output * (ended.code == 3)).strip().splitlines()
    )  # of data, the table says what is wrong
    verdict: Verdict = "fine" if ended.code == 0 else "refused"
    detail = f"{line}: {ended.code}, {said[-1][:200] if said else 'nothing said'}"
    if not result.exists():
        return Outcome(kind, seed, "LOST", detail)
    if hashlib.sha256(result.read_bytes()).digest() != before:
        return Outcome(kind, seed, "SILENT CHANGE", detail)
    training = "starts, " in ended.errors or '"event": "' in ended.output  # which may take as long as it was asked to
    training |= "Stopped with" in ended.errors
    training |= line.stream == "all closed" and kind in ("run", "search", "reproduce")
    if ended.hung or (ended.stopped and not training):
        return Outcome(kind, seed, "HUNG", detail)
    heard = line.stream not in ("closed", "unread", "all closed")
    if (
        "Traceback (most" in ended.errors
        or "Exception ignored" in ended.errors
        or ended.code not in (0, 1, 2, 3, 4, 130, 141)
        or (ended.code not in (0, 141) and heard and not said)
        or (
            ended.code == 130
            and not ended.stopped
            and "interrupts.py" not in line.words
            and "--budget" not in str(line)
        )
    ):
        return Outcome(kind, seed, "TRACEBACK", detail)
    return Outcome(kind, seed, verdict, detail)


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    errors: str
    output: str
    stopped: bool
    """Whether it took a Ctrl-C."""
    hung: bool
    """Whether that did not help."""


def _ended(folder: Path, line: Line) -> Ended:
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _be_the_command(folder, line, output.fileno(), errors.fileno())
        stopped = hung = False
        code = _waited(child, PATIENCE)
        if code is None:
            stopped = True
            os.kill(child, signal.SIGINT)
            code = _waited(child, 4 * PATIENCE)
        if code is None:
            hung = True
            os.kill(child, signal.SIGKILL)
            code = _waited(child, PATIENCE)
        errors.seek(0)
        output.seek(0)
        told, shown = (file.read().decode("utf-8", "replace") for file in (errors, output))
        return Ended(-1 if code is None else code, told, shown, stopped, hung)


def _waited(child: int, seconds: float) -> int | None:
    """Return a child's exit code, if it ends in time."""
    end = time.monotonic() + IDLE * seconds
    while time.monotonic() < end and _own_seconds(child) < seconds:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def _own_seconds(child: int) -> float:
    """Return how long a child has computed."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _be_the_command(folder: Path, line: Line, output: int, errors: int) -> None:
    """Run the command in this process, which is a child, and end it."""
    code = ESCAPED
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os.chdir(folder)
        for name, value in line.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _take_streams(line.stream, output, errors)
        sys.argv = ["anchorhold-lab", *line.words]
        try:
            anchorhold_lab()
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        except BaseException:  # noqa: BLE001 (that is what is looked for)
            os.write(errors, traceback.format_exc().encode("utf-8", "backslashreplace"))
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _take_streams(kind: str, output: int, errors: int) -> None:
    """Make standard streams as an interpreter finds them at its start."""
    full = os.open("/dev/full", os.O_WRONLY)
    readable, unread = os.pipe()
    os.close(readable)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2({"full": full, "unread": unread}.get(kind, output), 1)
    os.dup2(errors, 2)
    closed = {"closed": (1,), "all closed": (0, 1, 2)}.get(kind, ())
    for number in closed:
        os.close(number)
    encoding = "ascii" if kind == "ascii" else "utf-8"
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = None
        if number not in closed:
            buffer = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
            stream = io.TextIOWrapper(buffer, encoding, "backslashreplace" if number == 2 else "strict")
        setattr(sys, name, stream)


if __name__ == "__main__":
    main(trials, __doc__ or "")
