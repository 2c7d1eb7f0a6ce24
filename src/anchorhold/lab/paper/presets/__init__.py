"""Three sizes of the same study: the paper's own, a quick look on the real data, and a miniature on digits."""

from anchorhold.lab.paper.presets.as_published import PAPER
from anchorhold.lab.paper.presets.miniature import DIGITS
from anchorhold.lab.paper.presets.preset import BENCHMARKS, Benchmark, Chosen, Preset, SearchPlan, Stage, Variant
from anchorhold.lab.paper.presets.quick import QUICK

PRESETS = {preset.name: preset for preset in (PAPER, QUICK, DIGITS)}

__all__ = [
    "BENCHMARKS",
    "DIGITS",
    "PAPER",
    "PRESETS",
    "QUICK",
    "Benchmark",
    "Chosen",
    "Preset",
    "SearchPlan",
    "Stage",
    "Variant",
]
