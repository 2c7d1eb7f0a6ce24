"""Which runs can share their steps."""

from collections.abc import Sequence
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.measures import Measure
from anchorhold_lab.training.fast.layer_holds import can_hold
from anchorhold_lab.training.fast.step_gradients import is_a_formula
from anchorhold_lab.training.learner import Learner


def check_alike(learners: Sequence[Learner]) -> None:
    """Refuse runs that cannot share their steps."""
    if not learners:
        raise ConfigurationError("No runs were given; expected at least one.")
    if len({id(learner.model) for learner in learners}) < len(learners):
        raise ConfigurationError("Several runs have one network among them; expected one of its own for each.")
    for learner in learners:
        _refuse_what_has_no_place(learner)
    types = {parameter.dtype for parameter in learners[0].model.parameters()}
    if len(types) > 1 or min(dtype.itemsize for dtype in types) < 4:
        raise ConfigurationError(
            f"Parameters of type {', '.join(sorted(map(str, types)))}; expected float32 or float64 for all of them. "
            "precision='bf16' computes in 16 bits and keeps weights and importances in full."
        )
    expected = _kind(learners[0])
    for learner in learners[1:]:
        for first, other in zip(expected, _kind(learner), strict=True):
            if first != other:
                raise ConfigurationError(
                    f"Runs side by side must be alike but for seed and strength; one has {first}, another {other}."
                )


def can_measure(measure: Measure) -> bool:
    """Whether a recorded step can show a measure all that it needs: its number is on the device."""
    return not measure.needs.number or measure.counts_on_device


def _refuse_what_has_no_place(learner: Learner) -> None:
    """Refuse what a step has no place for, rather than train something else in its stead."""
    guard = learner.guard
    wanted = []
    if not can_hold(guard.options.form):
        wanted.append(f"the form {guard.options.form}")
    if guard.options.implicit and not guard.options.form.elementwise and learner.settings.optimizer != "sgd":
        wanted.append(f"implicit=True in the form {guard.options.form} with optimizer={learner.settings.optimizer!r}")
    if guard.held.has_linear_term:
        wanted.append(f"anchor='mean' and gradient_term={guard.options.gradient_term} in the form {guard.options.form}")
    if guard.options.batch_norm == "fold":
        wanted.append("batch_norm='fold', whose hold is on other numbers than the weights")
    if guard.tolerance is not None:
        wanted.append(f"tolerance={guard.tolerance:g}, which looks at kept inputs within a task")
    if learner.settings.trains == "jointly":
        wanted.append("trains='jointly', whose batches go through several heads")
    if learner.columns is not None:
        wanted.append(f"compress={learner.settings.compress}, which trains a second network")
    if learner.scenario.grows:
        wanted.append("a head that grows, of which each step has another part")
    if learner.task_free is not None:
        wanted.append(f"consolidate={learner.settings.consolidate!r}, which looks at the loss of each step")
    wanted += [f"the hold {hold.name!r}" for hold in guard.options.holds]
    unknown = [name for name, measure in guard.measures.items() if not can_measure(measure)]
    wanted += [f"{name}, which counts steps in Python" for name in unknown]
    if learner.device.type == "cuda" and not is_a_formula(learner):  # whose passes over samples cannot be recorded
        squaring = [name for name, measure in guard.measures.items() if measure.needs.squares]
        wanted += [f"{name}, which looks at single samples in steps, on a GPU with such a network" for name in squaring]
    if wanted:
        raise ConfigurationError(
            f"The fast engine cannot do with {', '.join(wanted)}; expected engine='plain' for such a run."
        )


def _kind(learner: Learner) -> tuple[Any, ...]:
    """Return all that runs side by side have in common."""
    tasks = tuple((len(task.stored_train), task.head) for task in learner.scenario.tasks)
    x = learner.few_inputs()
    guard = learner.guard
    measures, form = (
        (*guard.measures.items(), guard.options.batch_norm, f"implicit={guard.options.implicit}"),
        guard.options.form,
    )
    network = f"{learner.model}, parameters of {[str(p.dtype) for p in learner.model.parameters()]}"
    return learner.settings, learner.device, learner.precision, tasks, (x.shape[1:], x.dtype), measures, form, network
