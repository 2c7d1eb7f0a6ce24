r"""A strength that follows a tolerance.

What is measured every few steps is KL(p_old‖p_new) on kept inputs; what is changed is log c, since strengths of use
span six powers of ten. At rest, a weight is where the task's gradient and the pull cancel, at a distance ∝ 1/c, and the
KL is quadratic in distances: its logarithm falls by up to two for each one that log c rises, and it takes many steps to
do so. So, Δt steps after the look before and t after the first,

.. math:: \log c \leftarrow \log c + \frac{\Delta t}{t_0 + t/2}\,\log\frac{KL}{a\tau},

integral control alone. A proportional or a derivative part would answer the noise of a look at a hundred samples, which
is large (a derivative was tried, and ended further from τ); the integral averages it.

It slows down as time passes, since nothing is lost at first, at whatever strength: what is lost grows for as long as
weights travel. At a steady pace the strength fell meanwhile, to a thousandth of the one that would have ended at
aτ, and came back too late: on digits at τ = 0.1 such runs learned 91.6 % in rotated coordinates and these 95 %, as the
best constant strength does. What is slower than the time that has passed cannot have shown itself yet, so that t sets
a pace that fits without knowing how long training will last. What is lost on the way does not count.

a is above 1, since training ends with a search along the line to the anchor (``way_back.py``), which can take back what
was lost too much, but not give what was not learned: on permuted digits, at tolerances up to 0.1, more of the new task
is learned for the same KL. Of 1, 1.5 and 2 it was 2 that learned most at 0.01 and 0.03, and 1.5 at 0.1; at 0.3, 1.5
learned more than 2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from anchorhold.forms import Form
from anchorhold.forms.base import checked_damping
from anchorhold.settings import number, whole_number

LEAST = 1e-12
"""The KL that counts as none: a logarithm needs one."""


@dataclass(frozen=True)
class Tolerance:
    """How much may be lost of what was kept, and how that is followed.

    >>> guard = Guard(model, "EWC", tolerance=0.02)
    >>> guard = Guard(model, "EWC", tolerance=Tolerance(0.02, every=5))

    Args:
        nats: the largest KL(p_old‖p_new) at the end of training, in nats a sample or token, for the worst kept set.
        every: after how many steps the strength follows; by default so many that looking costs about a tenth of a step.
        damping: the share of its mean that is added to Ω: without, weights of importance 0 are free at any strength. By
            default a thousandth for a diagonal, and a tenth in other forms, beside what those have in themselves; see
            ``damping_in``.
        start: the strength to begin with, relative to the mean importance: c = start/mean(Ω). By default 0.1 for a
            diagonal, and 0.3 in other forms.
        aim: what the KL is held at in training, in tolerances: what is lost beyond one is taken back at its end.
    """

    nats: float
    every: int | None = None
    damping: float | None = None
    start: float | None = None
    aim: float = 1.5

    def __post_init__(self) -> None:
        checks = {
            "nats": checked_nats(self.nats),
            "aim": float(number("aim", self.aim, "a number of at least 1", lambda given: given >= 1)),
        }
        if self.start is not None:
            checks["start"] = float(number("start", self.start, "a number above 0", lambda given: given > 0))
        if self.damping is not None:
            checks["damping"] = checked_damping(self.damping)
        if self.every is not None:
            checks["every"] = whole_number("every", self.every, "a whole number of at least 1", least=1)
        for name, value in checks.items():
            object.__setattr__(self, name, value)

    def damping_in(self, form: Form) -> float:
        """Return the share of the mean that is added to the importances of a form.

        A form with coordinates of its own has the same mean in far fewer directions: on digits the median direction has
        a 20,000th of it, where the median weight has a fifth. So a much smaller strength keeps as much, and most
        directions, which the form says to matter nothing, and which do matter once they are long, are held by the
        damping alone. There, at τ = 0.01, a tenth learned 84 % of the new task and a hundredth 65.

        A diagonal's damping and its ``start`` were chosen together, of six pairs, by what was learned in four settings
        on seeds that nothing else is reported of (``studies.tolerance.at_scale run --candidates``): with a
        hundredth, Split CIFAR ended five points below a search, and with this two to four: a strong hold there leaves
        the new task the weights without importance.
        """
        if self.damping is not None:
            return self.damping
        if form.penalty_damping:  # which its user has chosen
            return form.penalty_damping
        return 0.001 if form.elementwise else 0.1

    def settled_in(self, form: Form) -> "Tolerance":
        """Return it with all that goes by the form said, so that a state means the same wherever it is loaded."""
        return replace(self, damping=self.damping_in(form), start=self.start_in(form))

    def start_in(self, form: Form) -> float:
        """Return the relative strength that a form's hold begins with: what it is after a few hundred steps follows."""
        if self.start is not None:
            return self.start
        return 0.1 if form.elementwise else 0.3


def checked_nats(given: object) -> float:
    """Return a tolerance, or say what was expected."""
    expected = "a number of nats above 0, such as 0.02; to keep all that can be, give a large strength instead"
    return float(number("tolerance", given, expected, lambda nats: nats > 0))


class TracePoint(NamedTuple):
    """What was seen and done at one look."""

    step: int
    """Of the task, counted from 1; 0 for the look before its first."""
    kl: float
    """That of the worst set, by the latest look at each."""
    strength: float
    """c from then on."""
    predicted: float | None
    """What a second-order form predicts, ½⟨D, Q(D)⟩: beside it for comparison, and not to be trusted."""


AT_FIRST, GAIN = 50, 0.3
"""t₀, in steps, and the largest share k of an error that is answered at once: that of a KL ∝ c⁻² that follows without
delay shrinks by 1 − 2k a look, and a real one follows within tens of steps at the earliest."""
ERROR = 2.0
"""The largest error that counts, in log: at a task's beginning nothing is lost yet, and its logarithm is −∞."""
RANGE = math.log(1e6)
"""How far log c may go from where it began, either way: what the error adds up to beyond that would have to be undone
before c moves again."""
LARGEST = 1e37
"""Of a strength: 2c has to fit into a single-precision number, with room for rounding."""
TRACED = 1000
"""Points of a trace that are kept, at most."""


@dataclass
class Control:
    """Where the control of a strength is at."""

    log_start: float | None = None
    """log c when control began."""
    log_c: float = 0.0
    every: int = 0
    """After how many steps there is a look; 0 while it is not decided."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Which chunk of each set is looked at next."""
    latest: dict[str, float] = field(default_factory=dict)
    """The KL of each set, as it was last seen."""
    looks: int = 0
    at: int = -1
    """The step of the last look."""
    most: float = 0.0
    """The largest KL since the task began."""
    trace: list[TracePoint] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The KL of the set that has lost most, by the latest looks."""
        return max(self.latest.values())

    def begin(self, strength: float) -> None:
        """Begin to control, from a strength."""
        if self.log_start is None:
            self.log_start = self.log_c = math.log(strength)

    def begin_task(self) -> None:
        """Forget what was seen of the task before; its strength is where the next one begins."""
        self.latest, self.cursors, self.trace = {}, {}, []
        self.looks, self.at, self.most = 0, -1, 0.0

    def follow(self, aim: float, most: float = math.inf) -> float:
        """Return the strength after a look, with the KL that it aims at; no more than ``most``."""
        error = math.log(max(self.worst, LEAST) / aim)
        every = max(1, self.every)
        share = min(every / (AT_FIRST + self.looks * every / 2), GAIN)
        self.log_c += share * min(max(error, -ERROR), ERROR)
        return self.bounded(most)

    def bounded(self, most: float = math.inf) -> float:
        """Return the strength, within its range and no more than ``most``: what lies beyond is forgotten at once."""
        assert self.log_start is not None
        low, high = self.log_start - RANGE, min(self.log_start + RANGE, math.log(min(most, LARGEST)))
        self.log_c = max(min(self.log_c, high), min(low, high))
        return math.exp(self.log_c)

    def note(self, point: TracePoint) -> None:
        """Keep a point of the trace, every other of them once there are many."""
        self.trace.append(point)
        if len(self.trace) > TRACED:
            self.trace = self.trace[::2]

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, to be stored."""
        own = dict(vars(self))
        own |= {name: sorted(own[name].items()) for name in ("cursors", "latest")}
        return {**own, "trace": [list(point) for point in self.trace]}

    @classmethod
    def restored(cls, plain: Mapping[str, Any]) -> "Control":
        """Return what :meth:`plain` was made of, or raise whatever a mapping that is none raises."""
        given = dict(plain)
        pairs: dict[str, Sequence[Sequence[Any]]] = {name: given.pop(name) for name in ("cursors", "latest")}
        trace = [TracePoint(*point) for point in given.pop("trace")]
        given |= {name: {str(key): value for key, value in rows} for name, rows in pairs.items()}
        return cls(**given, trace=trace)
