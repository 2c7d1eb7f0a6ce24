"""Small runs on the digits."""

from holdfast.experiments import RunProgress, Spec
from holdfast.training.settings import Settings


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
    usual = {"measure": "SI", "strength": 10.0, "tasks": 3, "hidden": (32,)}
    return Spec("permuted-digits", seed=seed, settings=settings, **usual | changes)


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
