"""Kept sets that a file has brought, and that were kept with another model than the one that is held."""

from anchorhold.guard.core import Core
from anchorhold.guard.rollback.averaging import has_moved
from anchorhold.retention import Retention
from anchorhold.retention.diagnosis import is_of_another, of_another_model


def warn_of_another_model(core: Core, found: Retention) -> set[str]:
    """Say once of each set that it is another model's, and return which are.

    That can be known where nothing can have been lost yet: the model was consolidated as it came, and is there still.
    Where a state was loaded, or tasks were trained, what is lost may have been lost in these.
    """
    strange = [
        each
        for each in found.sets
        if core.state.kept[each.name].is_unproven and is_of_another(each.kl, found.tolerance)
    ]
    if not strange or not core.state.is_as_given or core.is_trained:
        return set()
    if has_moved(core.state, {name: p for name, p in core.runtime.parameters.items() if name in core.state.anchor}):
        return set()
    for each in strange:
        message = of_another_model(each.name, each.kl, found.tolerance)
        core.state.kept[each.name].warned.once("of another model", message)
    return {each.name for each in strange}
