"""How many steps a run takes, found before anything is begun."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from anchorhold.measures import PathMeasure
from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.training.batch_order import steps_per_epoch
from anchorhold_lab.training.options.bounds import training_sizes
from anchorhold_lab.training.options.without_tasks import check_task_free


class StepCounts:
    """Counts the steps of specs.

    Args:
        datasets: the data sets that their scenarios need, by name.
    """

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        self._datasets = datasets
        self._known: dict[tuple[object, ...], _Tasks] = {}

    def of(self, spec: Spec) -> int:
        """Return the steps of all tasks; settings that do not fit the data are refused."""
        tasks = self._of_tasks(spec)
        steps = [
            spec.settings.passes_of(task) * steps_per_epoch(size, spec.settings.batch_size)
            for task, size in enumerate(training_sizes(tasks.samples, spec.settings.trains))
        ]
        check_task_free(spec.settings, tasks.heads, spec.probes)
        measures = (spec.make_measure(), *spec.make_watched().values())
        for measured in (each for each in measures if isinstance(each, PathMeasure)):
            for count in steps:
                measured.check_task(count)
        return sum(steps)

    def _of_tasks(self, spec: Spec) -> "_Tasks":
        """Return the number of training samples of each task, and how many heads they have."""
        kind = spec.scenario_kind
        key: tuple[object, ...] = (
            spec.source,
            spec.scenario,
            spec.tasks,
            spec.validation,
            spec.kept,
            spec.sizes,
            spec.order,
            spec.incremental,
        )
        if not kind.counted_by_pixel:
            key = *key, spec.validation_seed, spec.seed if kind.seeded else None
        if key not in self._known:
            datasets = {name: self._datasets[name] for name in kind.datasets}
            if kind.counted_by_pixel:
                # The tasks themselves, made of one pixel an image, which takes no time.
                datasets = {name: _one_pixel(dataset) for name, dataset in datasets.items()}
            scenario = spec.make_scenario(datasets)
            self._known[key] = _Tasks([len(task.stored_train) for task in scenario.tasks], scenario.heads)
        return self._known[key]


class _Tasks(NamedTuple):
    """What has to be known of a scenario's tasks."""

    samples: list[int]
    """How many training samples each of them has."""
    heads: int


def _one_pixel(dataset: Dataset) -> Dataset:
    def reduced(images: Images) -> Images:
        return dataclasses.replace(images, pixels=images.pixels[..., :1, :1])

    return dataclasses.replace(dataset, train=reduced(dataset.train), test=reduced(dataset.test))
