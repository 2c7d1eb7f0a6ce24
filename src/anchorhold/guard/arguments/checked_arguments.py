"""What a Guard is given, checked: measures, forms and holds, or their names, and numbers."""

from collections.abc import Mapping, Sequence
from typing import NoReturn, get_args

import torch

from anchorhold.errors import ConfigurationError
from anchorhold.forms import Form
from anchorhold.forms import form as form_by_name
from anchorhold.forms.layers import LayerForm
from anchorhold.guard.arguments.strengths import USUAL_RATE, checked_exchange_rate
from anchorhold.guard.core import AnchorKind
from anchorhold.guard.ledger import Ledger
from anchorhold.holds import Hold
from anchorhold.holds import hold as hold_by_name
from anchorhold.measures import MEASURES, FineTune, Measure
from anchorhold.measures import measure as measure_by_name
from anchorhold.retention import Tolerance
from anchorhold.settings import number, whole_number
from anchorhold.spaces import SpaceName


def device_with_number(given: torch.device | str) -> torch.device:
    """Return a device with its number, as tensors name theirs, or refuse one on which nothing can be kept."""
    try:
        found = torch.empty(0, device=given).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ConfigurationError(
            f"state_device={given!r}: nothing can be kept there ({why}). Expected a device that this machine has, such "
            "as 'cpu'; or leave it out, to keep all of it with the parameters."
        ) from error
    if found.type == "meta":
        raise ConfigurationError(
            "state_device='meta', which keeps shapes alone. What a guard would take is known from a model on the meta "
            "device, by guard.cost(); leave state_device out."
        )
    return found


def checked_tolerance(
    given: object, strengths: Mapping[str, object], driver: Measure, anchor: AnchorKind, batch_norm: str | None
) -> Tolerance | None:
    """Return how much may be lost, or refuse what does not go together with it."""
    if given is None:
        return None
    found = given if isinstance(given, Tolerance) else Tolerance(given)  # type: ignore[arg-type]
    for name, strength in strengths.items():
        if strength is not None:
            raise ConfigurationError(
                f"{name}={strength!r} and tolerance={found.nats:g}: the strength follows the tolerance. Give one of "
                "them."
            )
    if isinstance(driver, FineTune):
        raise ConfigurationError(
            f"tolerance={found.nats:g} with {driver.name}, which finds no importance whose strength could follow it. "
            "Take a measure that holds weights, such as Fisher()."
        )
    if anchor != "last":
        raise ConfigurationError(
            f"tolerance={found.nats:g} with anchor={anchor!r}: the way back from too much loss leads to the last "
            "task's own solution, and that is not where the hold is centred. Take anchor='last'."
        )
    if batch_norm == "fold":
        raise ConfigurationError(
            f"tolerance={found.nats:g} with batch_norm='fold': the way back from too much loss leads to weights, and "
            "the anchor is of folded ones. Take batch_norm='freeze'."
        )
    return found


def checked_rate(rate: object, strength: object, tolerance: object, driver: Measure) -> float | None:
    """Return the exchange rate, the usual one where nobody has said how strongly, or refuse one that there is not.

    ``None`` where a strength or a tolerance was given, and of a measure whose strength nothing tells.
    """
    if rate is None:
        unsaid = strength is None and tolerance is None
        return USUAL_RATE if unsaid and driver.is_in_nats and driver.needs.data else None
    if strength is not None:
        raise ConfigurationError(
            f"strength={strength!r} and exchange_rate={rate!r}: expected one of both. The exchange rate κ makes the "
            "strength, κ/(2T) for T scored tokens in a sample."
        )
    if isinstance(rate, Mapping):
        raise ConfigurationError(
            f"exchange_rate={rate!r}: expected one number. What is lost is lost by all weights together, so there is "
            "no exchange rate of some of them. Give strength={...}, which may be by patterns, or leave weights out of "
            "protect=."
        )
    found = checked_exchange_rate(rate)
    if isinstance(driver, FineTune):
        raise ConfigurationError(
            f"exchange_rate={found:g} with {driver.name}, which holds no weight, so there is nothing to exchange. "
            "Leave it out."
        )
    if not driver.is_in_nats:
        raise ConfigurationError(
            f"exchange_rate={found:g} with {driver!r}, whose importance is no Fisher information: its unit is its own, "
            "and no factor turns it into nats. Give strength= or tolerance=, or take Fisher() with labels= 'exact', "
            "'sampled' or 'true', OnlineEWC(normalise=False) or PosteriorPrecision()."
        )
    return found


def checked_decay(value: float) -> float:
    """Return the decay γ, or say what was expected."""
    expected = "a number from 0 to 1 (1 keeps all, as the paper does)"
    return float(number("decay", value, expected, lambda gamma: 0 <= gamma <= 1))


def checked_batch_norm(value: str | None, ledgers: Mapping[str, Ledger], holds: Sequence[Hold]) -> str | None:
    """Return what is to be done about batch norm, or refuse what cannot be."""
    if value not in (None, "freeze", "fold"):
        raise ConfigurationError(
            f"batch_norm={value!r}: expected 'freeze', which keeps running statistics as they are after the first "
            "task, 'fold', which holds weights as the statistics scale them, or None."
        )
    along_the_path = [name for name, ledger in ledgers.items() if ledger.measure.needs.path]
    if value == "fold" and along_the_path:
        raise ConfigurationError(
            f"batch_norm='fold' with {along_the_path[0]}, which measures weights along their path, and not what they "
            "are once a batch norm is folded into them. Take a measure that looks at data, such as Fisher(), or "
            "batch_norm='freeze'."
        )
    looking = [hold.name for hold in holds if not hold.runs_model]
    if value == "fold" and looking:
        raise ConfigurationError(
            f"batch_norm='fold' beside the hold {looking[0]!r}: the anchor that holds are given is then of folded "
            "weights, and their parameters are not. Take batch_norm='freeze', or leave the hold out."
        )
    return value


def checked_implicit(value: object, form: Form, batch_norm: str | None, *, has_linear_term: bool) -> bool:
    """Return whether the hold is implicit, or refuse what cannot be."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"implicit={value!r}: expected True or False.")
    if value and batch_norm == "fold":
        raise ConfigurationError(
            "implicit=True with batch_norm='fold', whose hold is on products of the weights: no step that a weight "
            "takes is one of theirs. Take batch_norm='freeze', or leave implicit out."
        )
    if value and has_linear_term and not form.elementwise:
        raise ConfigurationError(
            f"implicit=True in the form {form.name!r} with anchor='mean', which gives the hold a linear term: "
            "along directions of no importance rounding alone does so too, and a large strength drives weights away. "
            "Take anchor='last', the form 'diagonal', or leave implicit out."
        )
    if value and form.has_matrix_per_task:
        raise ConfigurationError(
            f"implicit=True with {form}, whose sum of all tasks has no coordinates of its own in which the pull could "
            "be found. Take one of the other ways to add tasks, or leave implicit out."
        )
    return value


def checked_pull_every(value: object, implicit: object) -> int:
    """Return after how many steps the hold acts, or refuse what cannot be."""
    every = whole_number("pull_every", value, "a whole number of steps, at least 1", least=1)
    if every > 1 and implicit is False:
        raise ConfigurationError(
            f"pull_every={every} with implicit=False: a hold that joins the gradient acts at every step, and one for "
            f"{every} steps at once would overshoot the anchor at a strength {every} times smaller. Leave implicit "
            "out, so that the hold acts after steps, or leave pull_every out."
        )
    return every


def may_be_implicit(form: Form, batch_norm: str | None, *, has_linear_term: bool) -> bool:
    """Whether a hold of which nobody has said so may act after the step: one by one, or in coordinates.

    Those of a layer can be found where they are not kept; those of all weights together would take the cube of them.
    """
    if not (form.elementwise or form.has_eigenbasis or isinstance(form, LayerForm)):
        return False
    try:
        return checked_implicit(True, form, batch_norm, has_linear_term=has_linear_term)
    except ConfigurationError:
        return False


def refuse_merged_path(space: object, measure: Measure, form: Form) -> None:
    """Refuse a measure along the path in merged space, and say which have an importance there in this form."""
    if space == "merged" and measure.needs.path:
        every = {name: MEASURES[name]() for name in MEASURES}
        known = [name for name, other in every.items() if not other.needs.path and form.supports(other)]
        raise ConfigurationError(
            f"space='merged' with {measure.name}, which measures parameters along their path, and not the weights that "
            f"they are merged with. Measures that have an importance of those in the form {form.name!r}: "
            f"{', '.join(known)}."
        )


def checked_space(
    value: SpaceName | None,
    ledgers: Mapping[str, Ledger],
    holds: Sequence[Hold],
    anchor: AnchorKind,
    batch_norm: str | None,
    *,
    implicit: bool,
) -> SpaceName | None:
    """Return in which space adapters are held, or refuse what does not go together with that.

    ``None`` stays so where both would do.
    """
    if value == "weights":
        return "weights"
    if value is None:
        try:
            checked_space("merged", ledgers, holds, anchor, batch_norm, implicit=implicit)
        except ConfigurationError:
            return "weights"
        return None
    if value != "merged":
        raise ConfigurationError(
            f"space={value!r}: expected 'weights', which holds adapters' own parameters, 'merged', which holds the "
            "weights that they are merged with, or None, which takes the one that keeps more where both are known."
        )
    for ledger in ledgers.values():
        refuse_merged_path(value, ledger.measure, ledger.form)
    if by_weight := [hold.name for hold in holds if hold.by_weight]:
        raise ConfigurationError(
            f"The hold {by_weight[0]!r} with space='merged': it goes by the importance of each protected weight, and "
            "adapters have one together there. Leave the hold out, or give options=GuardOptions(space='weights')."
        )
    others = {"anchor='mean'": anchor == "mean", "batch_norm='fold'": batch_norm == "fold", "implicit=True": implicit}
    for words, asked in others.items():
        if asked:
            raise ConfigurationError(
                f"space='merged' with {words}: that is of parameters, and merged weights are products of them. Leave "
                f"{words} out, or give options=GuardOptions(space='weights')."
            )
    return "merged"


def checked_anchor(anchor: AnchorKind, measure: Measure, *, gradient_term: bool) -> None:
    """Refuse a centre of the hold that there is not."""
    if anchor not in get_args(AnchorKind):
        raise ConfigurationError(
            f"anchor={anchor!r}: expected 'last', the last task's solution, or 'mean', that of all tasks' solutions by "
            "their importance."
        )
    if not isinstance(gradient_term, bool):
        raise ConfigurationError(f"gradient_term={gradient_term!r}: expected True or False.")
    if gradient_term and anchor == "last":
        raise ConfigurationError(
            "gradient_term=True with anchor='last': the gradient of a task's loss belongs to a penalty around that "
            "task's own solution; around the last one alone, a task that has settled between its own optimum and what "
            "holds it would be pushed on. Give anchor='mean', which is SOLA, or leave gradient_term out."
        )
    if anchor == "mean" and measure.clamps_total:
        raise ConfigurationError(
            f"anchor='mean' with {measure.name}, whose total has importances below 0, by which no mean can be "
            "weighted. Let it clamp each task's importance (clamp='task'), or take anchor='last'."
        )


def as_measure(given: object) -> Measure:
    """Return a measure, of which the name may be given."""
    if isinstance(given, Measure):
        return given
    return measure_by_name(given) if isinstance(given, str) else _refused("measure", given, "SOS(), or 'SOS'")


def as_form(given: object) -> Form:
    """Return a form, of which the name may be given."""
    if isinstance(given, Form):
        return given
    return form_by_name(given) if isinstance(given, str) else _refused("form", given, "Diagonal(), or 'diagonal'")


def _refused(what: str, given: object, example: str) -> NoReturn:
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    raise ConfigurationError(
        f"{what}={name}: expected a {what}, with its parentheses, or the name of one, such as {example}."
    )


def as_holds(holds: object) -> list[Hold]:
    """Return holds, of which the names may be given, each once."""
    if isinstance(holds, str | Hold) or not isinstance(holds, Sequence):
        raise ConfigurationError(f"holds={holds!r}: expected a list of holds or of their names.")
    found = [hold_by_name(hold) if isinstance(hold, str) else hold for hold in holds]
    for hold in found:
        if not isinstance(hold, Hold):
            given = hold.__name__ if isinstance(hold, type) else type(hold).__name__
            raise ConfigurationError(f"holds has {given}; expected a hold, with its parentheses, or the name of one.")
        if not hold.name or "/" in hold.name:
            raise ConfigurationError(
                f"The {type(hold).__name__} in holds has the name {hold.name!r}; expected one without '/', by which "
                "its state is kept. Register it: @anchorhold.register_hold('name')."
            )
    names = [hold.name for hold in found]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"holds names {names}; expected each of them once, since states are kept by name. Name "
            "one of two alike: Replay(..., name='other')."
        )
    shares = {hold.name: hold.share for hold in found if hold.share}
    if sum(shares.values()) > 1:
        raise ConfigurationError(
            f"The holds {', '.join(f'{name!r} with share={share:g}' for name, share in shares.items())} take more than "
            "the whole step together; expected shares that add up to at most 1, and less if the new task is to count."
        )
    return found


def named_measures(watch: Sequence[Measure | str] | Mapping[str, Measure | str]) -> list[tuple[str, Measure]]:
    """Return measures by the names that they are given here, or else by their own."""
    if isinstance(watch, Mapping):
        return [(name, as_measure(measure)) for name, measure in watch.items()]
    return [(measure.name, measure) for measure in map(as_measure, watch)]
