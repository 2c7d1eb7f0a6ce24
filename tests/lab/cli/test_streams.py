"""Output into anything: closed, full, unread, in another encoding. Commands that need no torch show it in a moment."""

import io
import json
import os
import subprocess
import sys

import pytest

from anchorhold_lab.cli.streams import fits

ANCHORHOLD = (sys.executable, "-m", "anchorhold_lab")


def shell(redirected, *arguments, command=ANCHORHOLD, **environment):
    """Return how a command ends whose streams a shell has redirected."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *command, *arguments],
        capture_output=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_without_stderr_a_command_works_and_a_mistake_still_has_its_code():
    done = shell("2>&-", "--version")
    assert done.returncode == 0 and done.stdout.startswith(b"anchorhold-lab ")
    assert shell("2>&-", "run", "--nosuch").returncode == 2
    assert shell("2>/dev/full", "run", "--nosuch").returncode == 2
    assert shell("2>&- >&- <&-", "--version").returncode == 1


@pytest.mark.parametrize(
    ("redirected", "reason"), [(">&-", b"it is closed"), (">/dev/full", b"No space left on device")]
)
@pytest.mark.parametrize("command", ["--help", "--version"])
def test_a_stdout_that_takes_nothing_is_one_line_and_a_code(redirected, reason, command):
    done = shell(redirected, command)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: stdout cannot be written: " + reason)
    assert done.stderr.count(b"\n") == 1


def test_when_nobody_reads_on_a_command_ends_as_others_do_and_says_nothing():
    readable, unread = os.pipe()
    os.close(readable)
    done = subprocess.run(
        [*ANCHORHOLD, "--help"], stdout=unread, stderr=subprocess.PIPE, check=False, timeout=100, env=dict(os.environ)
    )
    os.close(unread)
    assert (done.returncode, done.stderr) == (141, b"")


def test_what_was_closed_is_not_given_to_the_next_file_that_is_opened(tmp_path):
    program = "import os; from anchorhold_lab.cli.streams import prepare_streams; prepare_streams(); os.open('x', 577)"
    program += "; os.write(2, b'a message'); assert os.path.getsize('x') == 0"
    done = shell("2>&- >&- <&-", command=("env", "-C", str(tmp_path), sys.executable, "-c", program))
    assert done.returncode == 0


def test_a_terminal_without_the_signs_shows_others():
    done = shell("", "run", "--help", PYTHONIOENCODING="ascii", COLUMNS="200")
    assert done.returncode == 0 and done.stderr == b""
    assert b"seeds 0, 1, ..." in done.stdout
    wrong = shell("", "run", "--√\udcff".encode("utf-8", "surrogateescape"), PYTHONIOENCODING="ascii")
    assert wrong.returncode == 2 and b"Traceback" not in wrong.stderr and b"--sqrt" in wrong.stderr


def test_a_terminal_of_no_width_still_shows_what_is_wrong():
    for width in ("0", "9" * 5000):
        done = shell("", "run", "--nosuch", COLUMNS=width)
        assert done.returncode == 2 and b"--nosuch" in done.stderr


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("97.2 ± 0.1", "ascii", b"97.2 +/- 0.1"),
        ("√(Ω) … ← θ²", "ascii", b"sqrt(Omega) ... <- theta^2"),
        ("naïve 名", "ascii", rb"na\xefve \u540d"),
        ("a folder \udcff\udc80", "utf-8", rb"a folder \xff\x80"),
        ("± stays", "utf-8", "± stays".encode()),
        ("± stays", "latin-1", b"\xb1 stays"),
    ],
)
def test_signs_that_an_encoding_lacks(text, encoding, shown):
    assert text.encode(encoding, "anchorhold-readable") == shown
    assert fits("plain", io.TextIOWrapper(io.BytesIO(), "ascii"))


def test_json_stays_json_where_a_path_is_no_text(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = "n\udcffame"
    told = [json.loads(line) for line in call("data", "--data-dir", folder, "--json").stdout.splitlines()]
    assert {each["folder"] for each in told} == {folder}
