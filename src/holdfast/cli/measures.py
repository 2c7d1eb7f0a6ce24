"""``holdfast measures``: what can be chosen, and when to choose it."""

import dataclasses
import inspect
import re
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

import holdfast
from holdfast.cli.names import find_name
from holdfast.cli.output import print_json, results, table
from holdfast.importance.scores import LogLikelihood


def measures(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its settings.", show_default=False)] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object a measure.")] = False,
) -> None:
    """List the measures of importance, and say when to choose which."""
    known = holdfast.measures()
    chosen = known if name is None else {(found := find_name("measure", name, known)): known[found]}
    if as_json:
        for key, measure in chosen.items():
            print_json(described(key, measure))
    elif name is None:
        _show_all(known)
    else:
        for key, measure in chosen.items():
            _show_one(key, measure)


def described(name: str, measure: holdfast.Measure) -> dict[str, Any]:
    """Return what is known of a measure as plain values."""
    return {
        "name": name,
        "class": type(measure).__name__,
        "settings": dataclasses.asdict(measure),
        "cost": cost_of(measure),
        "choose_when": measure.choose_when,
    }


def cost_of(measure: holdfast.Measure) -> str:
    """Return what a measure takes beyond training, in a few words."""
    if isinstance(measure, holdfast.PathMeasure):
        return "a second batch a step" if measure.needs_independent_gradient else "none"
    if isinstance(measure, holdfast.SampleMeasure):
        every_label = isinstance(measure.score, LogLikelihood) and measure.score.labels == "exact"
        return "a pass a task and label" if every_label else "a pass a task"
    return "none"


def _show_all(known: dict[str, holdfast.Measure]) -> None:
    shown = table("measure", "choose it when", wrap=("choose it when",))
    for name, measure in known.items():
        below = f"holdfast.{type(measure).__name__}, extra cost: {cost_of(measure)}"
        shown.add_row(name, Text.assemble(measure.choose_when, "\n", (below, "dim")))
    console = results()
    console.print(shown)
    console.print(
        "\n`holdfast measures NAME` shows a measure's settings; `holdfast run --set NAME=VALUE` changes them."
    )


def _show_one(name: str, measure: holdfast.Measure) -> None:
    console = results()
    console.print(f"{name}: holdfast.{type(measure).__name__}", style="bold")
    console.print(_summary(measure))
    console.print(f"Choose it when: {measure.choose_when}")
    console.print(f"Extra cost: {cost_of(measure)}")
    settings = dataclasses.asdict(measure)
    if settings:
        meanings = _meanings(type(measure))
        shown = table("setting", "value", "meaning", wrap=("meaning",))
        for key, value in settings.items():
            shown.add_row(key, str(value), meanings.get(key, ""))
        console.print(Padding(shown, (1, 0, 0, 0)))


def _summary(measure: holdfast.Measure) -> str:
    return _readable((inspect.getdoc(measure) or "").split("\n\n", maxsplit=1)[0])


def _meanings(kind: type) -> dict[str, str]:
    """Return what each setting means, from the docstrings of the class and those it derives from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, arguments = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", arguments, flags=re.MULTILINE):
            found[name] = _readable(text)
    return found


def _readable(text: str) -> str:
    """Return a docstring's text without its markup."""
    plain = re.sub(r":\w+:`([^`]*)`", r"\1", text).replace("``", "")
    return re.sub(r"\s+", " ", plain).strip()
