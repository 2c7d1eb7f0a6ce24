"""What a run may ask for that the fast engine cannot do with, and the plain loop can."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from anchorhold.forms import Form
from anchorhold.measures import Measure
from anchorhold_lab.training.fast.layer_holds import can_hold
from anchorhold_lab.training.fast.shared_steps import can_measure

if TYPE_CHECKING:
    from anchorhold_lab.experiments.specs.spec import Spec


def beyond_fast(spec: "Spec", form: Form, measures: Mapping[str, Measure], *, has_linear_term: bool) -> Iterator[str]:
    """Yield what of a spec is beyond the fast engine, the most telling first.

    Args:
        spec: the run, all of it filled in.
        form: its form.
        measures: the one that protects and those that watch.
        has_linear_term: whether the hold has a linear term.
    """
    settings = spec.settings
    yield from (f"{name}, which counts steps in Python" for name, each in measures.items() if not can_measure(each))
    if settings.compress:
        yield f"compress={settings.compress}, a second network"
    if spec.incremental == "class":
        yield "incremental='class', a head that grows"
    if settings.consolidate != "tasks":
        yield f"consolidate={settings.consolidate!r}"
    if spec.tolerance is not None:
        yield f"tolerance={spec.tolerance:g}"
    if settings.trains == "jointly":
        yield "trains='jointly'"
    if spec.holds:
        yield f"holds={spec.holds}"
    if spec.batch_norm == "fold":
        yield "batch_norm='fold'"
    if has_linear_term:
        yield f"anchor='mean' and gradient_term={spec.gradient_term} in the form {form}"
    if not can_hold(form):
        yield f"the form {form}"
