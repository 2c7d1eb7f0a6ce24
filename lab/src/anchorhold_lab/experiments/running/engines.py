"""From specs to the engine that runs them."""

from collections.abc import Mapping, Sequence

import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data import Dataset
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.scenarios import Scenario
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.learner import Learner
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.telling.progress import Engine


def start_engine(specs: Sequence[Spec], datasets: Mapping[str, Dataset], device: torch.device) -> Engine:
    """Return an engine at the beginning of one run, or of several side by side."""
    scenarios: dict[tuple[object, ...], Scenario] = {}
    key: tuple[object, ...]
    learners = []
    for spec in specs:
        seed = spec.seed if spec.scenario_kind.seeded else None
        key = (spec.source, spec.scenario, spec.incremental, spec.tasks, spec.validation, spec.validation_seed)
        key = (*key, spec.kept, spec.sizes, spec.order, seed)
        if key not in scenarios:
            scenarios[key] = spec.make_scenario(datasets).to(device)
        learners.append(make_learner(spec, scenarios[key], device))
    if all(spec.engine == "fast" for spec in specs):
        return FastRuns(learners)
    if len(specs) != 1:
        raise ConfigurationError(f"{len(specs)} runs side by side in the plain loop; expected one at a time.")
    return PlainRun(learners[0])


def make_learner(spec: Spec, scenario: Scenario, device: torch.device) -> Learner:
    """Return the network of a spec, ready to learn its scenario."""
    return Learner(
        scenario,
        spec.make_network(scenario),
        spec.make_measure(),
        spec.strength,
        spec.settings,
        seed=spec.seed,
        watch=spec.make_watched(),
        device=device,
        judge_by=spec.judge_by,
        precision=spec.precision,
        observers=spec.make_probes(),
        form=spec.make_form(),
        holds=spec.make_holds(),
        anchor=spec.anchor,
        gradient_term=spec.gradient_term,
        batch_norm=spec.batch_norm,
        implicit=spec.implicit,
        relative_strength=spec.relative_strength,
        tolerance=spec.make_tolerance(),
    )
