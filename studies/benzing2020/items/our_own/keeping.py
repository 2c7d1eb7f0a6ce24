"""Other ways of keeping, which the paper leaves out: replay, distillation, both together, and bounds on all of them.

Replay from a tiny memory (Chaudhry et al. 2019, arXiv 1902.10486), Learning without Forgetting (Li & Hoiem 2016, arXiv
1606.09282) and DER++ (Buzzega et al. 2020, arXiv 2004.07211), beside EWC, fine-tuning, joint training and training
anew. What has anything to choose has as many tries for it, on validation data.
"""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020.algorithms import ALGORITHMS, BOUNDS, KEEPING
from studies.benzing2020.drawing.tables.keeping_table import keeping_table
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import rows_of_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset
from studies.benzing2020.tried_settings import SHARES

_ALGORITHMS = (*BOUNDS, ALGORITHMS["fine-tune"], *KEEPING)
_SHOWN = (ALGORITHMS["fine-tune"], *KEEPING, *BOUNDS)
_CAPTION = (
    "Other ways of keeping, {title}: old samples once more (replay), old outputs on new inputs (LwF), both on old "
    "samples (DER++), and EWC, each with {tries} tries for what was found, on validation data; none is re-initialised. "
    "Joint training learns each task with all before it; training anew gives each a network of its own. Average "
    "accuracy over all tasks after the last, and that of the first and of the last task then, in per cent."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs of all ways, and those of fine-tuning, which stand beside Table 1 too."""
    return rows_of_runs(preset, _ALGORITHMS)


def draw(results: Results) -> Sequence[Item]:
    """Return a table for each benchmark."""
    return [_table(results, benchmark) for benchmark in BENCHMARKS]


def _table(results: Results, benchmark: Benchmark) -> Item:
    caption = _CAPTION.format(title=results.preset.stages[benchmark].title, tries=len(SHARES))
    return keeping_table(f"keeping-{benchmark.lower()}", caption, results, benchmark, _SHOWN)


ITEM = PaperItem(
    "keeping",
    "Other ways of keeping, which the paper leaves out: replay, LwF and DER++, and bounds on all of them",
    runs,
    draw,
    _ALGORITHMS,
)
