r"""g, the mean gradient of a task's own loss where the task has ended: SOLA's gradient term.

The loss is the negative log-likelihood of the data's own labels, with the network in eval mode: cross-entropy, that of
labels each 0 or 1, or :math:`\tfrac12\|y - z\|^2`. The per-sample engine goes through the samples for it once, as it
does for a measure, with :math:`\varphi(u) = u`.
"""

from collections.abc import Sequence

from torch import Tensor

from anchorhold.engine.accumulator import SampleAccumulator
from anchorhold.engine.batches import Forward
from anchorhold.engine.phi import IDENTITY
from anchorhold.engine.scores import LogLikelihood
from anchorhold.engine.scores.base import PositionScore
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.whole_model import whole_model
from anchorhold.measures import SampleMeasure
from anchorhold.tensors.sharding import wrap_local


class TaskLogLikelihood(LogLikelihood):
    """The log-likelihood of the data's own labels, as messages call it here."""

    def __repr__(self) -> str:
        return "gradient_term=True"


class TaskGradient:
    """Collects g beside the measures, from the same samples."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._collector: SampleAccumulator | None = None

    def collector(self, forward: Forward | None, beside: Sequence[SampleAccumulator]) -> SampleAccumulator:
        """Return what takes the batches in, of the same model as others, which a sharded one is made whole for once."""
        core, measure = self.core, self.core.state.driving.measure
        model, parameters = (
            (beside[0].model, beside[0].parameters)
            if beside
            else whole_model(core.runtime.model, core.runtime.parameters, by_layer=core.runtime.by_layer)
        )
        limit = measure.sample_limit if isinstance(measure, SampleMeasure) else None
        self._collector = SampleAccumulator(
            model,
            self._score(),
            IDENTITY,
            parameters=parameters,
            forward=forward,
            samples=limit,
            reduction=core.own_parts(IDENTITY),
        )
        return self._collector

    def _score(self) -> LogLikelihood:
        """Return the log-likelihood, read and averaged as the measure has it, so that Q and g are of one loss."""
        measure = self.core.state.driving.measure
        asked = measure.score if isinstance(measure, SampleMeasure) else None
        if not isinstance(asked, PositionScore):
            return TaskLogLikelihood("true")
        # A sum over positions is the same whether each is a sample of its own; what it is divided by is not.
        per = "token" if asked.positions == "separate" else asked.per
        return TaskLogLikelihood("true", likelihood=asked.likelihood, class_dim=asked.class_dim, per=per)

    def found(self) -> dict[str, Tensor]:
        """Return the mean over the samples of all processes, by parameter, spread as the parameters are."""
        assert self._collector is not None
        means = self._collector.result().values
        return {name: wrap_local(-means[name], parameter) for name, parameter in self.core.runtime.parameters.items()}
