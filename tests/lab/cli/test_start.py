"""What comes before torch: the help, the version, and Ctrl-C while it loads."""

import json

from anchorhold_lab.cli.commands.making_runs import search
from anchorhold_lab.experiments.strengths import strength_search
from tests.calling import python

MISTAKES = (["run", "--nosuch"], ["run", "permuted-digits", "--seeds", "1000000000"])
HELPS = (
    ["--help"],
    ["--version"],
    ["run", "--help"],
    ["search", "-h"],
    ["measures", "-h"],
    *(["runs", *words, "-h"] for words in ([], ["list"], ["show"], ["compare"])),
    *(["data", *words, "-h"] for words in ([], ["list"], ["fetch"])),
    *MISTAKES,
)

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from anchorhold_lab.cli.app import app

for command in json.loads(sys.argv[1]):
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    heavy = [name for name in ("torch", "numpy", "matplotlib", "pandas") if name in sys.modules]
    print(json.dumps([shown.exit_code, heavy]))
"""


def test_help_and_mistakes_in_options_come_without_torch():
    told = python(PROGRAM, json.dumps(HELPS))
    assert told.returncode == 0, told.stderr
    found = dict(zip(map(" ".join, HELPS), map(json.loads, told.stdout.splitlines()), strict=True))
    assert found == {" ".join(line): [2 if line in MISTAKES else 0, []] for line in HELPS}


def test_the_help_of_search_says_the_numbers_that_it_takes():
    assert len(strength_search.TEST_SEEDS) == len(strength_search.SEARCH_SEEDS) == search.USUAL_SEEDS
    assert strength_search.SEARCH_SEEDS[0] == search.FIRST_SEARCH_SEED
    assert strength_search.FINALISTS == search.FINALISTS


INTERRUPTED = """
import os, signal, sys
from anchorhold_lab.cli import main

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:  # as extensions do that end up with half of themselves
                raise ImportError("torch is broken") from None

sys.meta_path.insert(0, Impatient())
sys.argv = ["anchorhold-lab", "measures"]
main()
"""


def test_ctrl_c_while_torch_is_imported_is_one_line_and_the_usual_code():
    done = python(INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


STOPPED = """
import os, signal, typer
from anchorhold_lab.cli import exits, prepare, run

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def stopping():
    printing = exits.messages().print
    class Interrupted:
        def print(self, *given, **how):
            printing(*given, **how)
            interrupt()
    exits.messages = Interrupted
    exits.stop("Stopped.")

program = typer.Typer()
program.command(cls=exits.OneCommand)(stopping)

def and_interrupt(**how):
    try:
        program(**how)
    finally:
        interrupt()

prepare()
run("program", and_interrupt)
"""


def test_ctrl_c_after_a_command_has_said_that_it_was_stopped_says_nothing():
    done = python(STOPPED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")
