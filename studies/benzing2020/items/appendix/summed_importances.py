"""Appendix: summed importances on every task of both benchmarks."""

from collections.abc import Sequence

from anchorhold_lab.report import Item
from studies.benzing2020.drawing.panels import figure_of
from studies.benzing2020.drawing.summed_importance import sums_over_tasks
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.items.main_text.figure2 import runs
from studies.benzing2020.presets import BENCHMARKS


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    preset = results.preset
    numbers = dict.fromkeys(str(preset.stages[benchmark].path_steps) for benchmark in BENCHMARKS)
    steps = " and ".join(numbers) + " of each task" + " on the two benchmarks" * (len(numbers) > 1)
    caption = (
        "Importances summed over all protected weights on every task, before rescaling, and the decrease in loss that "
        "they are meant to track. What SI has beyond SIU is its bias. Where each task has a head of its own, the head "
        "is not protected and has no importance, though it lowers the loss as well: the full gradient is shown without "
        f"and with it. It was computed at random steps, {steps}: unbiased, with a scatter that the error bars contain. "
        f"They are standard errors over {preset.repetitions} repetitions. Right: the same without the first task, "
        "whose sums are much larger."
    )
    if preset.follows_the_paper:
        caption += " Stars: the authors' data, one run on each benchmark, of which MNIST's first task alone is left."
    panels = [sums_over_tasks(results, benchmark) for benchmark in BENCHMARKS]
    panels.append(sums_over_tasks(results, "CIFAR", first=2))
    return [figure_of("summed-importances", caption, panels, columns=3, size=(11.4, 3.4))]


ITEM = PaperItem("summed-importances", "Appendix: summed importances on every task", runs, draw)
