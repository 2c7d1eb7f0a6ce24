"""The rarer arguments of a Guard, in one group."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec

import torch

from anchorhold.errors import ConfigurationError
from anchorhold.guard.distributed.gathering import Gather
from anchorhold.spaces import SpaceName
from anchorhold.tensors.storage import StateDtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """Group the rarer arguments of a :class:`~anchorhold.Guard`: its space, step, processes and storage.

    >>> Guard(model, "EWC", options=GuardOptions(state_dtype=torch.bfloat16, gather="layers"))

    Args:
        space: what is held of adapters: ``"weights"``, their own parameters, as any others; or ``"merged"``, what they
            add to the weights of their layers, D = s(BA − B*A*) for LoRA, by the importance of those weights. ``None``
            is ``"merged"`` in the forms ``"kronecker"`` and ``"rotated"`` with a measure that looks at data, where the
            adapters can be held so and no pattern names their own parameters (``"*lora_*"``); else ``"weights"``.
            ``guard.options.space`` says which it is.
        gradient_term: whether the gradient of each task's own loss is part of its penalty, as in SOLA (Yin et al.
            2020, arXiv 2006.10974), which is ``anchor="mean"`` with this and ``strength=0.5``: for tasks that end
            before they have converged. It takes data with labels, and an importance in the loss's own unit, such as
            :class:`~anchorhold.Fisher`'s.
        implicit: True for a hold that acts after each step of the optimizer, by a proximal step that no strength can
            make overshoot, D ← D/(1 + 2cηΩ); False for one that joins the gradient. η is the rate at which a weight
            really follows its gradient, so it takes an optimizer whose rates are known: SGD, and for the diagonal also
            Adam, AdamW, NAdam, RAdam, Adamax, RMSprop and Adagrad. ``None`` is True where all attached optimizers are
            SGD, for the diagonal and, with one rate for a layer's weight and bias, in the forms ``"rotated"``,
            ``"kronecker"`` and ``"lowrank"``; elsewhere False. ``guard.options.implicit`` says which it is.
        pull_every: after how many steps such a hold acts, each time for all of them at once: 1 by default, after each.
            With k = 4 the hold takes a fourth of its time; weights settle near where they would with 1, and no strength
            makes them overshoot. It takes SGD, and is ``implicit=True``: docs/guides/safe-at-any-strength.md says what
            it changes. A state that was saved with more than 1 brings it along where none is given here.
        group: the ``torch.distributed`` processes that train this model together, each on batches of its own. A model
            in a DDP wrapper, or one that ``fully_shard`` was applied to, brings its own.
        gather: what each process gathers at once of a sharded model that is measured from data: ``"model"``, all of it,
            so that each measures its own batches; or ``"layers"``, one at a time, so that no process ever has more, and
            all go through the batches of all together, which takes longer. ``None`` gathers the model, unless a
            device says that it has no room for it, or layers are cut up (tensor parallelism).
        state_dtype: the dtype in which the anchor and Ω are kept; ``torch.bfloat16`` halves their bytes. ``"8bit"``
            does so too, with an anchor 256 times as close: 1 byte for Ω, by its logarithm, and 3 for the anchor, or
            the 2 of weights of 16 bits. It is for the diagonal, and tensors of 4096 numbers or more. By default that of
            the parameters, and ``torch.float32`` at least, as are the states that measures along the path accumulate in
            any case: averages freeze in 16 bits.
        state_device: the device on which all of these are kept, such as ``"cpu"``; by default the parameters' own.
    """

    space: SpaceName | None = None
    gradient_term: bool = False
    implicit: bool | None = None
    pull_every: int = 1
    group: "ProcessGroup | None" = None
    gather: Gather | None = None
    state_dtype: StateDtype | None = None
    state_device: torch.device | str | None = None


def checked_options(given: object) -> GuardOptions:
    """Return the options, the usual ones for ``None``, or say what was expected."""
    if given is None:
        return GuardOptions()
    if not isinstance(given, GuardOptions):
        raise ConfigurationError(
            f"options={given!r}: expected GuardOptions, as in Guard(model, SOS(), options=GuardOptions(implicit=True))."
        )
    return given


def names_options(init: Callable[P, None]) -> Callable[P, None]:
    """Let a call that was given one of GuardOptions by itself say where it goes."""
    options = {each.name for each in dataclasses.fields(GuardOptions)}

    @functools.wraps(init)  # so that the signature stays
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if found := options & kwargs.keys():
            given = ", ".join(f"{name}={kwargs[name]!r}" for name in kwargs if name in found)
            raise TypeError(f"{given}: this is one of the rarer arguments. Give options=GuardOptions({given}).")
        init(*args, **kwargs)

    return checked
