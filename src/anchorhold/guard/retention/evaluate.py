"""Looking at what a model still knows of kept inputs, in one process or in several."""

from collections.abc import Iterable, Mapping

from anchorhold.engine.isolation import evaluation_mode
from anchorhold.errors import NotFiniteError, OrderError
from anchorhold.guard.core import Core
from anchorhold.guard.rollback.averaging import has_moved
from anchorhold.retention.diagnosis import is_of_another, of_another_model
from anchorhold.retention.predictions import Sums
from anchorhold.retention.report import Retention
from anchorhold.tensors.sharding import is_sharded, reshard


def look(core: Core, parts: Mapping[str, Iterable[int]] | None = None) -> Retention:
    """Return what is left of all kept sets, or of some chunks of some of them, by set; the model stays as it is.

    Every process calls this, and each looks at what it has kept: the result is that of all of them.
    """
    kept = core.state.kept
    if not kept:
        raise OrderError(
            "No inputs were kept, so that nothing can be said of what is left. Call guard.keep(inputs) with a few "
            "hundred inputs of what the model knows, before it is trained on."
        )
    wanted: dict[str, Iterable[int] | None] = dict.fromkeys(kept) if parts is None else dict(parts)

    def own() -> dict[str, Sums]:
        try:
            with evaluation_mode(core.runtime.model, core.runtime.model.parameters()):
                return {name: kept[name].sums(core.runtime.model, chunks) for name, chunks in wanted.items()}
        finally:
            reshard(core.runtime.model)

    every = core.runtime.ranks.each(own)
    sums = {name: sum((theirs[name] for theirs in every), Sums()) for name in wanted}
    found = Retention(
        tuple(kept[name].seen_as(total) for name, total in sums.items()),
        None if core.state.tolerance is None else core.state.tolerance.nats,
    )
    for each in found.sets:
        if not each.kl < float("inf"):
            raise NotFiniteError(
                f"On the kept set {each.name!r} the predictions have moved by {each.kl} nats: the model's outputs hold "
                "a NaN or an infinity. Training has diverged: restore an earlier checkpoint."
            )
    return found


def refuse_unless_ranks_agree(core: Core) -> None:
    """Raise on every rank unless all of them have kept sets of the same names, and run a sharded model as often."""
    if core.runtime.ranks.size == 1:
        return
    sharded = any(map(is_sharded, core.runtime.model.parameters()))
    kept = {name: len(each.chunks) if sharded else each.per for name, each in core.state.kept.items()}
    tolerance = None if core.state.tolerance is None else core.state.tolerance.nats
    facts = {"the kept sets": kept, "the tolerance": tolerance, "the strength": core.state.strength}
    core.runtime.ranks.refuse_unless_equal(facts, so="the step was not taken")


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
