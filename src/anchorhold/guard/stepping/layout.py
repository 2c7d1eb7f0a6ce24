"""Which protected parameters an optimizer moves, and how they are laid out for its steps: made once, and kept."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from anchorhold.guard.core import Core
from anchorhold.guard.refreshing import refresh
from anchorhold.guard.stepping.bundles import Bundle, bundles_of
from anchorhold.guard.stepping.optimizers.accepted import ids, trained_by
from anchorhold.tensors.names import named_parameters


@dataclass
class Layout:
    """The parameters that one optimizer moves, in bundles."""

    trained: list[nn.Parameter]
    """All parameters of the optimizer, and below, which of them can be trained: what it was made for."""
    trainable: list[bool]
    version: int
    owned: dict[str, nn.Parameter]
    """The protected ones that it trains, by name."""
    moved: dict[str, nn.Parameter]
    """All that it trains, by name."""
    bundles: list[Bundle]


class Layouts:
    """Keep the layouts of all optimizers that a guard is attached to."""

    def __init__(self, core: Core) -> None:
        self.core = core
        # Weakly: an optimizer that its owner drops takes its rows along.
        self._made: WeakKeyDictionary[Optimizer, Layout] = WeakKeyDictionary()
        self._alone: set[str] = set()
        self._passed_over: set[int] = set()

    def get(self, optimizer: Optimizer) -> Layout | None:
        """Return the last layout of an optimizer, whether or not it still fits."""
        return self._made.get(optimizer)

    def current(self, optimizer: Optimizer) -> Layout | None:
        """Return the layout of an optimizer, unless anything has changed about its parameters."""
        layout = self._made.get(optimizer)
        if layout is None or layout.version != self.core.runtime.version:
            return None
        trained = trained_by(optimizer)
        # By identity: == would compare the numbers in them.
        same = list(map(id, layout.trained)) == list(map(id, trained))
        same = same and layout.trainable == [p.requires_grad for p in trained]
        return layout if same and all(bundle.is_in_place for bundle in layout.bundles) else None

    def make(self, optimizer: Optimizer) -> Layout:
        """Lay out the protected parameters of an optimizer anew."""
        core, owned = self.core, self.owned(optimizer)
        for other, theirs in list(self._made.items()):
            shared = theirs.owned.keys() & owned.keys() if other is not optimizer else set()
            if shared:  # what two optimizers move cannot lie in the rows of both
                self._alone |= shared
                del self._made[other]
        trained = trained_by(optimizer)
        bundles = bundles_of(core, owned, self._alone, elementwise=core.state.driving.form.elementwise)
        trainable = [p.requires_grad for p in trained]
        layout = Layout(trained, trainable, core.runtime.version, dict(owned), self.moved(optimizer), bundles)
        self._made[optimizer] = layout
        return layout

    def owned(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the protected parameters that this optimizer trains."""
        trained = ids(trained_by(optimizer))
        return {name: p for name, p in self.core.runtime.parameters.items() if id(p) in trained and p.requires_grad}

    def moved(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return all parameters that this optimizer trains; those that are none of the model's by their places."""
        names = {id(parameter): name for name, parameter in named_parameters(self.core.runtime.model)}
        trained = [(place, p) for place, p in enumerate(trained_by(optimizer)) if p.requires_grad]
        return {names.get(id(p), f"{type(optimizer).__name__}[{place}]"): p for place, p in trained}

    def take_in_new(self, optimizer: Optimizer) -> None:
        """Protect what an optimizer trains that was not there before, or frozen.

        Layers are unfrozen in the middle of a task, and Lightning freezes all but one optimizer's for its step.
        """
        known = ids(self.core.runtime.parameters.values()) | self._passed_over
        new = [parameter for parameter in trained_by(optimizer) if id(parameter) not in known]
        trainable = ids(parameter for parameter in new if parameter.requires_grad)
        if trainable:
            refresh(self.core)
            # What the selection leaves out need not be looked up at every step.
            self._passed_over |= trainable - ids(self.core.runtime.parameters.values())

    def begin_task(self) -> None:
        """Look at the model again."""
        refresh(self.core)
        self._passed_over = set()

    def send_alone(self, names: set[str]) -> None:
        """Update parameters by themselves from now on, whatever their size."""
        self._alone |= names

    def forget(self) -> None:
        """Free rows and buffers; the next step makes them anew."""
        self._made = WeakKeyDictionary()
