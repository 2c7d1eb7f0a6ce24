"""The methods that the paper stands among: each where its authors ran it, its numbers beside theirs.

RWalk (Chaudhry et al. 2018, arXiv 1801.10112), VCL (Nguyen et al. 2018, arXiv 1710.10628; Swaroop et al. 2019, arXiv
1905.02099), online EWC and Progress & Compress (Schwarz et al. 2018, arXiv 1805.06370), asymmetric SI (Park et al.
2019, arXiv 1908.02984), task-free MAS (Aljundi et al. 2019, arXiv 1812.03596), A-GEM (Chaudhry et al. 2019, arXiv
1812.00420), GPM (Saha et al. 2021, arXiv 2103.09762), and the three kinds of continual learning (van de Ven et al.
2022).
"""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020.drawing.tables.relatives_table import left_to_run, relatives_table
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.presets import Preset


def runs(preset: Preset) -> list[Spec]:
    """Return the runs of all studies, the most worth first."""
    every = [spec for study in preset.relatives for row in study.rows for spec in study.runs(row)]
    return list({spec.id: spec for spec in every}.values())


def draw(results: Results) -> Sequence[Item]:
    """Return a table for each study, and what has not been run, with the command that makes it."""
    studies = results.preset.relatives
    return [*(relatives_table(results, study) for study in studies), *left_to_run(results, studies)]


ITEM = PaperItem(
    "relatives",
    "The methods that the paper stands among, each where its authors ran it",
    runs,
    draw,
    relatives=True,
)
