"""Count how many small mistakes in the library the tests by day catch, and how many only those by night.

A trial draws lines of src/anchorhold that tests run, and changes one operator or constant in a copy of the library at
a time. It runs the tests that run that line, those by day first; where they pass, those by night. It reads which test
runs which line from coverage's data, for which pytest-cov is needed besides what `make test` installs:

    python -m pytest --cov=anchorhold --cov-context=test --numprocesses 2 --dist loadfile
    python scripts/mutation_trial.py --mutants 100 --seed 0
"""

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 (for the processes that are forked)
import transformers  # noqa: F401
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "anchorhold"
OPERATORS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
"""What each operator is written as, and what it becomes."""


@dataclass(frozen=True)
class Mutant:
    """One change of a file, between two places in its text."""

    file: Path
    line: int
    start: int
    end: int
    new: str

    def text(self) -> str:
        """Return the file's text with the change."""
        old = self.file.read_bytes()
        return (old[: self.start] + self.new.encode() + old[self.end :]).decode()

    def __str__(self) -> str:
        old = self.file.read_bytes()[self.start : self.end].decode()
        return f"{self.file.relative_to(ROOT)}:{self.line}: {old} -> {self.new}"


def mutants(file: Path) -> Iterator[Mutant]:
    """Yield every change of an operator or a constant within the functions of a file."""
    text = file.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def operator(left: ast.expr, kind: object, right: ast.expr) -> Iterator[Mutant]:
        old, new = OPERATORS.get(type(kind), ("", ""))
        begin = starts[(left.end_lineno or 1) - 1] + (left.end_col_offset or 0)
        place = text.find(old.encode(), begin, starts[right.lineno - 1] + right.col_offset) if old else -1
        if place >= 0:
            yield Mutant(file, left.lineno, place, place + len(old), new)

    for node in code(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for (left, right), kind in zip(pairwise(sides), node.ops, strict=True):
                yield from operator(left, kind, right)
        elif isinstance(node, ast.BinOp):
            yield from operator(node.left, node.op, node.right)
        elif isinstance(node, ast.BoolOp):
            yield from operator(node.values[0], node.op, node.values[1])
        elif isinstance(node, ast.Constant) and type(node.value) in {bool, int, float}:
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            begin = starts[node.lineno - 1]
            yield Mutant(file, node.lineno, begin + node.col_offset, begin + (node.end_col_offset or 0), new)


def code(module: ast.AST) -> Iterator[ast.AST]:
    """Yield what functions run: their bodies without annotations; a function within comes by itself."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            left: list[ast.AST] = list(function.body)
            while left:
                node = left.pop()
                yield node
                kept = (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef))
                left += [child for child in kept if child is not getattr(node, "annotation", None)]


def collected(*options: str) -> set[str]:
    """Return the names of the tests that pytest would run; its settings let it print nothing else."""
    command = [sys.executable, "-m", "pytest", "--collect-only", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return {line for line in done.stdout.splitlines() if "::" in line}


class Chosen:
    """Lets pytest run some of the tests of its files alone, and writes down which one failed."""

    def __init__(self, tests: list[str], file: Path) -> None:
        self._place, self._file = {test: number for number, test in enumerate(tests)}, file

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Called by pytest with all tests of the files; names in its arguments may not hold every character."""
        kept = [item for item in items if item.nodeid in self._place]
        items[:] = sorted(kept, key=lambda item: self._place[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest after each part of a test."""
        if report.failed:
            self._file.write_text(report.nodeid, encoding="utf-8")


class Trial:
    """A copy of the library, in which one thing at a time is changed, and what its tests say."""

    def __init__(self, folder: Path, seconds: int) -> None:
        self._library, self._failed, self._seconds = folder / "src", folder / "failed", seconds
        self._sound: set[str] = set()
        self._unsound: set[str] = set()
        shutil.copytree(PACKAGE, self._library / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))

    def catches(self, mutant: Mutant, tests: list[str]) -> bool:
        """Return whether some tests fail because of a change; one that fails without it is left out from now on."""
        while tests := [test for test in tests if test not in self._unsound]:
            changed = self._library / mutant.file.relative_to(PACKAGE.parent)
            changed.write_text(mutant.text(), encoding="utf-8")
            failed = self._first_failure(tests)
            shutil.copy(mutant.file, changed)
            if failed is None or failed in self._sound:
                return failed is not None
            if failed not in tests:
                return self._first_failure(tests) is None
            if self._first_failure([failed]) is None:
                self._sound.add(failed)
                return True
            self._unsound.add(failed)
        return False

    def _first_failure(self, tests: list[str]) -> str | None:
        """Return the test that failed first, another word where pytest itself ended, and None where all passed."""
        self._failed.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:  # what takes seconds to import has been imported already
            os.setsid()
            sys.path.insert(0, str(self._library))
            os.environ["PYTHONPATH"] = os.pathsep.join([str(self._library), os.environ.get("PYTHONPATH", "")])
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            signal.alarm(self._seconds)
            # What was imported before is too late for pytest's own assertions, of which tests hear as an error.
            options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            code = 1
            try:
                code = int(pytest.main([*options, *files], plugins=[Chosen(tests, self._failed)]))
            finally:
                os._exit(code)  # whatever happens, the loop over mutants is the first process's alone
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):  # what its tests have started
            os.killpg(child, signal.SIGKILL)
        if self._failed.exists():
            return self._failed.read_text(encoding="utf-8")
        return f"ended with {status}" if status else None


def covering(data: CoverageData) -> dict[tuple[Path, int], list[str]]:
    """Return the tests that run each line, those first that run few lines: they are made for them."""
    found = {}
    for name in data.measured_files():
        for line, contexts in data.contexts_by_lineno(name).items():
            found[Path(name), line] = [context for context in contexts if "::" in context]
    size = Counter(context for contexts in found.values() for context in contexts)
    ordered = {place: sorted(contexts, key=size.__getitem__) for place, contexts in found.items()}
    # pytest-cov has a context for each part of a test.
    return {place: list(dict.fromkeys(each.partition("|")[0] for each in some)) for place, some in ordered.items()}


def main() -> None:
    """Draw mutants, try each, and print what caught it and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=ROOT / ".coverage", help="coverage's data, with a context a test")
    parser.add_argument("--tests", type=int, default=200, help="how many are tried by day, and by night")
    parser.add_argument("--seconds", type=int, default=120, help="for these; what takes longer is caught")
    asked = parser.parse_args()
    data = CoverageData(str(asked.data))
    data.read()
    tests_of = covering(data)
    every_test, day = collected(), collected("-m", "not nightly")
    every = [
        each for file in sorted(PACKAGE.rglob("*.py")) for each in mutants(file) if tests_of.get((file, each.line))
    ]
    counts = Counter()
    folder = Path(tempfile.mkdtemp())  # removed below: what forks would remove a TemporaryDirectory at its own end
    trial = Trial(folder, asked.seconds)
    for mutant in random.Random(asked.seed).sample(every, asked.mutants):  # noqa: S311 (nothing secret)
        tests = [test for test in tests_of[mutant.file, mutant.line] if test in every_test]
        by_day = [test for test in tests if test in day][: asked.tests]
        by_night = [test for test in tests if test not in day][: asked.tests]
        tried = {"day": by_day, "night": by_night}
        caught = next((when for when, some in tried.items() if trial.catches(mutant, some)), "neither")
        counts[caught] += 1
        print(f"{caught:8}{mutant} ({len(by_day)} tests by day, {len(by_night)} by night)", flush=True)
    shutil.rmtree(folder)
    print(dict(counts))


if __name__ == "__main__":
    main()
