"""Split images: each task has classes of its own, and a head of its own."""

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.data.images import scaled
from anchorhold_lab.scenarios.tasks import Samples, Scenario, Task, hold_out


def split(
    dataset: Dataset,
    classes: int,
    tasks: int | None = None,
    *,
    flat: bool = False,
    validation: float = 0.0,
    validation_seed: int = 0,
) -> Scenario:
    """Return tasks of consecutive groups of classes.

    Args:
        dataset: the images.
        classes: how many classes each task has.
        tasks: how many tasks; as many as there are groups by default.
        flat: whether an image is one row of pixels, for networks without convolutions.
        validation: the share of each task's training images that is kept back.
        validation_seed: the seed of that split.
    """
    groups = dataset.train.classes // classes if classes > 0 else 0
    tasks = groups if tasks is None else tasks
    if classes < 2 or not 1 <= tasks <= groups:
        raise ConfigurationError(
            f"{tasks} tasks of {classes} classes from {dataset.name}, which has {dataset.train.classes} classes; "
            "expected at least 2 classes a task, and no more tasks than there are groups of them."
        )
    made = tuple(
        _task(dataset, i, classes, head=i, flat=flat, kept=(validation, validation_seed)) for i in range(tasks)
    )
    return Scenario(f"split {dataset.name}", made, classes)


def split_cifar(
    cifar10: Dataset, cifar100: Dataset, tasks: int = 6, *, validation: float = 0.1, validation_seed: int = 0
) -> Scenario:
    """Return the paper's Split CIFAR: CIFAR-10 first, then groups of ten classes of CIFAR-100.

    Args:
        cifar10: the first task, whole.
        cifar100: the other tasks, ten consecutive classes each.
        tasks: how many, from 2 to 11; the paper uses 6.
        validation: the share of each task's training images that is kept back; the paper keeps 10 %, always.
        validation_seed: the seed of that split.
    """
    if not 2 <= tasks <= 11:
        raise ConfigurationError(f"tasks={tasks}: expected 2 to 11, CIFAR-10 and up to ten groups of CIFAR-100.")
    kept = (validation, validation_seed)
    first = _task(cifar10, 0, 10, head=0, flat=False, kept=kept)
    others = tuple(_task(cifar100, i, 10, head=i + 1, flat=False, kept=kept) for i in range(tasks - 1))
    return Scenario("split CIFAR", (first, *others), 10)


def _task(dataset: Dataset, group: int, classes: int, *, head: int, flat: bool, kept: tuple[float, int]) -> Task:
    low, high = group * classes, (group + 1) * classes
    train, validation = hold_out(_of_classes(dataset.train, low, high, flat=flat), *kept)
    return Task(
        f"{dataset.name} {low}-{high - 1}",
        train,
        _of_classes(dataset.test, low, high, flat=flat),
        validation,
        head=head,
    )


def _of_classes(images: Images, low: int, high: int, *, flat: bool) -> Samples:
    """Return the images of some classes, labelled from 0."""
    chosen = (images.labels >= low) & (images.labels < high)
    x = scaled(images.pixels[chosen])
    return Samples(x.flatten(1) if flat else x, images.labels[chosen] - low)
