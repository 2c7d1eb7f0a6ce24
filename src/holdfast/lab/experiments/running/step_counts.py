"""How many steps a run takes, found before anything is begun."""

import dataclasses
from collections.abc import Mapping

from holdfast.lab.data import Dataset, Images
from holdfast.lab.experiments.specs.spec import Spec
from holdfast.lab.training.batch_order import steps_per_epoch
from holdfast.lab.training.options.bounds import training_sizes


class StepCounts:
    """Counts the steps of specs.

    Args:
        datasets: the data sets that their scenarios need, by name.
    """

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        self._datasets = datasets
        self._sizes: dict[tuple[object, ...], list[int]] = {}

    def of(self, spec: Spec) -> int:
        """Return the steps of all tasks; settings that do not fit the data are refused."""
        return sum(
            spec.settings.epochs_of(task) * steps_per_epoch(size, spec.settings.batch_size)
            for task, size in enumerate(training_sizes(self._training_samples(spec), spec.settings.trains))
        )

    def _training_samples(self, spec: Spec) -> list[int]:
        """Return the number of training samples of each task."""
        kind = spec.scenario_kind
        key: tuple[object, ...] = (
            spec.source,
            spec.scenario,
            spec.tasks,
            spec.validation,
            spec.kept,
            spec.sizes,
            spec.order,
        )
        if not kind.counted_by_pixel:
            key = *key, spec.validation_seed, spec.seed if kind.seeded else None
        if key not in self._sizes:
            datasets = {name: self._datasets[name] for name in kind.datasets}
            if kind.counted_by_pixel:
                # The tasks themselves, made of one pixel an image, which takes no time.
                datasets = {name: _one_pixel(dataset) for name, dataset in datasets.items()}
            self._sizes[key] = [len(task.stored_train) for task in spec.make_scenario(datasets).tasks]
        return self._sizes[key]


def _one_pixel(dataset: Dataset) -> Dataset:
    def reduced(images: Images) -> Images:
        return dataclasses.replace(images, pixels=images.pixels[..., :1, :1])

    return dataclasses.replace(dataset, train=reduced(dataset.train), test=reduced(dataset.test))
