"""The paper, whole: every table and figure as the runs that it needs and how it is drawn.

>>> reproduce(items_named(["all"]), PRESETS["digits"], Store("results"), "report").index
"""

from typing import TYPE_CHECKING

from anchorhold_lab.on_demand import on_demand

if TYPE_CHECKING:
    from studies.benzing2020.items import ITEMS
    from studies.benzing2020.presets import PRESETS, Preset
    from studies.benzing2020.reproduction import Reproduction, items_named, reproduce, run_nothing

__all__ = ["ITEMS", "PRESETS", "Preset", "Reproduction", "items_named", "reproduce", "run_nothing"]
__getattr__ = on_demand(
    __name__,
    {
        "items": ["ITEMS"],
        "presets": ["PRESETS", "Preset"],
        "reproduction": ["Reproduction", "items_named", "reproduce", "run_nothing"],
    },
)
