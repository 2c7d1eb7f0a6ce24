"""As many runs again, with other seeds, of the four measures that all lie above the paper on Split CIFAR.

Runs of one seed share their network and their batches, so that four rows which all lie above the paper's are one piece
of evidence, and not four. Other seeds are another one.
"""

from collections.abc import Sequence

from anchorhold_lab.analysis import estimate
from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Item, Measured, Table, label
from studies.benzing2020.claims.left_open.undecided import by_seed, paper_mean
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import FROM_DATA, accuracy_runs, second_runs
from studies.benzing2020.presets import Preset
from studies.benzing2020.published import ACCURACIES

_CAPTION = (
    "{title} once more with other seeds: average accuracy in per cent of the first runs, which Table 1 shows, of as "
    "many with seeds of their own, and of all. The last line is the mean of the four rows, seed by seed."
)
_COLUMNS = ("algorithm", "first seeds", "other seeds", "all", "paper")


def runs(preset: Preset) -> list[Spec]:
    """Return both halves."""
    first = [spec for name in FROM_DATA for spec in accuracy_runs(preset, "CIFAR", name)]
    return first + [spec for name in FROM_DATA for spec in second_runs(preset, name)]


def draw(results: Results) -> Sequence[Item]:
    """Return the table."""
    preset = results.preset
    rows: list[tuple[Cell, ...]] = []
    for name in FROM_DATA:
        first, second = accuracy_runs(preset, "CIFAR", name), second_runs(preset, name)
        found = [_cell(_accuracies(results, specs)) for specs in (first, second, [*first, *second])]
        rows.append((label(name), *found, ACCURACIES["CIFAR", name].cell() if preset.follows_the_paper else None))
    halves = [list(by_seed(results, half).values()) for half in (False, True)]
    paper = Measured(paper_mean().mean, paper_mean().error, decimals=2) if preset.follows_the_paper else None
    rows.append(("their mean", *(_cell(values) for values in (*halves, [*halves[0], *halves[1]])), paper))
    return [Table("more-seeds", _CAPTION.format(title=preset.stages["CIFAR"].title), _COLUMNS, tuple(rows))]


def _accuracies(results: Results, specs: Sequence[Spec]) -> list[float]:
    return [100 * run.average_accuracy for run in results.finished(specs)]


def _cell(values: Sequence[float]) -> Measured | None:
    if not values:
        return None
    found = estimate(values)
    return Measured(found.mean, found.error if len(values) > 1 else None, decimals=2)


ITEM = PaperItem("more-seeds", "Measures from data on Split CIFAR, with other seeds", runs, draw)
