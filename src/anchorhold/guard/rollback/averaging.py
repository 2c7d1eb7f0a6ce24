"""Going back part of the way: the mean of the weights before and after training (WiSE-FT, Wortsman et al. 2022).

The guard has the weights before at hand, as its anchor. arXiv 2109.01903; on one new task it keeps more than many a
penalty, and adds to any of them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, OrderError, warn
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.refreshing import refresh
from anchorhold.guard.rollback.averaged_adapters import AveragedAdapters, Means, newcomers_in_words
from anchorhold.settings import checked_share
from anchorhold.tensors.sharding import is_finite, local
from anchorhold.tensors.storage import is_as_kept, running_dtype, to_compute


@torch.no_grad()
def average_with_anchor(core: Core, share: float) -> None:
    """Move all held weights to θ* + share·(θ − θ*), in place, or none of them."""
    share = checked_share("share", share, "a number from 0 (all that was learned since is undone) to 1 (nothing is)")
    held = checked_way(core, "average()")
    adapters = AveragedAdapters(core, held)
    if share < 1 and not has_moved(core.state, held):
        warn(f"average(share={share:g}) changes nothing: {_why_nothing(core, adapters)}")
    elif share < 1 and adapters.newcomers:
        warn(f"average(share={share:g}): {newcomers_in_words(adapters.newcomers)}")
    own = {name: parameter.detach() for name, parameter in held.items()}
    means = adapters.between(own, share)
    adapters.warn_of(means, share)
    move_to(core.state, held, own, share, means)


def _why_nothing(core: Core, adapters: AveragedAdapters) -> str:
    """Say why no weight has moved that could go back."""
    if adapters.newcomers:
        return newcomers_in_words(adapters.newcomers)
    new = [name for name, p in core.runtime.parameters.items() if p.requires_grad and name not in core.state.anchor]
    if new:
        return (
            f"{new[0]!r}{f' and {len(new) - 1} more' if len(new) > 1 else ''} came after the last consolidation, and "
            "have no weights from before to go back to, and nothing else has moved."
        )
    return (
        "no weight has moved since the last consolidation, whose weights it goes back to. Average before the task is "
        "consolidated, or by consolidate(batches, share=...); with a trainer, by AnchorholdCallback(guard, share=...)."
    )


def has_moved(state: GuardState, held: Mapping[str, Tensor]) -> bool:
    """Return whether any weight is elsewhere than its anchor, as far as that is kept."""
    return any(not is_as_kept(local(p), local(state.anchor[name])) for name, p in held.items())


def checked_way(core: Core, call: str) -> dict[str, nn.Parameter]:
    """Return the weights that have an anchor to go back to, or refuse a way that there is not."""
    if core.state.merged_anchor and not core.state.anchor:
        raise ConfigurationError(
            f"{call} with other adapters than those that were consolidated: no line leads from their parameters to "
            "those. Go on from where the weights are, or restore the adapters."
        )
    if not core.state.anchor:
        raise OrderError(
            f"{call} before the first consolidate(): there are no weights from before to go back to. Consolidate "
            "what the model knew before it is trained; of two models by themselves, use anchorhold.merge."
        )
    refresh(core)  # which refuses weights of another shape than they were consolidated with
    core.space.check_way_back(call)
    held = {name: p for name, p in core.runtime.parameters.items() if name in core.state.anchor}
    for name, parameter in held.items():
        if not is_finite(parameter):
            raise ConfigurationError(
                f"The weights {name!r} are not finite, so nothing was moved. Training has diverged: restore an "
                "earlier checkpoint."
            )
    return held


@torch.no_grad()
def move_to(
    state: GuardState,
    held: Mapping[str, nn.Parameter],
    own: Mapping[str, Tensor],
    share: float,
    means: Means,
) -> None:
    """Put weights at θ* + share·(θ − θ*), with θ as given, which may be themselves; and adapters at their means."""
    for name, parameter in held.items():
        dtype = running_dtype(parameter)
        before = to_compute(state.anchor[name], parameter).to(dtype)
        found = means.values.get(name)
        parameter.copy_(torch.lerp(before, own[name].to(dtype), share) if found is None else found)
