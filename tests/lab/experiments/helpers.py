"""Small runs on the digits."""

from anchorhold_lab.experiments import Result, RunProgress, Spec
from anchorhold_lab.training.protocol import Settings


def small_spec(seed=0, *, epochs=2, optimizer="adam", learning_rate=0.03, **changes):
    """Three tasks of ten steps each, a twentieth of a second."""
    settings = Settings(
        epochs=epochs,
        batch_size=256,
        optimizer=optimizer,
        learning_rate=learning_rate,
        reinitialise=True,
        samples=50,
    )
    usual = {"measure": "SI", "strength": 10.0, "tasks": 3, "hidden": (32,), "settings": settings}
    return Spec("permuted-digits", seed=seed, **usual | changes)


def following_spec(**changes):
    """The same with a tolerance, from which weights that are drawn anew would leave nothing."""
    settings = Settings(epochs=3, batch_size=256, learning_rate=0.03, samples=50)
    usual = {"strength": 0.0, "measure": "EWC", "tolerance": 0.05, "kept": 60, "engine": "plain", "settings": settings}
    return small_spec(**usual | changes)


def result_of(spec, accuracy):
    """A result that nobody trained for, with the same accuracy everywhere."""
    row = (accuracy,) * spec.tasks
    origin = ("d" * 64, "a device", None, {"torch": "2"}, "2026-01-01T00:00:00")
    return Result(spec, (row,) * spec.tasks, row, 1.0, 2.0, 1, 0, *origin)


def same_result(a, b):
    """Whether two results are equal in all that a spec decides."""
    return (a.spec, a.matrix, a.untrained, a.state_digest) == (b.spec, b.matrix, b.untrained, b.state_digest)


class StopAfter:
    """A request to stop at some progress, counted over all runs."""

    def __init__(self, count):
        self.left = count

    def on_event(self, event):
        self.left -= isinstance(event, RunProgress)

    def __call__(self):
        return self.left <= 0
