"""Every command that a Markdown page names is there: modules that Python runs, make's targets, benchmarks by name."""

import importlib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from anchorhold_lab.cli.app import app
from benchmarks.__main__ import NAMES
from benchmarks.gpu.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "examples", "lab", "results", "studies")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
LAB = {each.name or each.callback.__name__ for each in app.registered_commands} | {
    g.name for g in app.registered_groups
}
PROGRAM = '\nif __name__ == "__main__":\n'
STUDIES = sorted(page.parent for page in (ROOT / "studies").glob("*/README.md"))


def missing(text):
    """Return the commands of a page that nothing answers to."""
    found = []
    for module, word in re.findall(r"-m\s+((?:benchmarks|studies|torture)(?:\.\w+)*)(?:[ ]([a-z][\w-]*))?", text):
        if not module.endswith(("NAME", "KIND")) and not _runs(module):
            found.append(f"python -m {module}")
        if module == "benchmarks" and word and word not in NAMES:
            found.append(f"python -m {module} {word}")
    # Prose says "make" too; a command stands in code, or is what a page of results was made by.
    code = re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`|^- command: (.*)$", text, flags=re.DOTALL | re.MULTILINE)
    for line in "\n".join("\n".join(parts) for parts in code).splitlines():
        for target in re.findall(r"^make ([a-z][\w-]*)", line):
            found += [f"make {target}"] * (target not in TARGETS)
        for name in re.findall(r'^make bench-gpu .*BENCH="?([\w -]+)', line):
            found += [
                f"BENCH={one}" for one in name.split() if not any(f"{b}-".startswith(f"{one}-") for b in BENCHMARKS)
            ]
        for command in re.findall(r"^anchorhold-lab ([a-z]+)", line):
            found += [f"anchorhold-lab {command}"] * (command not in LAB)
    return found


def _runs(module):
    """Whether Python runs a module as a program."""
    try:
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            return find_spec(f"{module}.__main__") is not None
    except ModuleNotFoundError:  # of the package that it would stand in
        return False
    return spec is not None and PROGRAM in Path(spec.origin).read_text(encoding="utf-8")


def test_every_command_that_a_page_names_is_there():
    assert len(PAGES) > 100
    assert {
        str(page.relative_to(ROOT)): lacking for page in PAGES if (lacking := missing(page.read_text("utf-8")))
    } == {}


def test_every_command_that_data_were_made_by_is_there():
    known = {path.name: json.loads(path.read_text("utf-8")) for path in (ROOT / "results").glob("*.json")}
    commands = {name: kept["command"] for name, kept in known.items() if "command" in kept}
    assert len(commands) > 35
    assert {name: found for name, given in commands.items() if (found := missing(f"- command: {given}"))} == {}


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("`python -m studies.nothing`", ["python -m studies.nothing"]),
        ("by `python\n-m benchmarks.nothing.at_all`", ["python -m benchmarks.nothing.at_all"]),
        ("`python -m benchmarks.stubs`, which is no program", ["python -m benchmarks.stubs"]),
        ("- command: python -m benchmarks nothing", ["python -m benchmarks nothing"]),
        ("make sure; `make nothing`", ["make nothing"]),
        ('```\nmake bench-gpu BENCH="fisher nothing"\n```', ["BENCH=nothing"]),
        ("`anchorhold-lab reproduce all`", ["anchorhold-lab reproduce"]),
        ("```sh\nmake bench\npython -m benchmarks.gpu\nanchorhold-lab runs list\n```", []),
    ],
)
def test_what_is_not_there_is_found(text, lacking):
    assert missing(text) == lacking


def test_the_overview_of_results_names_programs_that_are_there():
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    parts = re.findall(r"`python -m (benchmarks|studies)\.NAME`(.*?)(?=\n\*\*|\n## )", text, flags=re.DOTALL)
    names = [
        f"{package}.{name}"
        for package, table in parts
        for row in re.findall(r"^\|.*\| ([^|]+) \|$", table, flags=re.MULTILINE)
        for name in re.findall(r"`([a-z_.]+)`", row)
    ]
    assert len(names) > 20
    assert [name for name in names if not _runs(name)] == []


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_study_says_its_question_answer_command_and_cost(folder):
    title, _, *lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    question = title.removeprefix("# ")
    assert question.endswith("?")
    answer, command, cost, numbers = lines[:4]
    assert answer.startswith("- **Answer:** ") and cost.startswith("- **Cost:** ")
    assert command.startswith(f"- **Command:** `python -m studies.{folder.name}")
    linked = [link for line in lines for link in re.findall(r"\]\(([^)]+)\)", line)]
    assert numbers.startswith("- **Numbers:** ") and [link for link in linked if not (folder / link).exists()] == []
    overview = (ROOT / "studies" / "README.md").read_text(encoding="utf-8")
    assert f"| [{folder.name}]({folder.name}/README.md) | {question} |" in overview


@pytest.mark.nightly
def test_every_study_has_a_readme_and_commands_that_say_what_they_take(monkeypatch, capsys):
    assert {path.parent for path in (ROOT / "studies").glob("*/__main__.py")} == set(STUDIES)
    for path in sorted((ROOT / "studies").glob("*/**/*.py")):
        if PROGRAM in path.read_text(encoding="utf-8"):  # but for the paper's, which has tests of its own
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            monkeypatch.setattr("sys.argv", ["program", "--help"])
            with pytest.raises(SystemExit) as ended:
                importlib.import_module(module).main()
            program = module.removesuffix(".__main__")
            assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: python -m {program} ")
