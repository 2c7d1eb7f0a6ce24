"""From what a Guard is given to what it remembers at first: each argument checked, by itself and with others."""

from collections.abc import Mapping, Sequence

from torch import nn

from anchorhold.errors import ConfigurationError
from anchorhold.forms import Form
from anchorhold.guard.arguments.checked_arguments import (
    as_form,
    as_holds,
    as_measure,
    checked_anchor,
    checked_batch_norm,
    checked_decay,
    checked_implicit,
    checked_pull_every,
    checked_rate,
    checked_space,
    checked_tolerance,
    device_with_number,
    may_be_implicit,
    named_measures,
    refuse_merged_path,
)
from anchorhold.guard.arguments.default_space import warn_of_unmerged
from anchorhold.guard.arguments.options import GuardOptions, checked_options
from anchorhold.guard.arguments.selection import Protect, Selection
from anchorhold.guard.arguments.strengths import USUAL, PatternStrengths, checked_strength
from anchorhold.guard.core import AnchorKind, Core, GuardState, Options, Runtime, Setting, TaskState, has_linear_term
from anchorhold.guard.distributed.gathering import checked_gather
from anchorhold.guard.distributed.ranks import checked_group
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.refreshing import first_look
from anchorhold.holds import Hold
from anchorhold.measures import Measure
from anchorhold.retention import Tolerance
from anchorhold.tensors.storage import Storage


def new_core(
    model: nn.Module,
    measure: Measure | str,
    *,
    strength: float | Mapping[str, float] | None,
    exchange_rate: float | None,
    tolerance: float | Tolerance | None,
    form: Form | str,
    protect: Protect,
    holds: Sequence[Hold | str],
    anchor: AnchorKind,
    decay: float,
    batch_norm: str | None,
    from_scratch: bool,
    watch: Sequence[Measure | str] | Mapping[str, Measure | str],
    options: GuardOptions | None,
) -> Core:
    """Return what a guard knows before its first task; the arguments are a Guard's."""
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"model={type(model).__name__}: expected a torch.nn.Module, as in Guard(model, SOS(), strength=500.0)."
        )
    rarer = checked_options(options)
    storage = Storage(rarer.state_dtype, None if rarer.state_device is None else device_with_number(rarer.state_device))
    driver = as_measure(measure)
    checked_anchor(anchor, driver, gradient_term=rarer.gradient_term)
    kept_as = as_form(form)
    # First: the form may refuse it with an advice that the space refuses.
    refuse_merged_path(rarer.space, driver, kept_as)
    ledgers = _ledgers(driver, kept_as, watch, storage)
    driving = ledgers[driver.name]
    others = as_holds(holds)
    for each in others:
        each.check(driving.form)
    rate = checked_rate(exchange_rate, strength, tolerance, driver)
    c = 0.0 if rate is not None else checked_strength(USUAL if strength is None else strength)
    strengths = {"strength": strength, "exchange_rate": exchange_rate}
    driving.strengths = PatternStrengths(c) if isinstance(c, dict) else None
    every = checked_pull_every(rarer.pull_every, rarer.implicit)
    implicit = True if every > 1 else rarer.implicit  # a gradient joins every step
    allowed = checked_space(rarer.space, ledgers, others, anchor, batch_norm, implicit=implicit is True)
    sloped = has_linear_term(driving.form, anchor, gradient_term=rarer.gradient_term)
    if storage.is_packed:
        _refuse_in_8_bits(rarer, model, anchor)
    either = implicit is None and may_be_implicit(driving.form, batch_norm, has_linear_term=sloped)
    asked = Options(
        Selection(protect),
        storage,
        others,
        gather=checked_gather(rarer.gather),
        anchor_kind=anchor,
        gradient_term=rarer.gradient_term,
        from_scratch=from_scratch,
        batch_norm=checked_batch_norm(batch_norm, ledgers, others),
        named_form=kept_as if isinstance(form, str) else None,
    )
    pull = None if either else checked_implicit(implicit or False, driving.form, batch_norm, has_linear_term=sloped)
    state = GuardState(
        ledgers,
        driver.name,
        c if isinstance(c, float) else max(c.values()),
        checked_decay(decay),
        Setting(None, "default"),
        Setting(allowed or "weights", "given" if rarer.space is not None else "open" if allowed is None else "default"),
        Setting(pull, "given" if implicit is not None else "open" if either else "default"),
        pull_every=Setting(every, "given" if every > 1 else "default"),
        exchange_rate=rate,
        tolerance=checked_tolerance(tolerance, strengths, driver, anchor, batch_norm),
    )
    if any(each is not None for each in (strength, exchange_rate, tolerance)):
        state.asked = Setting(state.strength_text, "given")
    core = Core(asked, state, TaskState(), Runtime(model, checked_group(rarer.group)))
    first_look(core)
    core.space.check()
    warn_of_unmerged(core)
    return core


def _refuse_in_8_bits(rarer: GuardOptions, model: nn.Module, anchor: AnchorKind) -> None:
    """Refuse what is kept beside the anchor and Ω, and is neither of them, and an anchor that is no model's weights."""
    if anchor == "mean" and any(parameter.dtype.itemsize == 2 for parameter in model.parameters()):
        raise ConfigurationError(
            "state_dtype='8bit' with anchor='mean' and weights of 16 bits, beside which the anchor has 16 bits too: "
            "the mean of many tasks lies between such numbers, and would stand still. Leave state_dtype out, or take "
            "anchor='last'."
        )
    if rarer.space == "merged" or rarer.gradient_term:
        beside = "space='merged'" if rarer.space == "merged" else "gradient_term=True"
        raise ConfigurationError(
            f"state_dtype='8bit' with {beside}, which keeps tensors that are small differences of large ones: expected "
            "it without. Take state_dtype=torch.bfloat16, or leave it out."
        )


def _ledgers(
    driver: Measure, form: Form, watch: Sequence[Measure | str] | Mapping[str, Measure | str], storage: Storage
) -> dict[str, Ledger]:
    """Return the account of every measure, by its name: first that of the one that drives the penalty."""
    found = {driver.name: Ledger(driver, form, storage)}
    for name, watching in named_measures(watch):
        if name in found:
            raise ConfigurationError(
                f"Two measures are called {name!r}. Give watch as a mapping with a name of your own for each."
            )
        if "/" in name:
            raise ConfigurationError(f"A measure is called {name!r}; expected a name without '/'.")
        found[name] = Ledger(watching, storage=storage)
    return found
