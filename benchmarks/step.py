"""A training step with protection, against the same step without, and against Avalanche's plugins."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, optim
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold_lab.networks import mlp
from anchorhold_lab.scenarios import Samples, scenario_of
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.learner import Learner
from anchorhold_lab.training.protocol import Settings
from benchmarks import networks
from benchmarks.avalanche_steps import BATCH, PLUGINS, Training
from benchmarks.harness import Report, interleaved

PLAIN = "unprotected"
MEASURES = {"SOS": anchorhold.SOS, "SI": anchorhold.SI, "quadratic penalty (Fisher)": anchorhold.Fisher}
EPOCH = 8
"""Steps of an epoch, where data loading is timed too."""

NOTES = [
    (
        "Each case has a network and an optimiser of its own. One task is behind it and its importance in force, and "
        "some steps of the next one have moved the parameters away from the anchor."
    ),
    (
        "Avalanche's steps are its own training_epoch over one batch that is loaded already, without evaluation or "
        "loggers; packages that it imports but does not use in a step are replaced by stubs."
    ),
    (
        "With loading: a whole experience of Avalanche's own loop, and an epoch of a plain loop over a DataLoader "
        "with anchorhold's SI attached, both on tensors in memory, divided by the number of steps."
    ),
    "The fast engine's step looks its batch up in a table of samples too; everything else is given its batch.",
    "Random inputs and labels.",
]


def run(quick: bool) -> Iterator[Report]:
    torch.manual_seed(0)
    inputs, labels = networks.digits(BATCH * EPOCH), torch.randint(10, (BATCH * EPOCH,))
    batch = inputs[:BATCH], labels[:BATCH]
    cases: dict[str, Callable[[], object]] = {PLAIN: Loop(None, *batch).step}
    cases |= {f"anchorhold {name}": Loop(measure(), *batch).step for name, measure in MEASURES.items()}
    cases["anchorhold SI, fast engine"] = fast_step(inputs, labels)
    cases |= {name: Training(plugins(), networks.mlp(), *batch).step() for name, plugins in PLUGINS.items()}
    for step in cases.values():
        for _ in range(3):  # away from the anchor, and warm
            step()
    epochs = {
        "anchorhold SI, with loading": Loop(anchorhold.SI(), inputs, labels).epoch,
        "Avalanche SI, with loading": Training(PLUGINS["Avalanche SI"](), networks.mlp(), inputs, labels).experience(),
    }
    seconds = interleaved(cases, 2 if quick else 60) | interleaved(epochs, 1 if quick else 9)
    title = f"A training step of 784-2000-2000-10 at batch {BATCH}, with fused Adam"
    report = Report("step", title, NOTES, seconds, dict.fromkeys(epochs, 1 / EPOCH))
    report.ratio("SOS / unprotected", "anchorhold SOS", PLAIN, 1.15)
    report.ratio("SI / unprotected", "anchorhold SI", PLAIN, 1.25)
    report.ratio("quadratic penalty / unprotected", "anchorhold quadratic penalty (Fisher)", PLAIN)
    report.ratio("SI in the fast engine / unprotected", "anchorhold SI, fast engine", PLAIN)
    report.ratio("SI / Avalanche's SI", "anchorhold SI", "Avalanche SI", 0.5)
    report.ratio("SI in the fast engine / Avalanche's SI", "anchorhold SI, fast engine", "Avalanche SI")
    report.ratio("SI / Avalanche's SI, with loading", "anchorhold SI, with loading", "Avalanche SI, with loading")
    report.ratio("quadratic penalty / Avalanche's EWC", "anchorhold quadratic penalty (Fisher)", "Avalanche EWC")
    report.ratio("quadratic penalty / Avalanche's MAS", "anchorhold quadratic penalty (Fisher)", "Avalanche MAS")
    report.ratio("Avalanche's SI / unprotected", "Avalanche SI", PLAIN)
    report.ratio("Avalanche without plugin / unprotected", "Avalanche, no plugin", PLAIN)
    yield report


def fast_step(inputs: Tensor, labels: Tensor) -> Callable[[], object]:
    """Return a step of the fast engine in its second task."""
    samples = Samples(inputs, labels)
    scenario = scenario_of([(samples, samples)] * 2, own_heads=False)
    settings = Settings(epochs=1, later_epochs=1000, batch_size=BATCH, learning_rate=1e-4)
    engine = FastRuns([Learner(scenario, mlp(), anchorhold.SI(), 1.0, settings, seed=0)])
    for _ in engine.learn_task():
        pass
    engine._use_orders(engine._orders(0), 0)

    def step() -> None:
        engine._clock.set(0, 10)
        engine._take_step()

    return step


class Loop:
    """A plain training loop in a task after the first, with a measure attached or without."""

    def __init__(self, measure: anchorhold.measures.Measure | None, inputs: Tensor, labels: Tensor) -> None:
        self.model = networks.mlp().train()
        self.optimizer = optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        self.batch = inputs[:BATCH], labels[:BATCH]
        self.loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True)
        if measure is not None:
            guard = anchorhold.Guard(self.model, measure, strength=1.0)
            guard.attach(self.optimizer)
            for _ in range(3):
                self.step()
            guard.consolidate([inputs])

    def step(self) -> None:
        self._train(*self.batch)

    def epoch(self) -> None:
        for inputs, labels in self.loader:
            self._train(inputs, labels)

    def _train(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()
