"""The paper, whole: every table and figure as the runs that it needs and how it is drawn.

>>> reproduce(items_named(["all"]), PRESETS["digits"], Store("results"), "report").index
"""

from anchorhold.lab.paper.items import ITEMS
from anchorhold.lab.paper.presets import PRESETS, Preset
from anchorhold.lab.paper.reproduction import Reproduction, items_named, reproduce, run_nothing

__all__ = ["ITEMS", "PRESETS", "Preset", "Reproduction", "items_named", "reproduce", "run_nothing"]
