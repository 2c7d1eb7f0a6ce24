"""What a table or figure of the paper is: the runs that it needs, and how it is drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020.algorithms import Algorithm
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import Preset


@dataclass(frozen=True)
class PaperItem:
    """One item of the paper."""

    name: str
    """What it is called on the command line."""
    title: str
    runs: Callable[[Preset], list[Spec]]
    """The runs it needs, as far as their strengths are known."""
    draw: Callable[[Results], Sequence[Item]]
    """Makes tables and figures from what those runs have found so far."""
    algorithms: tuple[Algorithm, ...] = ()
    """The algorithms that it compares; where their strength is not known, it is searched for before the runs."""
    relatives: bool = False
    """Whether it compares the preset's relatives too, some of whose settings are found by trying before their runs."""


def runs_of(items: Sequence[PaperItem], preset: Preset) -> list[Spec]:
    """Return all runs of some items, each once."""
    return list({spec.id: spec for item in items for spec in item.runs(preset)}.values())
