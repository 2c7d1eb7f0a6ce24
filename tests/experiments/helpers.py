"""Small runs on the digits, and an engine that has several of them side by side."""

import dataclasses

from holdfast.errors import NotFiniteError
from holdfast.experiments import RunProgress, Spec
from holdfast.experiments.engines import start_engine
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


class Lockstep:
    """Several plain runs side by side: what the executor asks of an engine, in the simplest way."""

    def __init__(self, specs, datasets, device):
        self.runs = [start_engine([dataclasses.replace(spec, engine="plain")], datasets, device) for spec in specs]

    @property
    def outcomes(self):
        return [run.outcomes[0] for run in self.runs]

    def learn(self):
        learning = {i: run.learn() for i, run in enumerate(self.runs) if run.outcomes[0].failure is None}
        while learning:
            told = None
            for i, progress in list(learning.items()):
                try:
                    told = next(progress, None)
                except NotFiniteError:  # the run's outcome says so
                    del learning[i]
                else:
                    if told is None:
                        return
            if told is not None:
                yield told

    def state(self):
        return {"runs": [run.state() for run in self.runs]}

    def load_state(self, state):
        for run, each in zip(self.runs, state["runs"], strict=True):
            run.load_state(each)
