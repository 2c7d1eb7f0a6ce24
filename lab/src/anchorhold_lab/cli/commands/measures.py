"""``anchorhold-lab measures``: what can be chosen, and when to choose it."""

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.padding import Padding
from rich.text import Text

import anchorhold
from anchorhold.registry import find_name
from anchorhold_lab.cli.arguments import OwnFile
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.output import print_json, results, table

if TYPE_CHECKING:
    from anchorhold.measures import Measure

_VARIANTS = {
    "EWC-sampled": "Many classes, where every label in turn is too much.",
    "EWC-empirical": "To compare with code that uses the data's labels.",
    "MAS": "No labels, and one backward pass instead of one a class.",
    "MASX": "To check that MAS is about the likeliest label.",
    "MAS-logits": "As MAS, for regression, or to compare with the original code.",
    "MASX-logits": "To check the same of MAS-logits: the largest output alone.",
    "RWalk-batch": "As RWalk, with the batch's gradient in the place of its samples': no extra call.",
    "posterior-scaled": "As posterior, in the form that shows how it depends on the batch size; experimental.",
    "L2": "A baseline: hold all weights equally.",
    "L2-growing": "A baseline: hold all weights equally, and harder with every task.",
}
"""When to choose one of the measures that share a class."""

_SYMBOLS = {
    r"\Omega": "Ω",
    r"\omega": "ω",
    r"\theta": "θ",
    r"\alpha": "α",
    r"\beta_2": "β₂",
    r"\max_y": "max_y",
    r"\|": "‖",
    "^2": "²",
    "*each*": "each",
}
"""How what is typeset elsewhere reads in a terminal."""


def measures(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its settings.", show_default=False)] = None,
    own_file: OwnFile = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object a measure.")] = False,
) -> None:
    """List the measures of importance, and say when to choose which."""
    with loading():
        from anchorhold_lab.cli.own_files import load_beside  # noqa: PLC0415

    load_beside(own_file)
    known = anchorhold.measures.default_measures()
    chosen = known if name is None else {(found := find_name("measure", name, known)): known[found]}
    if as_json:
        for key, measure in chosen.items():
            print_json(described(key, measure))
    elif name is None:
        _show_all(known)
    else:
        for key, measure in chosen.items():
            _show_one(key, measure)


def described(name: str, measure: "Measure") -> dict[str, Any]:
    """Return what is known of a measure as plain values."""
    return {
        "name": name,
        "class": type(measure).__name__,
        "settings": dataclasses.asdict(measure),
        "cost": cost_of(measure),
        "choose_when": choose_when(name, measure),
    }


def choose_when(name: str, measure: "Measure") -> str:
    """Return one line on when to choose a measure; one of another's may only say what it is."""
    return _VARIANTS.get(name) or getattr(measure, "choose_when", None) or _summary(measure)


def cost_of(measure: "Measure") -> str:
    """Return what a measure takes beyond training, in a few words."""
    from anchorhold.engine.scores import LogLikelihood  # noqa: PLC0415

    if measure.needs.data:
        score = cast("anchorhold.measures.SampleMeasure", measure).score
        every_label = isinstance(score, LogLikelihood) and score.labels == "exact"
        return "a pass a task and label" if every_label else "a pass a task"
    if measure.needs.squares:
        return "a pass over single samples, of some steps' batches"
    return "a second batch a step" if measure.needs.independent else "none"


def _show_all(known: "dict[str, Measure]") -> None:
    shown = table("measure", "choose it when", wrap=("choose it when",))
    for name, measure in known.items():
        below = f"{_class_of(measure)}, extra cost: {cost_of(measure)}"
        shown.add_row(name, Text.assemble(choose_when(name, measure), "\n", (below, "dim")))
    console = results()
    console.print(shown)
    console.print(
        "\n`anchorhold-lab measures NAME` shows a measure's settings; `anchorhold-lab run --set NAME=VALUE` changes "
        "them."
    )


def _show_one(name: str, measure: "Measure") -> None:
    console = results()
    console.print(f"{name}: {_class_of(measure)}", style="bold")
    console.print(_summary(measure))
    console.print(f"Choose it when: {choose_when(name, measure)}")
    console.print(f"Extra cost: {cost_of(measure)}")
    settings = dataclasses.asdict(measure)
    if settings:
        meanings = _meanings(type(measure))
        shown = table("setting", "value", "meaning", wrap=("meaning",))
        for key, value in settings.items():
            shown.add_row(key, str(value), meanings.get(key, ""))
        console.print(Padding(shown, (1, 0, 0, 0)))


def _class_of(measure: "Measure") -> str:
    """Return what a measure's class is called where it is used."""
    kind = type(measure).__name__
    return f"anchorhold.{kind}" if getattr(anchorhold, kind, None) is type(measure) else kind


def _summary(measure: "Measure") -> str:
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
    plain = re.sub(r"\\sqrt\{([^}]*)\}", r"√(\1)", plain)
    for typeset, read in _SYMBOLS.items():
        plain = plain.replace(typeset, read)
    return re.sub(r"\s+", " ", plain).strip()
