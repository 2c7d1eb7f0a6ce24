"""Warn of parameters and adapters that were consolidated, and that the model no longer has as they were."""

from collections.abc import Collection, Mapping

from torch import nn

from anchorhold.adapters import whole
from anchorhold.errors import warn
from anchorhold.guard.monitor import GONE, AdapterState, Attaching, Monitor, and_others


class MissingParameters(Monitor):
    """Look for what is held by its name."""

    name = "missing-parameters"

    def before_attach(self, attaching: Attaching) -> None:
        """Look for parameters when an optimizer is attached that trains held ones."""
        core = self.core
        if attaching.hold and core.state.is_anchored and core.state.strength:
            here = [
                p
                for name, p in core.runtime.parameters.items()
                if name in core.state.anchor or name in core.space.in_parts
            ]
            if any(id(p) in attaching.owned for p in here):
                self._warn_of_gone(core.runtime.parameters)

    def begin_task(self) -> None:
        """Look for parameters, and at adapters, before a task's first step."""
        if self.core.state.strength and self.core.state.is_anchored:
            self._warn_of_gone(self.core.runtime.parameters)
            self._warn_of_fresh_adapters()

    def before_penalty(self, parameters: Mapping[str, nn.Parameter], adapters: AdapterState) -> None:
        """Look at the same before a penalty is added to a loss by hand, where there may be no step to look at."""
        core = self.core
        known = core.runtime.warned.about(GONE)
        if adapters == "unloaded" and core.state.strength and not known >= core.state.merged_anchor.keys():
            core.runtime.warned.add(GONE, core.state.anchor.keys() | core.state.merged_anchor.keys())
            warn(
                f"The model has no adapter any more that could hold {and_others(sorted(core.state.merged_anchor))} "
                "where they were when they were consolidated, so the penalty has nothing of them. If adapters were "
                "merged into the weights for good, put the next ones on (get_peft_model) and call "
                "guard.refresh(rebase=True); to train the weights themselves, make a guard from the model as it is "
                "now, and consolidate it with data."
            )
        elif adapters == "replaced":
            self._warn_of_fresh_adapters()
        if core.state.strength and not core.task.steps:
            self._warn_of_gone(parameters)

    def at_consolidation(self, called: Collection[str]) -> None:
        """Warn of merged weights that nothing is known of, since their layers were not called."""
        core = self.core
        missed = [name for name in core.space.parts if name not in called]
        if missed and any(ledger.measure.needs.data for ledger in core.state.ledgers.values()):
            warn(
                f"The layers of {and_others(missed)} were not called while importance was measured, so that it is 0 "
                "and nothing holds what their adapters add. If the data does not reach them, that is as it should be. "
                "If the model reads their weights past them, as fused kernels do, measure with the model as it is "
                "without those and load() what was found into a guard of this one; or give "
                "options=GuardOptions(space='weights'), which holds the adapters' own parameters."
            )

    def _warn_of_gone(self, present: Mapping[str, nn.Parameter]) -> None:
        core = self.core
        known = core.runtime.warned.about(GONE)
        gone = [name for name in core.state.anchor if name not in present and name not in known]
        core.runtime.warned.drop(GONE)  # what has come back may go again
        core.runtime.warned.add(GONE, (known - present.keys()) | set(gone))
        if gone:
            warn(
                f"The model no longer has {and_others(gone)} under that name, so what was consolidated there is not "
                "held. If a layer was wrapped or renamed, make a guard from the model as it is now, and consolidate it "
                "with data; if it was taken away on purpose, call forget(name)."
            )

    def _warn_of_fresh_adapters(self) -> None:
        """Warn if adapters add nothing to weights, and did when they were consolidated."""
        core = self.core
        then = {name for name, change in core.state.merged_anchor.items() if bool(whole(change).any())}
        now = core.space.changes() if then else {}
        if then and not any(bool(whole(now[name]).any()) for name in then if name in now):
            warn(
                f"The adapters add nothing to {and_others(sorted(then))}, and did when they were consolidated: they "
                "are pulled back to that. If what they had learned was merged into the weights for good "
                "(merge_and_unload), it would come on top of itself: call guard.refresh(rebase=True), "
                "which counts from the weights as they are now."
            )
