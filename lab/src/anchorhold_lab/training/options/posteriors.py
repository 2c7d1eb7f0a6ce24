"""Runs whose weights are distributions: what the hold "variational" asks of a network, of a task and of predictions."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.holds import Hold, Variational
from anchorhold.variational import mean_field, mean_field_layers
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.scenarios import Scenario, Task, open_outputs

Weights = Mapping[str, Tensor]


class Posterior:
    """The hold of a run, and how its network is trained and judged with it.

    Args:
        hold: says how far the posterior may go, over how many draws predictions are averaged, and how long coresets are
            looked at.
        model: the network, whose layers get distributions.
        scenario: the tasks, whose coresets are the samples that were set aside of them.
        batch_size: of steps on coresets.
        learning_rate: of these.
    """

    def __init__(
        self, hold: Variational, model: MultiHead, scenario: Scenario, batch_size: int, learning_rate: float
    ) -> None:
        check_coreset(hold, keeps=scenario.keeps)
        if not mean_field_layers(model):
            mean_field(model)
        self.hold = hold
        self._given = hold.samples
        self._model, self._tasks, self._own_heads = model, scenario.tasks, scenario.heads > 1
        self._batch_size, self._learning_rate = batch_size, learning_rate

    def begin_task(self, task: int, samples: int) -> None:
        """Let the hold begin a task of so many samples, with the head that it trains."""
        self.count(samples)
        if self.hold.restart is not None:
            self.hold.narrow(self._model.body, self._model.heads[self._tasks[task].head])

    def count(self, samples: int) -> None:
        """Let the KL count once for so many samples, unless another number was given."""
        self.hold.samples = self._given or samples

    def weights(self, learned: int, outputs: int | None = None) -> list[Weights | None]:
        """Return what each task is judged with: the network's own weights, or those that have seen coresets too.

        With one head for all, they see the coresets of all tasks that have been learned, over its first ``outputs`` if
        it grows; with a head each, a task is judged by weights that have seen its own.
        """
        found: list[Weights | None] = [None] * len(self._tasks)
        if not self.hold.coreset or not learned:
            return found
        if not self._own_heads:
            with self._open(outputs):
                return [self._refined(self._tasks[:learned])] * len(self._tasks)
        return [self._refined([task]) for task in self._tasks[:learned]] + found[learned:]

    def scores(self, x: Tensor, head: int, weights: Weights | None, outputs: int | None = None) -> Tensor:
        """Return predicted probabilities, as logarithms; of the first ``outputs`` classes, where a head grows."""
        with self._open(outputs):  # in every draw: a mean of softmaxes over more classes is another one
            return self.hold.predict(self._model, x, head, weights=weights)

    @contextlib.contextmanager
    def _open(self, outputs: int | None) -> Iterator[None]:
        """Let the network have no other outputs for a while."""
        handle = self._model.register_forward_hook(lambda _, __, logits: open_outputs(logits, outputs))
        try:
            yield
        finally:
            handle.remove()

    def _refined(self, tasks: Sequence[Task]) -> Weights:
        batches = []
        for task in tasks:
            aside = task.kept
            assert aside is not None
            pairs = zip(aside.x.split(self._batch_size), aside.y.split(self._batch_size), strict=True)
            batches += [(x, task.head, y) for x, y in pairs]
        return self.hold.refined(self._model, batches, learning_rate=self._learning_rate)


def check_coreset(hold: Variational | None, *, keeps: bool) -> None:
    """Refuse coresets where no samples are set aside for them."""
    if hold is not None and hold.coreset and not keeps:
        raise ConfigurationError(
            f"coreset={hold.coreset} epochs for a scenario that has set no samples aside for it; expected kept= in "
            "a spec, --kept on the command line, such as 200."
        )


def check_restart(hold: Variational | None, consolidate: str | int) -> None:
    """Refuse narrow weights at the beginnings of tasks where nobody is told of those."""
    if hold is not None and hold.restart is not None and consolidate != "tasks":
        raise ConfigurationError(
            f"restart={hold.restart:g} with consolidate={consolidate!r}: every task is to begin with narrow weights, "
            "and nobody is told where one begins; expected consolidate='tasks', or no restart."
        )


def variational_hold(holds: Iterable[Hold]) -> Variational | None:
    """Return the hold that lets weights be distributions, if there is one."""
    return next((hold for hold in holds if isinstance(hold, Variational)), None)
