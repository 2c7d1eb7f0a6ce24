"""Several processes that train one model: who they are, what they agree on, and sums over all of them.

A single process is a group of one, for which all of this costs nothing. Nothing here is imported from
``torch.distributed`` until there is a group, since not every build of torch has it.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anchorhold.errors import AnchorholdError, ConfigurationError, OrderError
from anchorhold.tensors.names import has_module
from anchorhold.tensors.sharding import sharded_among

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class _Outcome(NamedTuple):
    """What one rank's part of some work came to."""

    value: Any
    failure: tuple[type[AnchorholdError], str] | None


class Ranks:
    """The processes that share a model; ``group`` is ``None`` for one process alone."""

    def __init__(self, group: "ProcessGroup | None" = None) -> None:
        self.group = group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()

    def together(self, work: Callable[[], T]) -> T:
        """Do this rank's part of some work; what any rank raises, all of them raise.

        Otherwise the others would go on alone, and wait for it for ever. The work itself must not wait for other ranks.
        """
        if self.size == 1:
            return work()
        done: list[T] = []
        self.each(lambda: done.append(work()))
        return done[0]

    def each(self, work: Callable[[], T]) -> list[T]:
        """As :meth:`together`, but return what the work came to on every rank: something small."""
        if self.size == 1:
            return [work()]
        value: T | None = None
        raised: Exception | None = None
        failure: tuple[type[AnchorholdError], str] | None = None
        try:
            value = work()
        except AnchorholdError as error:
            raised, failure = error, (type(error), str(error))
        except Exception as error:  # noqa: BLE001 (whatever it is, the other ranks are told, and it is raised below)
            # The other ranks may not know its type.
            raised, failure = error, (AnchorholdError, f"it stopped with {type(error).__name__}: {error}")
        from torch import distributed  # noqa: PLC0415 (see the module's docstring)

        # A rank whose work has failed comes here too: the others wait for its part.
        outcomes: list[Any] = [None] * self.size
        distributed.all_gather_object(outcomes, _Outcome(value, failure), group=self.group)
        if raised is not None:
            # Its own error as it is, with its traceback; the others get its words.
            raise raised
        for rank, outcome in enumerate(outcomes):
            if outcome.failure is not None:
                kind, message = outcome.failure
                raise kind(f"Rank {rank} of {self.size}: {message}")
        return [outcome.value for outcome in outcomes]

    def from_first(self, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return what some work comes to on the first rank, the same tensors to the last bit on each."""
        if self.size == 1:
            return work()
        found = self.together(lambda: work() if self.rank == 0 else {})
        # Shapes go ahead, so that the other ranks have memory to receive the tensors in.
        first = self.each(lambda: {name: (t.shape, t.dtype, t.device.type) for name, t in found.items()})[0]
        tensors = {
            name: found[name].contiguous() if name in found else torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype, device) in first.items()
        }
        # By the first rank's order on all of them: what one sends is what the others expect.
        self.take_first(list(tensors.values()))
        return tensors

    def add_up(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, the same to the last bit on each; it may be the one given."""
        if self.size == 1:
            return tensor
        from torch import distributed  # noqa: PLC0415

        # Not every backend takes a tensor that is not.
        tensor = tensor.contiguous()
        distributed.all_reduce(tensor, group=self.group)
        return tensor

    def take_first(self, tensors: Sequence[Tensor]) -> None:
        """Give tensors the values that they have on the first rank, in place."""
        if self.size == 1 or not tensors:
            return
        from torch import distributed  # noqa: PLC0415

        # broadcast() counts the ranks of the whole run, also within a group.
        first = 0 if self.group is None else distributed.get_global_rank(self.group, 0)
        for tensor in tensors:
            distributed.broadcast(tensor, first, group=self.group)

    def mean(
        self, gradients_of: Callable[[], list[Tensor | None]], parameters: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the mean of all ranks' gradients; ``None`` is a gradient of 0, and stays so where no rank has one."""
        gradients: list[Tensor | None] = []

        def find_present() -> list[bool]:
            gradients.extend(gradients_of())
            return [gradient is not None for gradient in gradients]

        # Before any sum: a rank that raises leaves none of the others waiting in one.
        present = [any(ranks) for ranks in zip(*self.each(find_present), strict=True)]
        if self.size == 1:
            return gradients
        averaged: list[Tensor | None] = []
        for gradient, parameter, somewhere in zip(gradients, parameters, present, strict=True):
            # A rank without a gradient adds one of 0, since the others wait for its part of the sum.
            own = torch.zeros_like(parameter, requires_grad=False) if gradient is None else gradient
            averaged.append(self.add_up(own).div_(self.size) if somewhere else None)
        return averaged

    def refuse_unless_equal(self, facts: Mapping[str, Any], so: str = "nothing was consolidated") -> None:
        """Raise on every rank unless all of them know the same facts, given by what they are called; ``so`` follows."""
        # All compare the same, so that all raise or none.
        known = self.each(lambda: dict(facts))
        for what in facts:
            for rank, other in enumerate(known):
                if other[what] != known[0][what]:
                    one, two = _difference(known[0][what], other[what])
                    raise ConfigurationError(
                        f"The ranks disagree on {what}: rank 0 has {one} and rank {rank} has {two}, so {so}. "
                        "Every rank has to make the same Guard, load the same state and make the "
                        "same calls."
                    )


ALONE = Ranks()


def checked_group(given: object) -> "ProcessGroup | None":
    """Return a process group, or refuse what is none, such as ``new_group`` returns where it leaves a process out."""
    if given is None:
        return None
    from torch.distributed import ProcessGroup  # noqa: PLC0415

    if not isinstance(given, ProcessGroup):
        raise ConfigurationError(
            f"group={given!r}: expected a torch.distributed process group that this process is in, such as "
            "torch.distributed.group.WORLD after init_process_group(), or None."
        )
    return given


def ranks_of(model: nn.Module, group: "ProcessGroup | None") -> Ranks:
    """Return the ranks that train a model: the group given, or else the one of a DDP or FSDP model."""
    if group is not None:
        return Ranks(group)
    wrapper = ddp_wrapper(model)
    if wrapper is not None:
        return Ranks(wrapper.process_group)
    if not is_fully_sharded(model):
        return ALONE
    from torch import distributed  # noqa: PLC0415
    from torch.distributed.tensor import Replicate  # noqa: PLC0415

    # The batches are split over the group that FSDP shards over, and over the copies of a hybrid.
    sharded = sharded_among(model.parameters())[0]
    mesh = sharded.device_mesh
    if mesh.ndim == 1:
        return Ranks(mesh.get_group())
    hybrid = mesh.ndim == 2 and isinstance(sharded.placements[0], Replicate)
    if hybrid and mesh.size() == distributed.get_world_size() and distributed.group.WORLD is not None:
        return Ranks(distributed.group.WORLD)
    raise ConfigurationError(
        f"The model's parameters lie on a mesh of {tuple(mesh.shape)} processes {mesh.mesh_dim_names or ''}, and it is "
        "not plain which of them see different batches. Give Guard(..., options=GuardOptions(group=)) the process "
        "group of those."
    )


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` (FSDP2) was applied to a model, or to parts of it."""
    # No model is sharded before someone has loaded this.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and has_module(model, fsdp.FSDPModule)


def ddp_wrapper(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DDP wrapper around a model, which may have been compiled as a whole."""
    while not isinstance(model, DistributedDataParallel):
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return None
        model = inner
    return model


def is_one_of_several() -> bool:
    """Whether torch.distributed has been started, with more than one process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def _difference(one: object, two: object) -> tuple[str, str]:
    """Return two different things in words, two mappings by the first entry in which they differ."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        key = next(key for key in [*one, *two] if key not in one or key not in two or one[key] != two[key])
        one, two = ({key: kept[key]} if key in kept else {} for kept in (one, two))
    return repr(one), repr(two)


def refuse_unless_averaging(model: nn.Module) -> None:
    """Refuse a sharded model whose processes' gradients would come together later, or as another multiple."""
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    states = [module._get_fsdp_state() for module in modules]  # noqa: SLF001
    for group in itertools.chain.from_iterable(getattr(state, "_fsdp_param_groups", ()) for state in states):
        # FSDP does not show these publicly; where a version of torch lacks one, nothing is refused.
        if not (getattr(group, "reduce_grads", True) and getattr(group, "all_reduce_grads", True)):
            raise OrderError(
                "FSDP was told not to bring gradients together, as for all but the last micro-batch of a step: what "
                "each process has is its own alone. Call model.set_requires_gradient_sync(True) first."
            )
        factor = getattr(group, "gradient_divide_factor", None)
        if factor is not None:
            raise OrderError(
                f"FSDP was told to divide sums of gradients by {factor:g} (set_gradient_divide_factor); expected their "
                "mean over the processes. Measure before that is set, or with a model of its own."
            )
