"""All sets of inputs that a guard keeps, by name, and the file that they have."""

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from anchorhold.errors import ConfigurationError, OrderError
from anchorhold.retention.kept_files import put_together, read, taken_apart, write
from anchorhold.retention.kept_set import KeptSet


class KeptSets(Mapping[str, KeptSet]):
    """All sets that are kept, by name."""

    def __init__(self) -> None:
        self._sets: dict[str, KeptSet] = {}
        self.expected: dict[str, list[float]] = {}
        """Those that a state was saved with, by their marks, which are to be there before its run goes on."""
        self.dropped: set[str] = set()
        """Names of sets that were dropped, and may be kept anew to count from then on."""

    def __getitem__(self, name: str) -> KeptSet:
        if name not in self._sets:
            there = ", ".join(map(repr, self._sets)) or "none"
            raise ConfigurationError(f"No set was kept by the name {name!r}; there are {there}.")
        return self._sets[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a set, or what is given in its place where none was kept by that name."""
        return self._sets.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._sets

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def __repr__(self) -> str:
        return f"KeptSets({', '.join(map(repr, self._sets.values())) or 'none'})"

    def free_name(self, name: str | None) -> str:
        """Return a name that is not taken: the one given, or the next number's."""
        if name is None:
            taken = self._sets.keys() | self.expected.keys()
            return next(n for n in (f"set {k}" for k in itertools.count(1)) if n not in taken)
        if not isinstance(name, str):
            raise ConfigurationError(
                f"name= of type {type(name).__name__}; expected a text, by which the set is reported. What is kept "
                "comes first: guard.keep(batches, 'a name')."
            )
        if not name or "/" in name:
            raise ConfigurationError(f"name={name!r}: expected a text without '/', by which the set is reported.")
        if name in self._sets:
            raise ConfigurationError(
                f"A set is kept by the name {name!r} already. Give another name, or drop that set first: "
                f"guard.kept.drop({name!r})."
            )
        return name

    def add(self, kept: KeptSet) -> None:
        """Take in a set."""
        self._sets[self.free_name(kept.name)] = kept

    def drop(self, name: str) -> None:
        """Let go of a set: it is neither reported nor part of a tolerance any more."""
        if name not in self.expected:
            self[name]
        self._sets.pop(name, None)
        self.expected.pop(name, None)
        self.dropped.add(name)

    def refuse_unless_complete(self) -> None:
        """Refuse to go on without the sets that a state was saved with."""
        if missing := sorted(self.expected.keys() - self._sets.keys()):
            raise OrderError(
                f"The state was saved with the kept set {missing[0]!r}, and it is not here: kept inputs are data, "
                "which no guard's file carries. Load what guard.kept.save() wrote with guard.kept.load(path), keep the "
                f"inputs with the model of then, or go on without: guard.kept.drop({missing[0]!r})."
            )

        for name, marks in self.expected.items():
            if not self._sets[name].is_as(marks):
                raise OrderError(
                    f"The state was saved with a kept set {name!r} of other predictions than the one here: it was kept "
                    "with another model, such as a half-trained one, or has other inputs. Load what guard.kept.save() "
                    "wrote with guard.kept.load(path), or keep the inputs with the model of then before its weights "
                    f"are replaced; to count from here on, guard.kept.drop({name!r}) and keep them anew."
                )
            self._sets[name].is_unproven = False
        self.expected = {}  # which are all here: this is asked before every step

    def refuse_in_place_of_expected(self, name: str, *, in_a_task: bool) -> None:
        """Refuse to keep anew, in the middle of a task, what a state was saved with: that is from before the task."""
        if in_a_task and name in self.expected and name not in self._sets:
            raise OrderError(
                f"The state was saved in the middle of a task with the kept set {name!r}, which holds what the model "
                "said before that task; kept now, it would be what a half-trained model says. Load what "
                "guard.kept.save() wrote with guard.kept.load(path), or keep the inputs with the model of then before "
                f"the guard's state is loaded; to count from here on, guard.kept.drop({name!r}) first."
            )

    @property
    def marks(self) -> dict[str, list[float]]:
        """Marks of all sets that are kept, and of those that are still expected."""
        return self.expected | {name: kept.marks for name, kept in sorted(self._sets.items())}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all sets to a safetensors file, inputs and all, whole or not at all: data, so keep it safe."""
        write(path, self._sets)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take over the sets of a file that :meth:`save` wrote, in the place of those of the same names."""
        self._sets |= {kept.name: kept for kept in read(path)}

    def state_dict(self) -> dict[str, Any]:
        """Return all sets as plain values and tensors, inputs and all, for a checkpoint that may hold data."""
        about, tensors = taken_apart(self._sets)
        return {"sets": about, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the sets of :meth:`state_dict`, in the place of those of the same names."""
        tensors = {name: tensor.clone() for name, tensor in state["tensors"].items()}  # as new ones lie in memory
        self._sets |= {kept.name: kept for kept in put_together(state["sets"], tensors)}
