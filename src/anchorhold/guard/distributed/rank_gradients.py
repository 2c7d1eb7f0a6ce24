r"""The gradients of a DDP job's ranks, each of them an estimate that is independent of the others.

DDP averages them before anyone sees them. A communication hook is shown this rank's own first, and with one more sum
over the ranks, that of the squares, the mean over all pairs of ranks follows (see
:func:`~anchorhold.measures.recurrences.add_pairs_to_second_moment_`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from anchorhold.errors import OrderError
from anchorhold.measures import PathMeasure

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed import Work
    from torch.futures import Future

CommHook = Callable[[Any, "GradBucket"], "Future[Tensor]"]
"""How DDP lets others average a bucket of gradients: ``hook(state, bucket)``."""


class RankGradients:
    """Gathers the mean square of the ranks' gradients while DDP averages them.

    Args:
        model: the wrapped model.
        samples: how many samples each rank's gradient is the mean of, where known.
        comm_hook: the hook that averages; by default DDP's usual sum over the ranks.
        state: what that hook wants to be given.
        watched: a parameter that an attached optimizer trains, to notice backward passes by; the gradients of others
            may never be zeroed.
    """

    def __init__(
        self,
        model: DistributedDataParallel | None,
        samples: int | None,
        comm_hook: CommHook | None,
        state: object,
        watched: nn.Parameter | None,
    ) -> None:
        if model is None:
            raise OrderError(
                "gradients.ranks() needs the model in its DDP wrapper, which is what averages the ranks' gradients. "
                "Give Guard() the DistributedDataParallel model; elsewhere call gradients.independent()."
            )
        if model.process_group.size() < 2:
            raise OrderError(
                "gradients.ranks() in a group of one process, which has one estimate of the gradient; expected two or "
                "more. Call gradients.independent() or gradients.halves()."
            )
        if watched is None:
            raise OrderError(
                "gradients.ranks() while every protected parameter of the attached optimizers is frozen. Call it once "
                "one of them is trained."
            )
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415 (not in every build)

        self.samples = samples
        self.estimates: int = model.process_group.size()
        self._group = model.process_group
        self._averaging: CommHook = comm_hook or default_hooks.allreduce_hook
        self._state = self._group if comm_hook is None else state
        self._works: list[Work] = []
        self._squares: dict[int, Tensor] = {}
        self._sizes: dict[int, Tensor] = {}
        """The squared norm of each averaged gradient, to tell by which factor it has been scaled since."""
        self.active = True
        self._watched = watched
        self._summed = False
        self._summed_twice = False
        try:
            # DDP looks at annotations, and would not take them as strings.
            model.register_comm_hook(None, lambda _, bucket: self._hook(bucket))
        except RuntimeError as error:
            raise OrderError(
                "The model has a communication hook already, and DDP takes only one. Give yours to gradients.ranks("
                "comm_hook=, state=) in place of model.register_comm_hook(), and call it once."
            ) from error
        # A hook of the node that adds to .grad, and not of the parameter: torch.autograd.grad would call that too.
        self._adder = get_gradient_edge(self._watched).node
        self._adder.register_prehook(self._look_before_adding)

    def mean_square(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        """Return the mean square of the ranks' gradients for the coming step, scaled as the gradient given is."""
        for work in self._works:
            work.wait()
        self._works.clear()
        square = self._squares.get(id(parameter))
        if square is None:  # this parameter took no part, see check_step()
            return torch.zeros_like(gradient)
        # A gradient scaler and clipping by norm have multiplied all of a gradient by one number since it was averaged.
        then, now = self._sizes[id(parameter)], _squared_norm(gradient)
        return square * torch.where(then > 0, now / then, torch.ones_like(then))

    def check_step(self, measure: PathMeasure, parameters: Mapping[str, nn.Parameter], *, replaced: bool) -> None:
        """Refuse a step for which the ranks' gradients are not known."""
        measure.check_step(self.samples)
        if replaced:
            raise OrderError(
                "gradients.observe(loss) measures another gradient than the one that the ranks have averaged. With "
                "gradients.ranks(), leave gradients.observe() out; or give gradients.independent() a second batch's "
                "loss as well."
            )
        unseen = [name for name, p in parameters.items() if p.grad is not None and id(p) not in self._squares]
        if unseen:
            raise OrderError(
                f"The gradient of {unseen[0]!r} has not been averaged over the ranks since the last step. Call "
                "backward() on a loss of the model in its DDP wrapper, and the last time before a step not under "
                "no_sync()."
            )
        if self._summed_twice:
            raise OrderError(
                "The ranks' gradients were averaged more than once for this step, and only the last part of them can "
                "be told apart. With gradient accumulation, put all but the last backward pass of a step under "
                "model.no_sync(), which also saves the communication."
            )

    def clear(self, parameters: Iterable[nn.Parameter]) -> None:
        """Forget what has served its step."""
        for parameter in parameters:
            self._squares.pop(id(parameter), None)
            self._sizes.pop(id(parameter), None)
            self._summed &= parameter is not self._watched

    def _hook(self, bucket: "GradBucket") -> "Future[Tensor]":
        """Average a bucket of gradients, and its squares."""
        from torch import distributed  # noqa: PLC0415

        if not self.active:
            return self._averaging(self._state, bucket)
        buffer, gradients, parameters = bucket.buffer(), bucket.gradients(), bucket.parameters()
        # Squared before the average overwrites the buffer; in float32 at least, since 16 bits overflow or vanish.
        squares = buffer.to(torch.promote_types(buffer.dtype, torch.float32)).square().div_(self.estimates)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._squares[id(parameter)] = _same_part(squares, gradient, buffer)
        averaged = self._averaging(self._state, bucket)
        # Started in the same order on every rank, before anything is waited for.
        work = distributed.all_reduce(squares, group=self._group, async_op=True)
        assert work is not None
        self._works.append(work)
        self._summed |= any(parameter is self._watched for parameter in parameters)

        def note_sizes(future: "Future[Any]") -> Tensor:
            value = future.value()
            # What averages may give a tensor, or a list of one.
            mean: Tensor = value[0] if isinstance(value, list | tuple) else value
            for parameter, gradient in zip(parameters, gradients, strict=True):
                self._sizes[id(parameter)] = _squared_norm(_same_part(mean, gradient, buffer))
            return mean

        return averaged.then(note_sizes)

    def _look_before_adding(self, _: object) -> None:
        """Notice a backward pass that adds to a gradient which is a sum over the ranks already.

        After a step that never came, as with a gradient scaler, the gradient has been zeroed and all is well.
        """
        if self._summed or self._summed_twice:
            grad = self._watched.grad
            self._summed_twice = self._summed = grad is not None and bool(grad.any())


def _same_part(flat: Tensor, part: Tensor, buffer: Tensor) -> Tensor:
    """Return the part of a flat tensor that lies where another part lies in a buffer."""
    offset = part.storage_offset() - buffer.storage_offset()
    return flat.as_strided(part.shape, part.stride(), flat.storage_offset() + offset)


def _squared_norm(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).square().sum()
