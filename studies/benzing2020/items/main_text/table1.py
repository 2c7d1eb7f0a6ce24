"""Table 1: test accuracies of all algorithms on both benchmarks, and of those that the text adds to them."""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020.algorithms import BESIDE_TABLE1, TABLE1
from studies.benzing2020.drawing.captions import large_batches
from studies.benzing2020.drawing.tables.accuracy_table import accuracy_table, on_the_papers_data
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import rows_of_runs
from studies.benzing2020.presets import BENCHMARKS, Preset

_CAPTION = (
    "Test accuracies: mean and standard error of the average accuracy over all tasks after the last, in per cent, "
    "{beside}with the paper's numbers of the experiments (No.): (1) and (3) explain why SI and MAS work, (2) shows "
    "what large batches do to SI and SOS. "
)
_DISTANCE = (
    " The distance from the paper is in standard errors, those of both sides counted. The authors' data are what their "
    "public notebooks and summaries say of single runs, two of SI on P-MNIST."
)
_BESIDE = (
    "What the text says about further algorithms: MAS on logits, MASX, SOS with large batches and without α, no "
    "protection at all, all weights held equally (L2) or more with every task (L2-growing), weights held by their "
    "magnitude, and Split CIFAR with all its tasks. "
)
_BORROWED = " MASX on P-MNIST has that of MAS, and SOS(2048, α=0) on CIFAR that of SOS(2048)."


def runs(preset: Preset) -> list[Spec]:
    """Return the runs of every row."""
    return rows_of_runs(preset, (*TABLE1, *BESIDE_TABLE1))


def draw(results: Results) -> Sequence[Item]:
    """Return the table, and the one beside it."""
    preset = results.preset
    papers = "beside the paper's, " if any(on_the_papers_data(preset, each) for each in BENCHMARKS) else ""
    caption = _CAPTION.format(beside=papers) + large_batches(preset) + _DISTANCE * preset.follows_the_paper
    beside = _BESIDE + preset.strengths + _BORROWED * preset.follows_the_paper
    return [
        accuracy_table("table1", caption, results, TABLE1),
        accuracy_table("beside-table1", beside, results, BESIDE_TABLE1),
    ]


ITEM = PaperItem("table1", "Table 1: test accuracies", runs, draw, (*TABLE1, *BESIDE_TABLE1))
