"""How a run calls its network: through a task's head, over the outputs that are open by then, in its own precision."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anchorhold.holds import DarkExperience, Distillation
from anchorhold.holds.of_batches.batch_hold import BatchHold
from anchorhold_lab.scenarios import Scenario, open_outputs
from anchorhold_lab.training.options.precision import Precision, computing_in


class NetworkCalls:
    """Calls networks as one run does, for its losses, its holds and its kept samples alike.

    Args:
        scenario: the tasks, each with its head and the outputs that are open while it is learned.
        precision: of the run.
        device: where it trains.
        at: tells which task is being learned, or has just been.
    """

    def __init__(self, scenario: Scenario, precision: Precision, device: torch.device, at: Callable[[], int]) -> None:
        self._scenario, self._precision, self._device, self._at = scenario, precision, device, at

    def logits(
        self, model: Callable[..., Tensor], inputs: Tensor, task: int, heads: int | Tensor | None = None
    ) -> Tensor:
        """Return what a network says of inputs of a task, through the task's head or others."""
        told = self._scenario.tasks[task]
        with computing_in(self._precision, self._device):
            logits = model(inputs, told.head if heads is None else heads)
        return open_outputs(logits, told.outputs)

    def for_hold(self, hold: BatchHold) -> Callable[..., Tensor]:
        """Return how a hold calls the network: where tasks have heads of their own, through that of each sample.

        Where one head grows, old outputs are held over the classes that the old network had (LwF), as they are (DER++),
        and samples are learned once more beside all classes so far.
        """
        if self._scenario.heads > 1:
            return self.logits
        if isinstance(hold, DarkExperience):
            return lambda model, inputs: self._by_one_head(model, inputs, None)
        if isinstance(hold, Distillation):
            return lambda model, inputs: self._by_one_head(model, inputs, max(self._at() - 1, 0))
        return lambda model, inputs: self._by_one_head(model, inputs, self._at())

    def _by_one_head(self, model: nn.Module, inputs: Tensor, open_in: int | None) -> Tensor:
        """Return what a network with one head says, over the outputs that are open in a task; of all, with ``None``."""
        with computing_in(self._precision, self._device):
            logits: Tensor = model(inputs)
        return logits if open_in is None else open_outputs(logits, self._scenario.tasks[open_in].outputs)
