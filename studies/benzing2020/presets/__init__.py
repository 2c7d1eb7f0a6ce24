"""Three sizes of the same study: the paper's own, a quick look on the real data, and a miniature on digits."""

from studies.benzing2020.presets.as_published import PAPER
from studies.benzing2020.presets.miniature import DIGITS
from studies.benzing2020.presets.preset import BENCHMARKS, Benchmark, Chosen, Preset, SearchPlan, Stage, Variant
from studies.benzing2020.presets.quick import QUICK

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
