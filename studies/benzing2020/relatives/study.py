"""What a study of relatives is: one protocol of somebody's, and the methods that are run by it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorhold_lab.experiments import SEARCH_SEEDS, Spec, paper_spec
from studies.benzing2020.tried_settings import DARK, DISTILLED, SHARES, as_changes

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Reported:
    """An average accuracy that others have published, in per cent."""

    mean: float
    where: str
    remembered: bool = True
    """Whether nobody has looked it up: a number from memory of a paper's table, shown as such."""

    def __str__(self) -> str:
        return f"{self.mean:.1f} (remembered)" if self.remembered else f"{self.mean:.1f}"


@dataclass(frozen=True)
class Row:
    """A method in a study."""

    name: str
    measure: str = "fine-tune"
    changes: Settings = field(default_factory=dict)
    """What its runs have on top of the study's."""
    reported: Reported | None = None
    differs: str = ""
    """In what its runs differ from those that were published, beside what all of the study do."""
    seeds: int | None = None
    """How many runs, where it is another number than the study's."""
    tried: tuple[Settings, ...] = ()
    """What is tried on validation data before its runs are made, each as changes of them; nothing where there is
    nothing to choose, or where it has been chosen."""
    chosen: Settings | None = None
    """The best of these, once it is known."""

    @property
    def is_known(self) -> bool:
        """Whether its runs can be made, rather than only tries."""
        return not self.tried or self.chosen is not None


@dataclass(frozen=True)
class Study:
    """A protocol, and the methods that are run by it."""

    name: str
    """That of its table's file."""
    title: str
    scenario: str
    usual: Settings
    """How its runs differ from what is usual for the scenario."""
    rows: tuple[Row, ...]
    seeds: int
    about: str = ""
    """What claims find it by: a kind, or what is special about it."""
    source: str = ""
    """Whose protocol it is."""
    differs: str = ""
    """In what all runs differ from it."""
    while_trying: Settings = field(default_factory=dict)
    """What is different in tries alone, such as fewer epochs."""
    _made: dict[str, list[Spec]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The runs of methods that were asked for: tables and claims ask for them anew."""

    def row(self, name: str) -> Row:
        """Return a method by its name."""
        return next(row for row in self.rows if row.name == name)

    def runs(self, row: Row) -> list[Spec]:
        """Return the runs of one of its methods; none as long as what they should have is to be found by trying."""
        if not row.is_known:
            return []
        if row.name not in self._made:
            changes = {**self.usual, **row.changes, **(row.chosen or {})}
            seeds = range(self.runs_wanted(row))
            self._made[row.name] = [paper_spec(self.scenario, row.measure, seed=seed, **changes) for seed in seeds]
        return self._made[row.name]

    def runs_wanted(self, row: Row) -> int:
        """Return how many runs a method's mean is of."""
        return row.seeds or self.seeds

    def try_of(self, row: Row, **changes: Any) -> Spec:
        """Return a run that one of its methods is tried by."""
        return paper_spec(self.scenario, row.measure, **{**self.usual, **row.changes, **self.while_trying, **changes})

    def with_choice(self, row: Row, chosen: Settings) -> "Study":
        """Return the study with what was best for one of its methods."""
        found = dataclasses.replace(row, chosen=chosen)
        return dataclasses.replace(self, rows=tuple(found if each is row else each for each in self.rows))


SEARCH_SEED = SEARCH_SEEDS[0]
"""By which tries are judged, all with one seed: they are many."""
THRESHOLDS = (0.9, 0.95, 0.97, 0.99, 0.995)
"""How much of the inputs' energy GPM keeps."""


def strengths(*values: float) -> tuple[Settings, ...]:
    """Return tries of a measure's strength."""
    return tuple({"strength": value} for value in values)


_TRIES: dict[str, Sequence[Settings]] = {
    "replay": [{"share": share} for share in SHARES],
    "DER++": [{"alpha": alpha, "beta": beta} for alpha, beta in DARK],
    "LwF": [{"strength": strength} for strength in DISTILLED],
    "GPM": [{"threshold": threshold} for threshold in THRESHOLDS],
}


def tried(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return references with what is tried for each that has something to choose: five tries, as measures have."""
    return tuple(
        dataclasses.replace(row, tried=tuple(as_changes(row.changes, each) for each in _TRIES.get(row.name, ())))
        for row in rows
    )


def holding(hold: str, **settings: Any) -> dict[str, Any]:
    """Return what lets a hold keep old tasks in place of importance."""
    return {"holds": (hold,), "hold_settings": {hold: settings} if settings else {}}


def remembering(few: int, size: int, **replay: Any) -> tuple[Row, ...]:
    """Return what keeps so many old samples in all, and looks at ``size`` of them in a step."""
    return (
        Row("replay", changes=holding("replay", source=few, size=size, **replay)),
        Row("A-GEM", changes=holding("A-GEM", source=few, size=size)),
        Row("DER++", changes=holding("DER++", source=few, size=size)),
    )


def references(few: int, size: int, later_epochs: int | None = None, **settings: Settings) -> tuple[Row, ...]:
    """Return what stands beside the methods of every study.

    Args:
        few: how many samples a memory holds in all.
        size: how many of them are looked at in a step.
        later_epochs: of joint training from the second task on, where it has more samples.
        settings: further settings of rows, by the first word of their names.
    """
    jointly = {} if later_epochs is None else {"later_epochs": later_epochs}
    return (
        *remembering(few, size, **settings.get("replay", {})),
        Row("LwF", changes=holding("distillation", temperature=2.0, **settings.get("LwF", {}))),
        Row("GPM", changes=holding("projection", **settings.get("GPM", {}))),
        Row("joint training", changes={"trains": "jointly", **jointly}),
        Row("training anew", changes={"trains": "anew"}),
    )


def with_one_seed(rows: tuple[Row, ...], differs: str = "", **changes: Any) -> tuple[Row, ...]:
    """Return rows of one run each, what takes longest and is a reference alone; with changes, if need be."""
    return tuple(dataclasses.replace(row, seeds=1, differs=differs, changes={**changes, **row.changes}) for row in rows)


def joint_in_large_batches(rows: tuple[Row, ...], batch_size: int) -> tuple[Row, ...]:
    """Return rows of which joint training, which sees every task's samples over and over, has larger batches."""
    large, said = {"batch_size": batch_size}, f"batches of {batch_size}"
    return tuple(
        dataclasses.replace(row, changes={**row.changes, **large}, differs=said)
        if row.name == "joint training"
        else row
        for row in rows
    )
