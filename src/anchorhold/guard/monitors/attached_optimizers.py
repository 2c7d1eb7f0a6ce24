"""Warn of optimizers that leave something out of what is protected, or that another guard is attached to."""

from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from anchorhold.errors import warn
from anchorhold.guard.monitor import Attaching, Monitor, and_others


class AttachedOptimizers(Monitor):
    """Look at the optimizers that a guard is attached to. All of it is legal, and some of it meant."""

    name = "attached-optimizers"

    def before_attach(self, attaching: Attaching) -> None:
        """Warn of what no attached optimizer trains, and of holds that see parts of a gradient."""
        core = self.core
        unowned = [
            name for name, p in core.runtime.parameters.items() if p.requires_grad and id(p) not in attaching.owned
        ]
        if unowned:
            warn(
                f"No attached optimizer trains {and_others(unowned)}. Give attach() all optimizers at once; freeze "
                "what none trains, or leave it out of protect."
            )
        if attaching.hold and core.state.is_anchored and core.state.strength:
            here = [
                p
                for name, p in core.runtime.parameters.items()
                if name in core.state.anchor or name in core.space.in_parts
            ]
            if not any(id(p) in attaching.owned for p in here):  # frozen ones may be thawed yet
                anchored = [*core.state.anchor, *core.state.merged_anchor]
                warn(
                    f"The attached optimizers train other parameters than the {len(anchored)} consolidated ones (such "
                    f"as {anchored[0]!r}), which are left out, or no longer in the model under their names: as long as "
                    "that is so, the penalty holds nothing back. A guard of a base model does not hold an adapter, "
                    "through which the network changes all the same: make the guard from the adapted model, after "
                    "get_peft_model, with form='kronecker', which holds what the adapter adds to the weights, and "
                    "consolidate it with proxy data."
                )
        projecting = [hold.name for hold in core.options.holds if hold.projects]
        if attaching.hold and attaching.optimizers > 1 and projecting:
            warn(
                f"The hold {projecting[0]!r} with {attaching.optimizers} optimizers: it projects the gradient of all "
                "that is trained, and each optimizer's step has a part of it, so that what comes out may still "
                "conflict with old samples. Give all parameters to one optimizer, in groups, or take Replay()."
            )

    def after_attach(self, optimizer: Optimizer, hook: RemovableHandle, *, hold: bool) -> None:
        """Warn if another guard, whose hook is still there, holds any of the same parameters."""
        mine = frozenset(map(id, self.core.runtime.parameters.values()))
        others = []
        for handle, theirs in _holders.get(optimizer, []):
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:  # not detached since
                others.append((handle, theirs))
        if any(mine & theirs for _, theirs in others):
            warn(
                f"This {type(optimizer).__name__} is attached to another Guard, which protects some of the same "
                "parameters: measures here will see its penalty as part of the task's gradient. Call detach() on the "
                "other one, or make a new optimizer; to observe with several measures, give them to one: watch=[...]."
            )
        _holders[optimizer] = [*others, (hook, mine)] if hold else others


_holders: WeakKeyDictionary[Optimizer, list[tuple[RemovableHandle, frozenset[int]]]] = WeakKeyDictionary()
"""The hooks that add a penalty's gradient to an optimizer's steps, with the ids of the parameters that each holds."""
