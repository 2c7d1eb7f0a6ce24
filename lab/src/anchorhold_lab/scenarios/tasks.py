"""Tasks, and sequences of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from anchorhold.errors import ConfigurationError
from anchorhold.seeding import generator_for

SHOWN = 3
"""How many of a scenario's tasks are printed with it."""


@dataclass(frozen=True, repr=False)
class Samples:
    """Inputs and their labels."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.x, Tensor) or not isinstance(self.y, Tensor):
            raise ConfigurationError(
                f"Samples of a {type(self.x).__name__} and a {type(self.y).__name__}; expected two tensors."
            )
        if not len(self.x):
            raise ConfigurationError("Samples without a single input; expected at least one.")
        if len(self.x) != len(self.y):
            raise ConfigurationError(f"{len(self.x)} inputs and {len(self.y)} labels; expected one label an input.")
        if self.y.is_floating_point() or self.y.ndim != 1 or int(self.y.min()) < 0:
            raise ConfigurationError(
                f"Labels of type {self.y.dtype} and shape {tuple(self.y.shape)}, or below 0; expected one class number "
                "from 0 up for each input."
            )
        object.__setattr__(self, "y", self.y.long())

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.x.shape[1:]))
        return f"Samples({len(self):,} of {shape or 'one number'}, labels {int(self.y.min())} to {int(self.y.max())})"

    def to(self, device: torch.device | str) -> "Samples":
        """Return the samples on a device."""
        return Samples(self.x.to(device), self.y.to(device))

    def select(self, chosen: Tensor) -> "Samples":
        """Return the chosen samples."""
        return Samples(self.x[chosen], self.y[chosen])


def _as_they_are(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, repr=False)
class Task:
    """What is to be learned at one time.

    The stored samples may be shared between tasks; ``transform`` makes them this task's own when they are asked for.
    """

    name: str
    stored_train: Samples
    stored_test: Samples
    stored_validation: Samples | None = None
    head: int = 0
    transform: Callable[[Tensor], Tensor] = field(default=_as_they_are)
    stored_kept: Samples | None = None
    """Those that were set aside from training, to see by them later what is left of the task."""
    outputs: int | None = None
    """How many outputs of the head are open once the task is learned, where the head grows; ``None`` for all."""

    def __repr__(self) -> str:
        kept = self.stored_validation
        validation = "" if kept is None else f", {len(kept):,} to choose settings by"
        head = f", head {self.head}" if self.head else ""
        aside = "" if self.stored_kept is None else f", {len(self.stored_kept):,} set aside"
        return (
            f"Task({self.name!r}: {len(self.stored_train):,} samples to learn from{aside}{validation}, "
            f"{len(self.stored_test):,} to be judged by{head})"
        )

    @property
    def train(self) -> Samples:
        """The samples to learn from."""
        return Samples(self.transform(self.stored_train.x), self.stored_train.y)

    @property
    def test(self) -> Samples:
        """The samples to be judged by in the end."""
        return Samples(self.transform(self.stored_test.x), self.stored_test.y)

    @property
    def validation(self) -> Samples | None:
        """The samples to choose settings by, if any were kept back."""
        kept = self.stored_validation
        return None if kept is None else Samples(self.transform(kept.x), kept.y)

    @property
    def kept(self) -> Samples | None:
        """The samples that were set aside, if any were."""
        aside = self.stored_kept
        return None if aside is None else Samples(self.transform(aside.x), aside.y)


@dataclass(frozen=True, repr=False)
class Scenario:
    """Tasks in the order in which they are learned.

    With one head for all tasks (``heads=1``), a network is not told which task an input belongs to
    (domain-incremental); with a head each, it is (task-incremental). A head that grows with the tasks is
    class-incremental: :func:`~anchorhold_lab.scenarios.of_kind`.
    """

    name: str
    tasks: tuple[Task, ...]
    classes: int
    """How many classes each head tells apart."""

    def __repr__(self) -> str:
        shape, heads = (
            " × ".join(map(str, self.input_shape)),
            "one head" + " that grows" * self.grows if self.heads == 1 else f"{self.heads} heads",
        )
        shown = [f"  {task!r}" for task in self.tasks[:SHOWN]]
        more = [f"  and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        first = f"Scenario {self.name!r}: {len(self)} tasks of {self.classes} classes, {heads}, inputs of {shape}"
        return "\n".join([first, *shown, *more])

    @property
    def heads(self) -> int:
        """How many heads a network needs."""
        return 1 + max(task.head for task in self.tasks)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.tasks[0].stored_train.x.shape[1:])

    @property
    def grows(self) -> bool:
        """Whether outputs of the one head are closed until a task opens them."""
        return any(task.outputs is not None for task in self.tasks)

    @property
    def keeps(self) -> bool:
        """Whether samples of all tasks were set aside from training."""
        return all(task.stored_kept is not None for task in self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def to(self, device: torch.device | str) -> "Scenario":
        """Return the scenario on a device; samples that tasks share are moved once."""
        moved: dict[int, Samples] = {}

        def once(samples: Samples) -> Samples:
            if id(samples) not in moved:
                moved[id(samples)] = samples.to(device)
            return moved[id(samples)]

        tasks = tuple(
            replace(
                task,
                stored_train=once(task.stored_train),
                stored_test=once(task.stored_test),
                stored_validation=None if task.stored_validation is None else once(task.stored_validation),
                stored_kept=None if task.stored_kept is None else once(task.stored_kept),
            )
            for task in self.tasks
        )
        return replace(self, tasks=tasks)


def hold_out(samples: Samples, share: float, seed: int) -> tuple[Samples, Samples | None]:
    """Split off a share for validation, the same one for the same seed: the paper's is one fixed permutation."""
    if not 0 <= share < 1:
        raise ConfigurationError(f"validation={share}: expected a share from 0 up to, but not, 1.")
    kept = round(share * len(samples))
    if not kept:
        return samples, None
    if kept == len(samples):
        raise ConfigurationError(
            f"validation={share} of {len(samples)} samples leaves none to learn from; expected a smaller share."
        )
    shuffled = torch.randperm(len(samples), generator=generator_for(seed, "validation", len(samples)))
    return samples.select(shuffled[kept:]), samples.select(shuffled[:kept])


Given = Samples | tuple[Tensor, Tensor] | TorchDataset[tuple[Tensor, int]]


def scenario_of(
    pairs: Sequence[tuple[Given, Given]],
    *,
    name: str = "custom",
    classes: int | None = None,
    own_heads: bool = True,
    validation: float = 0.0,
    validation_seed: int = 0,
) -> Scenario:
    """Return a scenario of one's own, from training and test samples of each task.

    >>> scenario_of([(Samples(x1, y1), Samples(x1_test, y1_test)), (torch_dataset, torch_dataset_test)])

    Args:
        pairs: for each task its training and test samples, as :class:`Samples`, as a pair of tensors, or as map-style
            torch data sets.
        name: what the scenario is called.
        classes: how many classes a head tells apart; by default the largest label + 1.
        own_heads: whether each task has a head of its own.
        validation: the share of each task's training samples that is kept back.
        validation_seed: the seed of that split.
    """
    if not pairs:
        raise ConfigurationError("A scenario needs at least one task; got an empty list.")
    tasks = []
    for i, pair in enumerate(pairs):
        given_train, given_test = _train_and_test(pair, i)
        train, kept = hold_out(_samples(given_train), validation, validation_seed)
        tasks.append(Task(f"task {i + 1}", train, _samples(given_test), kept, head=i if own_heads else 0))
    parts = [part for task in tasks for part in (task.stored_train, task.stored_test, task.stored_validation) if part]
    largest = max(int(part.y.max()) for part in parts)
    if classes is not None and largest >= classes:
        raise ConfigurationError(f"A label {largest} and classes={classes}; expected labels from 0 to {classes - 1}.")
    return Scenario(name, tuple(tasks), classes or largest + 1)


def _train_and_test(pair: object, task: int) -> tuple[Given, Given]:
    """Return what was given for a task, or say what should have been."""
    if isinstance(pair, tuple | list) and len(pair) == 2 and not all(isinstance(part, Tensor) for part in pair):
        return pair[0], pair[1]
    parts = f" of {', '.join(type(part).__name__ for part in pair)}" if isinstance(pair, tuple | list) else ""
    raise ConfigurationError(
        f"Task {task + 1} is a {type(pair).__name__}{parts}; expected its training and its test samples, as in "
        "((x, y), (x_test, y_test))."
    )


def _samples(given: Given) -> Samples:
    """Return samples, read from a data set if they are not samples yet."""
    if isinstance(given, Samples):
        return given
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, Tensor) for part in given):
        return Samples(*given)
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        raise ConfigurationError(
            f"A {type(given).__name__} without a length or items; expected Samples(x, y), a pair of tensors or a "
            "map-style torch Dataset."
        )
    pairs = [_pair(given[i], i) for i in range(len(given))]  # type: ignore[arg-type]
    shapes = {x.shape for x, _ in pairs}
    if len(shapes) > 1:
        raise ConfigurationError(
            f"Inputs of shapes {sorted(map(tuple, shapes))[:3]} in one {type(given).__name__}; expected one shape for "
            "all."
        )
    return Samples(torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs], dtype=torch.long))


def _pair(item: object, index: int) -> tuple[Tensor, int]:
    try:
        x, y = cast("tuple[Any, Any]", item)
        return torch.as_tensor(x), int(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"Item {index} of a data set is a {type(item).__name__} that does not read as input and label ({error}); "
            "expected a pair of a tensor and a class number."
        ) from error
