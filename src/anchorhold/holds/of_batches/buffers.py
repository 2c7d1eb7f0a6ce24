"""Samples that are kept of old tasks: a reservoir or a ring, filled at the end of each task.

A buffer holds training data, so it is saved only where that is asked for, in a file of its own: a guard's file never
has any of it.
"""

import json
import os
import random
import weakref
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from anchorhold.engine.batches import Batch, check_batches, read_batch
from anchorhold.errors import BatchError, ConfigurationError, StateError
from anchorhold.holds.of_batches.batch_sources import Drawn
from anchorhold.seeding import derive_seed
from anchorhold.settings import whole_number, yes_or_no
from anchorhold.whole_files import content_digest, read_tensors, sealed, unsealed, write_tensors

_KEY = "holdfast_buffer"

OUTPUTS_AT_ONCE = 256
"""Samples whose outputs are computed together."""


class Kind(NamedTuple):
    """What samples have in common that can lie in one batch."""

    task: int
    """Which task they are of, counted from 0."""
    structure: str
    """How the leaves make the inputs."""
    named: bool
    """Whether the batch was a mapping, with its labels among the others."""
    shapes: tuple[tuple[Any, ...], ...]
    """Of each leaf, and of the target; with a mark of the values of a leaf that belongs to no sample."""
    shared: frozenset[int]
    """The leaves that belong to no sample."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample, on the CPU."""

    leaves: tuple[Tensor, ...]
    target: Tensor | None
    kind: Kind
    group: Hashable
    """What is kept in balance: the task and, where there is one, the class."""
    outputs: Tensor | None = None
    """What the model made of it when it was kept, where that is wanted."""


class Stack(NamedTuple):
    """All samples of one kind, each a row."""

    samples: list[Sample]
    leaves: tuple[Tensor, ...]
    targets: Tensor | None
    outputs: Tensor | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Stack":
        """Lay samples of one kind side by side; they become views of that."""
        shared = samples[0].kind.shared
        leaves = tuple(
            samples[0].leaves[i] if i in shared else torch.stack([sample.leaves[i] for sample in samples])
            for i in range(len(samples[0].leaves))
        )
        targets = _stacked([sample.target for sample in samples])
        outputs = _stacked([sample.outputs for sample in samples])
        rows = [
            replace(
                sample,
                leaves=tuple(leaf if i in shared else leaf[row] for i, leaf in enumerate(leaves)),
                target=None if targets is None else targets[row],
                outputs=sample.outputs if outputs is None else outputs[row],
            )
            for row, sample in enumerate(samples)
        ]
        return cls(rows, leaves, targets, outputs)

    def drawn(self, rows: Sequence[int]) -> Drawn:
        """Return some of them as a batch, as a user would give it."""
        kind, chosen = self.samples[0].kind, torch.tensor(rows)
        leaves = [leaf if i in kind.shared else leaf[chosen] for i, leaf in enumerate(self.leaves)]
        inputs = tree_unflatten(leaves, treespec_loads(kind.structure))
        batch: Any = inputs if kind.named else (inputs,)
        if self.targets is not None:
            labels = self.targets[chosen]
            batch = {**inputs, "labels": labels} if kind.named else (inputs, labels)
        return Drawn(batch, kind.task, None if self.outputs is None else self.outputs[chosen])


class Buffer(ABC):
    """Samples of old tasks, on the CPU.

    Args:
        seed: of all draws: which samples are kept, and which are replayed at which step.
    """

    kind: ClassVar[str]

    def __init__(self, seed: int = 0) -> None:
        self.seed = whole_number("seed", seed, "a whole number")
        self.samples: list[Sample] = []
        self.seen: Counter[Hashable] = Counter()
        """How many samples of each group were offered so far."""
        self.tasks = 0
        """How many tasks it was filled with."""
        self._stacked: tuple[list[Sample], dict[Kind, Stack]] | None = None
        self._owner: weakref.ref[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out whose tasks they were: a copy is of a copied model."""
        return {**vars(self), "_owner": None}

    def __len__(self) -> int:
        return len(self.samples)

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what it was made with, to be stored with it."""

    @abstractmethod
    def _place(self, group: Hashable, places: Mapping[Hashable, list[int]], draws: random.Random) -> int | None:
        """Return where the next sample of a group goes: a place that is taken, the one after the last, or nowhere."""

    def __repr__(self) -> str:
        counts = Counter(sample.kind.task for sample in self.samples)
        by_task = ", ".join(f"{count} of task {task + 1}" for task, count in sorted(counts.items()))
        return f"{type(self).__name__}({by_task or 'empty'})"

    def fill(self, batches: Iterable[Any], task: int, owner: object = None) -> None:
        """Take in the samples of a task, as many of them as there is room for; all of them are looked at once.

        A task that it has taken in already is not taken in again: two holds of a guard may share a buffer.

        Args:
            batches: the task's data.
            task: its number, counted from 0.
            owner: whose tasks they are; the model, where a guard fills it.
        """
        known = None if self._owner is None else self._owner()
        if owner is not None and known is not None and known is not owner:
            raise ConfigurationError(
                f"The {type(self).__name__} has taken in tasks of another guard's model, whose numbers this one's "
                "would be taken for. Make a buffer for each guard."
            )
        self._owner = self._owner if owner is None else weakref.ref(owner)
        if task < self.tasks:
            return
        kept, seen = list(self.samples), self.seen.copy()
        draws = random.Random(derive_seed(self.seed, "fill", task))  # noqa: S311 (nothing secret)
        places: dict[Hashable, list[int]] = defaultdict(list)
        for taken, sample in enumerate(kept):
            places[sample.group].append(taken)
        try:
            for group, take in samples_of(batches, task):
                self.seen[group] += 1
                place = self._place(group, places, draws)
                if place is None:
                    continue
                if place < len(kept):
                    places[kept[place].group].remove(place)
                    kept[place] = take()
                else:
                    kept.append(take())
                places[group].append(place)
        except BaseException:
            self.seen = seen
            raise
        if self.seen == seen:
            raise BatchError("The batches for a buffer have no sample. Give the task's data.")
        self.samples, self.tasks = kept, task + 1

    def draw(self, size: int, step: int) -> Drawn | None:
        """Return the samples of a step, all of one kind; ``None`` from an empty buffer.

        Which ones depends on the seed and the step alone, so that a run that goes on draws as one that was not broken.
        """
        if not self.samples:
            return None
        draws = random.Random(derive_seed(self.seed, "draw", step))  # noqa: S311
        stacks = self.stacks()
        stack = stacks[self.samples[draws.randrange(len(self.samples))].kind]
        return stack.drawn(draws.sample(range(len(stack.samples)), min(size, len(stack.samples))))

    def draw_from_all(self, size: int, step: int) -> list[tuple[Drawn, int]]:
        """Return the samples of a step out of all kinds and tasks, those of a kind together, with how many they are.

        Which ones depends on the seed and the step alone, as in :meth:`draw`.
        """
        draws = random.Random(derive_seed(self.seed, "draw from all", step))  # noqa: S311
        chosen: dict[Kind, list[int]] = defaultdict(list)
        places = {id(s): (kind, row) for kind, stack in self.stacks().items() for row, s in enumerate(stack.samples)}
        for sample in draws.sample(self.samples, min(size, len(self.samples))):
            kind, row = places[id(sample)]
            chosen[kind].append(row)
        return [(self.stacks()[kind].drawn(rows), len(rows)) for kind, rows in chosen.items()]

    def stacks(self) -> dict[Kind, Stack]:
        """Return all samples by their kind."""
        if self._stacked is None or self._stacked[0] is not self.samples:
            found: dict[Kind, list[Sample]] = defaultdict(list)
            places: dict[Kind, list[int]] = defaultdict(list)
            for place, sample in enumerate(self.samples):
                found[sample.kind].append(sample)
                places[sample.kind].append(place)
            stacks = {kind: Stack.of(samples) for kind, samples in found.items()}
            for kind, stack in stacks.items():
                for place, sample in zip(places[kind], stack.samples, strict=True):
                    self.samples[place] = sample  # a view, so that nothing is kept twice
            self._stacked = self.samples, stacks
        return self._stacked[1]

    def keep_outputs(self, outputs_of: Callable[[Drawn], Tensor]) -> None:
        """Keep what the model makes of each sample that has nothing kept with it yet."""
        stacks = self.stacks()
        found = {id(sample): sample for sample in self.samples}
        for stack in stacks.values():
            new = [row for row, sample in enumerate(stack.samples) if sample.outputs is None]
            for start in range(0, len(new), OUTPUTS_AT_ONCE):
                rows = new[start : start + OUTPUTS_AT_ONCE]
                outputs = outputs_of(stack.drawn(rows)).detach().cpu()
                for row, output in zip(rows, outputs, strict=True):
                    sample = stack.samples[row]
                    found[id(sample)] = replace(sample, outputs=output.clone())
        self.samples = [found[id(sample)] for sample in self.samples]

    def snapshot(self) -> Any:
        """Return what :meth:`roll_back` needs."""
        return self.samples, self.seen.copy(), self.tasks

    def roll_back(self, snapshot: Any) -> None:
        """Be as when a snapshot was taken."""
        self.samples, self.seen, self.tasks = snapshot

    def state_dict(self) -> dict[str, Any]:
        """Return the samples themselves and all else that it knows, as plain values and tensors."""
        tensors: dict[str, Tensor] = {}
        kinds = []
        stacks = self.stacks()
        place = {id(sample): number for number, sample in enumerate(self.samples)}
        for number, (kind, stack) in enumerate(stacks.items()):
            about = {"task": kind.task, "structure": kind.structure, "named": kind.named}
            kinds.append({**about, "shared": sorted(kind.shared), "leaves": len(stack.leaves)})
            tensors[f"{number}/places"] = torch.tensor([place[id(sample)] for sample in stack.samples])
            tensors |= {f"{number}/leaf/{i}": leaf for i, leaf in enumerate(stack.leaves)}
            given = {"targets": stack.targets, "outputs": stack.outputs}
            tensors |= {f"{number}/{name}": tensor for name, tensor in given.items() if tensor is not None}
        seen = [[list(group), count] for group, count in self.seen.items() if isinstance(group, tuple)]
        about = {"kind": self.kind, "settings": self.settings(), "kinds": kinds, "seen": seen, "tasks": self.tasks}
        return {"about": about, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the samples of a buffer with the same settings."""
        try:
            about, tensors = state["about"], state["tensors"]
            mine = json.loads(json.dumps(self.settings()))
            if about["kind"] != self.kind or about["settings"] != mine:
                raise StateError(  # noqa: TRY301 (it goes past what is told below)
                    f"The samples are those of a {about['kind']} with {about['settings']}, and this is a {self.kind} "
                    f"with {mine}. Make the buffer with the same settings."
                )
            samples = dict(_restored(about["kinds"], tensors))
            seen: Counter[Hashable] = Counter({tuple(group): int(count) for group, count in about["seen"]})
            in_order = [samples[place] for place in range(len(samples))]
            if strange := {name for name in tensors if int(name.partition("/")[0]) >= len(about["kinds"])}:
                raise ValueError(f"{min(strange)} belongs to no kind of sample")  # noqa: TRY301 (told below)
            tasks = int(about["tasks"])
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise StateError(
                f"This is no state of a buffer, or not a whole one ({type(error).__name__}: {error}). Give what a "
                "buffer's save() or state_dict() made."
            ) from error
        self.samples, self.seen, self.tasks = in_order, seen, tasks

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the samples themselves to a safetensors file, whole or not at all: training data, so keep it safe."""
        if not Path(path).parent.is_dir() or Path(path).is_dir():
            raise StateError(f"No samples can be written to {str(path)!r}: expected a file in a folder that is there.")
        state = self.state_dict()
        write_tensors(path, state["tensors"], {_KEY: sealed(state["about"], state["tensors"])})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take over the samples of a file that :meth:`save` wrote, of a buffer with the same settings."""
        if not Path(path).is_file():
            raise StateError(f"There is no file of samples at {str(path)!r}. Give the path that save() wrote.")
        tensors, texts = read_tensors(path)
        about, checked = unsealed(texts.get(_KEY, "{}"), tensors, path)
        if not checked:
            raise StateError(f"{str(path)!r} is no file of a buffer. Give one that a buffer's save() wrote.")
        self.load_state_dict({"about": about, "tensors": tensors})


class Reservoir(Buffer):
    """At most so many samples, as many of each class of each task as of any other (Chrysakis & Moens, ICML 2020).

    Each sample of a group is as likely to be kept as any other of it (Vitter 1985). Data without class labels are kept
    in balance by task.

    Args:
        size: how many samples are kept.
        balanced: whether groups are kept in balance; without, each sample that was ever offered is as likely to be kept
            as any other.
        seed: of all draws.
    """

    kind = "reservoir"

    def __init__(self, size: int, *, balanced: bool = True, seed: int = 0) -> None:
        super().__init__(seed)
        self.size = whole_number("size", size, "a whole number of at least 1", least=1)
        yes_or_no("balanced", balanced)
        self.balanced = balanced

    def settings(self) -> dict[str, Any]:
        return {"size": self.size, "balanced": self.balanced, "seed": self.seed}

    def _place(self, group: Hashable, places: Mapping[Hashable, list[int]], draws: random.Random) -> int | None:
        taken = sum(map(len, places.values()))
        if taken < self.size:
            return taken
        if not self.balanced:
            place = draws.randrange(self.seen.total())
            return place if place < self.size else None
        most = max(map(len, places.values()))
        own = places.get(group, [])
        # A group of which samples had to go before may not grow again.
        if len(own) < most and self.seen[group] - 1 <= len(own):
            largest = sorted((g for g in places if len(places[g]) == most), key=repr)
            return draws.choice(places[draws.choice(largest)])
        return draws.choice(own) if own and draws.random() < len(own) / self.seen[group] else None


class Ring(Buffer):
    """The last so many samples of each class of each task (Chaudhry et al. 2019, arXiv 1902.10486).

    Args:
        each: how many samples of a class are kept; of a task without class labels, so many in all.
        seed: of the draws.
    """

    kind = "ring"

    def __init__(self, each: int, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.each = whole_number("each", each, "a whole number of at least 1", least=1)

    def settings(self) -> dict[str, Any]:
        return {"each": self.each, "seed": self.seed}

    def _place(self, group: Hashable, places: Mapping[Hashable, list[int]], draws: random.Random) -> int | None:
        own = places.get(group, [])
        return own[0] if len(own) == self.each else sum(map(len, places.values()))


def _stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Return tensors as the rows of one, if all are there."""
    present = [row for row in rows if row is not None]
    return torch.stack(present) if len(present) == len(rows) else None


def samples_of(batches: Iterable[Any], task: int) -> Iterator[tuple[Hashable, Callable[[], Sample]]]:
    """Yield the group of every sample, and how it is taken out of its batch: most are not kept."""
    for batch in check_batches(batches):
        read = read_batch(batch, torch.device("cpu"))
        leaves, structure = tree_flatten(read.inputs)
        if strange := [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)]:
            raise BatchError(
                f"A batch with a {strange[0]} among its inputs, which no buffer can keep; expected tensors alone. "
                "Leave it out, or give what is to be replayed as batches."
            )
        once = {place: leaves[place].clone() for place in read.shared}
        marks = {place: content_digest("", {"": leaf}) for place, leaf in once.items()}
        for row, group in enumerate(_groups(read, task)):
            yield group, partial(_sample_of, read, row, task, group, leaves, structure, once, marks)


def _sample_of(
    batch: Batch,
    row: int,
    task: int,
    group: Hashable,
    leaves: Sequence[Tensor],
    structure: TreeSpec,
    once: Mapping[int, Tensor],
    marks: Mapping[int, str],
) -> Sample:
    """Return a copy of one sample: a view of its row would keep the whole batch in memory."""
    own = tuple(once[i] if i in once else leaf[row].clone() for i, leaf in enumerate(leaves))
    target = None if batch.targets is None else batch.targets[row].clone()
    return Sample(own, target, _kind(task, structure, own, target, batch.named, marks), group)


def _groups(batch: Batch, task: int) -> list[Hashable]:
    """Return the group of each sample of a batch: its task, and its class where it has one."""
    targets = batch.targets
    if targets is None or targets.ndim != 1 or targets.is_floating_point():
        return [(task,)] * batch.size
    return [(task, label) for label in targets.tolist()]


def _kind(
    task: int,
    structure: TreeSpec,
    leaves: Sequence[Tensor],
    target: Tensor | None,
    named: bool,
    marks: Mapping[int, str],
) -> Kind:
    """Return what a sample has in common with others; of a leaf that belongs to none, a mark of its values."""
    every = [*leaves, *([] if target is None else [target])]
    shapes = tuple((*leaf.shape, str(leaf.dtype), marks.get(place, "")) for place, leaf in enumerate(every))
    return Kind(task, treespec_dumps(structure), named, shapes, frozenset(marks))


def _restored(kinds: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, Sample]]:
    """Yield each sample with its place."""
    for number, about in enumerate(kinds):
        leaves = [tensors[f"{number}/leaf/{leaf}"] for leaf in range(about["leaves"])]
        targets, outputs = (tensors.get(f"{number}/{name}") for name in ("targets", "outputs"))
        shared, structure, task = frozenset(about["shared"]), treespec_loads(about["structure"]), int(about["task"])
        marks = {place: content_digest("", {"": leaves[place]}) for place in shared}
        batch = Batch(tree_unflatten(leaves, structure), targets, len(tensors[f"{number}/places"]))
        groups = _groups(batch, task)
        for row, place in enumerate(tensors[f"{number}/places"].tolist()):
            own = tuple(leaf if i in shared else leaf[row].clone() for i, leaf in enumerate(leaves))
            target = None if targets is None else targets[row].clone()
            kind = _kind(task, structure, own, target, bool(about["named"]), marks)
            yield place, Sample(own, target, kind, groups[row], None if outputs is None else outputs[row].clone())
