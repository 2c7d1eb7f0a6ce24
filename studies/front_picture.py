"""The picture at the front: what a GPT loses of English while it learns Python, and what is left of ten tasks.

From results that are there: nothing is trained.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anchorhold.whole_files import whole_file
from anchorhold_lab.experiments import Store
from anchorhold_lab.report.colours import colour
from anchorhold_lab.report.style import style
from benchmarks.language import recipes
from benchmarks.language.frontier import Mean
from benchmarks.language.recipe_plot import SHOWN
from benchmarks.language.recipe_report import lost, networks_of
from benchmarks.language.recipes import Looked
from studies.benzing2020 import PRESETS, run_nothing
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.drawing.kept_accuracy import on_average_so_far
from studies.benzing2020.drawing.labelled_lines import over_tasks
from studies.benzing2020.drawing.task_columns import Table
from studies.benzing2020.findings import Results
from studies.benzing2020.searched_strengths import find_strengths

GAIN = 0.95
"""Where recipes are compared: so much of the Python that fine-tuning learns."""
BARS = {
    "fine-tuning": "averaged weights",
    "EWC": "EWC, averaged",
    "rotated": "rotated EWC, averaged",
    "English": "512 pieces of old text\nreplayed, averaged",
    "own text, distilled, and rotated by it": "own text + rotated EWC,\naveraged: no old data",
}
"""What stands below fine-tuning, by recipe; fine-tuning's own average is averaging alone."""
_SAMPLES = ("", ", few samples", ", more samples", ", all samples")
LINES = {
    "fine-tuning": ("fine-tune",),
    "EWC": tuple(f"diagonal EWC{size}" for size in _SAMPLES),
    "rotated EWC": tuple(f"rotated EWC{size}" for size in _SAMPLES),
}
"""What is shown of ten tasks: of some algorithms the best. Both kinds of EWC have four numbers of samples, each with a
search for its strength."""


def losses(looked: Sequence[Looked]) -> dict[str, float]:
    """Return the English lost by fine-tuning and by each recipe, of networks that have all of them."""
    shared = set.intersection(*(set(networks_of(looked, name)) for name in BARS))

    def mean(name: str, gain: float) -> float:
        found = [lost(looked, network, name, gain, averaged=True) for network in sorted(shared)]
        return Mean.over([value for value in found if value is not None]).value

    return {"fine-tuning alone": mean("fine-tuning", 1.0), **{name: mean(name, GAIN) for name in BARS}}


def ten_tasks(store: Path) -> Results:
    """Return what is known of the paper's ten permutations of MNIST."""
    runs, names = Store(store), [name for names in LINES.values() for name in names]
    searched, damaged = find_strengths(PRESETS["paper"], [ALGORITHMS[name] for name in names], runs, run_nothing)
    return Results(runs, searched, damaged)


def best(results: Results, names: Sequence[str]) -> str:
    """Return the algorithm that is right most often in the end."""
    return max(names, key=lambda name: results.accuracy("P-MNIST", name).mean)


def kept(results: Results) -> dict[str, Table]:
    """Return the accuracy so far over the ten permutations, a row for each run."""
    return {label: on_average_so_far(results, "P-MNIST", best(results, names)) for label, names in LINES.items()}


def draw(english: Mapping[str, float], tasks: Mapping[str, Table], path: Path) -> None:
    """Write the picture; on white paper, whatever the page's colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style("light"):
        figure = Figure(figsize=(9.6, 3.3))
        left, right = figure.subplots(1, 2)
        _bars(left, english)
        lines = over_tasks("Ten permutations of MNIST, one after another", tasks, y_label="% right of all so far")
        right.set_title(lines.title)
        lines.draw(right)
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=170, metadata={"Software": None})


def _bars(axes: Axes, english: Mapping[str, float]) -> None:
    names = ["fine-tuning", *BARS.values()]
    shades = [colour("fine-tuning"), *(SHOWN[name][1] for name in BARS)]
    values = list(english.values())
    axes.barh(names, values, color=shades, height=0.66)
    for place, value in enumerate(values):
        axes.annotate(f"{value:.3f}", (value, place), (4, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.15 * max(values))
    axes.set_xlabel("English lost, bits a byte, at 95 % of the Python\n(fine-tuning: at all of it)")
    axes.set_title("A GPT that knows English learns Python")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(prog="python -m studies.front_picture", description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("docs/_static/front.png"), help="(default: %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    looked = recipes.read(options.results / "recipes.jsonl")
    draw(losses(looked), kept(ten_tasks(options.results / "paper" / "store")), options.picture)
    print(options.picture)


if __name__ == "__main__":
    main()
