"""Which measures can be taken from the gradients of micro-batches, and which have to be refused."""

from dataclasses import dataclass, field

from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import ConfigurationError, OrderError
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.microbatches.gradient_sums import MeanKey
from anchorhold.measures import MEASURES, Fisher, Measure, PathMeasure, SampleMeasure

MEAN_LOSS = MeanKey(LogLikelihood("true", per="token"), None, None)
"""What measures along the path see the gradient of: the mean over all labels that count, the usual loss of training."""


@dataclass
class MicrobatchSupport:
    """What a guard's measures want of micro-batches."""

    of_samples: list[MeanKey] = field(default_factory=list)
    """What measures that are a mean over samples ask for, each once, on all processes in one order."""
    along_path: dict[str, PathMeasure] = field(default_factory=dict)
    """Measures that see one gradient after another, by name."""


def taken_measures(core: Core) -> MicrobatchSupport:
    """Return what the guard's measures want of micro-batches, or refuse one that cannot be had from them."""
    found = MicrobatchSupport()
    for name, ledger in core.state.ledgers.items():
        measure, needs = ledger.measure, ledger.measure.needs
        if not (needs.data or needs.path):
            continue
        if why := why_not(measure):
            raise ConfigurationError(f"gradients.microbatches() with {name}: {why}. {_those_that_can()}")
        if not ledger.form.elementwise:
            raise ConfigurationError(
                f"gradients.microbatches() with form={ledger.form.name!r}, which is made of each layer's inputs and "
                "output gradients, sample by sample. Call consolidate(batches), or take form='diagonal'."
            )
        if isinstance(measure, PathMeasure):
            found.along_path[name] = measure
        elif isinstance(measure, SampleMeasure) and MeanKey.by(measure) not in found.of_samples:
            found.of_samples.append(MeanKey.by(measure))
    if not (found.of_samples or found.along_path):
        raise ConfigurationError(
            f"gradients.microbatches() with {core.state.driver}, which looks at no gradient. Call consolidate()."
        )
    if core.options.batch_norm == "fold":
        raise ConfigurationError(
            "gradients.microbatches() with batch_norm='fold': call consolidate(batches), or freeze them."
        )
    if found.along_path and core.task.steps and core.task.watched is None:
        raise OrderError(
            f"gradients.microbatches() in the middle of a task: {next(iter(found.along_path))} has seen "
            f"{max(core.task.steps.values())} steps of training, and would mix both. Call consolidate() or "
            "gradients.restart_task() first."
        )
    return found


def asked_of(state: GuardState) -> list[MeanKey]:
    """Return what measures that are a mean over samples can be asked for, each once, in one order."""
    measures = [ledger.measure for ledger in state.ledgers.values() if ledger.form.elementwise]
    able = [measure for measure in measures if isinstance(measure, SampleMeasure) and not why_not(measure)]
    return list(dict.fromkeys(map(MeanKey.by, able)))


def why_not(measure: Measure) -> str:
    """Return why a measure cannot be taken from the mean gradients of micro-batches; nothing where it can."""
    needs = measure.needs
    if needs.step:
        return "it measures what steps do, and none is taken"
    if needs.independent or needs.squares:
        return "it needs a second gradient beside each"
    return _why_no_mean_of(measure) if isinstance(measure, SampleMeasure) else ""


def _why_no_mean_of(measure: SampleMeasure) -> str:
    if not isinstance(measure, Fisher) or measure.phi != SQUARE:
        return "it is made of each sample's own gradient, which is not in the mean of several"
    if measure.labels == "exact":
        return "labels='exact' wants one backward pass a label; take labels='sampled' or 'true'"
    if measure.positions == "separate":
        return "positions='separate' wants each position's own gradient; take 'joint'"
    if measure.draws != 1:
        return f"draws={measure.draws}: each pass draws one label a sample; give the batches that many times"
    return ""


def _those_that_can() -> str:
    ready = [name for name in MEASURES if not why_not(MEASURES[name]()) and _looks(MEASURES[name]())]
    return (
        f"Those that can: {', '.join(ready)}, and sqrtFisher and online-EWC with labels='sampled' or 'true'. For any "
        "other, call consolidate(batches), of a model that no device can hold with Guard(..., "
        "options=GuardOptions(gather='layers'))."
    )


def _looks(measure: Measure) -> bool:
    return measure.needs.data or measure.needs.path
