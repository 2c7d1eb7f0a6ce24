"""The forms that users give with ``by=``: what each model weighs its own parameters with.

A guard, what it holds by (``guard.held.matrices``), a file that it was saved to, or importances by parameter, such as
``Fisher().measure(model, batches)``.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from anchorhold.engine.reductions import Block
from anchorhold.errors import ConfigurationError, NotFiniteError, StateError
from anchorhold.forms import DiagonalMatrix, Kronecker, Matrix, SumMatrix, form
from anchorhold.forms.layers import LayerForm
from anchorhold.forms.vectors import VectorForm
from anchorhold.guard import Guard, TaskImportance
from anchorhold.guard.state.files import state_of
from anchorhold.guard.state.schema import INPUTS_FIRST, LOOKED_UP, READABLE
from anchorhold.merging import tensor_files
from anchorhold.tensors.storage import widest_dtype

GivenForm = Guard | TaskImportance | Mapping[str, Tensor] | Mapping[str, Matrix] | str | os.PathLike[str] | None
"""A guard, its file, its matrices, or importances by parameter; ``None`` weighs all directions alike."""


class ModelForm(ABC):
    """Q of one model, block by block."""

    label: str
    blocks: dict[str, tuple[str, ...]]
    """The parameters of every block, by its name."""

    description: str
    """What it is, in a few words."""

    @abstractmethod
    def matrix(self, block: str) -> Matrix:
        """Return Q of a block."""

    def anchor(self, name: str) -> Tensor | None:
        """Return the weights that a parameter had when it was measured, where that is known."""
        return None


class InMemoryForm(ModelForm):
    """Matrices that are there."""

    def __init__(self, label: str, matrices: Mapping[str, Matrix], anchor: Mapping[str, Tensor] | None = None) -> None:
        self.label = label
        self._matrices = {name: _only(matrix) for name, matrix in matrices.items()}
        self._anchor = anchor or {}
        self.description = " and ".join(sorted({matrix.description for matrix in self._matrices.values()}))
        self.blocks = {name: matrix.block.parameters for name, matrix in self._matrices.items()}

    def matrix(self, block: str) -> Matrix:
        return self._matrices[block]

    def anchor(self, name: str) -> Tensor | None:
        return self._anchor.get(name)


class GuardFile(ModelForm):
    """What a guard was saved with, read block by block, without the model that it was of."""

    def __init__(self, label: str, path: Path) -> None:
        self.label = label
        self._path = path
        if not path.is_file():
            raise ConfigurationError(f"{label}={str(path)!r}: there is no such file; expected one that save() wrote.")
        state = state_of(path, tensor_files.OneAtATime(path), tensor_files.metadata(path))
        if state.get("version") not in READABLE:
            raise StateError(
                f"{str(path)!r} is of version {state.get('version')!r}; this anchorhold reads "
                f"{' and '.join(map(str, READABLE))}."
            )
        _refuse_folded(label, state.get("batch_norm"))
        self._layouts: Mapping[str, str] = state.get("layouts", {})
        kept = tensor_files.described(path)
        self._shapes = {n.removeprefix("anchor/"): k.shape for n, k in kept.items() if n.startswith("anchor/")}
        settings: dict[str, Any] = dict(state.get("form", {"name": "diagonal"}))
        self._form = form(settings.pop("name"), **settings)
        regmean = isinstance(self._form, Kronecker) and self._form.outputs == "identity"
        self.description = f"{self._form.name} form{' (RegMean)' if regmean else ''} of {state['driver']}"
        start = f"total/{state['driver']}/"
        self._parts: dict[str, dict[str, str]] = {}
        for key in kept:
            if key.startswith(start):
                whole = key.removeprefix(start)
                name, mark, part = whole.rpartition("#")
                diagonal = self._form.elementwise or not mark
                self._parts.setdefault(whole if diagonal else name, {})["" if diagonal else part] = key
        self._blocks = {name: self._block(name) for name in self._parts}
        self.blocks = {name: block.parameters for name, block in self._blocks.items()}

    def matrix(self, block: str) -> Matrix:
        tensors = {part: tensor_files.read(self._path, key) for part, key in self._parts[block].items()}
        if tensors.keys() == {""}:
            return DiagonalMatrix(block, tensors[""])
        return _only(self._form.restore(self._blocks[block], tensors, {}))

    def anchor(self, name: str) -> Tensor | None:
        return tensor_files.read(self._path, f"anchor/{name}") if name in self._shapes else None

    def _block(self, name: str) -> Block:
        """Return the parameters of a block, by the sizes of what is kept of it."""
        if self._parts[name].keys() == {""}:
            return Block(name, (name,))
        if isinstance(self._form, VectorForm) and self._form.span == "network":
            names = tuple(sorted(self._shapes))
            return Block(name, names, shapes=tuple(self._shapes[each] for each in names))
        if not isinstance(self._form, LayerForm) or name not in self._shapes:
            raise ConfigurationError(
                f"{self.label}={str(self._path)!r} holds {name!r} in the form {self._form.name!r}, whose blocks are "
                "known only beside the model. Load it into a Guard and give that."
            )
        layout = self._layouts.get(name)
        weight = Block(name, (name,), self._shapes[name], layout in (INPUTS_FIRST, LOOKED_UP), layout == LOOKED_UP)
        path, _, last = name.rpartition(".")
        bias = f"{path}.{last.replace('weight', 'bias')}".lstrip(".")
        # A bias that was held is in its layer's block, unless it is kept by itself.
        own = bias != name and self._shapes.get(bias) == weight.size[:1] and bias not in self._parts
        return weight._replace(parameters=(name, bias)) if own else weight


def _only(matrix: Matrix) -> Matrix:
    """Return a sum of one part as that part, which is easier to solve."""
    return matrix.parts[0] if isinstance(matrix, SumMatrix) and len(matrix.parts) == 1 else matrix


def given_form(label: str, given: GivenForm) -> ModelForm | None:
    """Return a model's form, whatever it was given as."""
    if given is None:
        return None
    if isinstance(given, Guard):
        if not given.held.matrices:
            raise ConfigurationError(f"{label} is a guard that holds nothing yet. Call its consolidate() first.")
        _refuse_folded(label, given.options.batch_norm)
        return InMemoryForm(label, given.held.matrices, given.anchor)
    if isinstance(given, TaskImportance):
        if set(given.forms.values()) - {"diagonal"}:
            raise ConfigurationError(
                f"{label} is what a guard found in another form than the diagonal, of which it shows the diagonal "
                "alone. Give the guard, or its matrices."
            )
        given = given.importance
    if isinstance(given, str | os.PathLike):
        return GuardFile(label, tensor_files.as_path(given))
    if isinstance(given, Mapping) and given:
        if all(isinstance(each, Matrix) for each in given.values()):
            return InMemoryForm(label, given)  # type: ignore[arg-type]
        if all(isinstance(each, Tensor) for each in given.values()):
            return InMemoryForm(label, {n: DiagonalMatrix(n, t.detach()) for n, t in given.items()})  # type: ignore[union-attr]
    raise ConfigurationError(
        f"{label} is of type {type(given).__name__}{' and empty' if isinstance(given, Mapping) and not given else ''}; "
        "expected a Guard, a file that one was saved to, its matrices, importances by parameter, or None."
    )


def given_forms(by: "GivenForm | Sequence[GivenForm]", models: int) -> list[ModelForm | None]:
    """Return the form of each model; one by itself is that of the first."""
    each: list[Any] = list(by) if isinstance(by, list | tuple) else [by, *[None] * (models - 1)]
    if len(each) != models:
        raise ConfigurationError(
            f"by= has {len(each)} forms for {models} models; expected one for each, None for a model that has none."
        )
    return [given_form(f"by[{k}]", given) for k, given in enumerate(each)]


def traces(form: ModelForm) -> dict[str, float]:
    """Return the trace of Q of every block, or refuse what is no weighing: infinite, NaN or negative."""
    found = {}
    for name in form.blocks:
        matrix = form.matrix(name)
        if isinstance(matrix, DiagonalMatrix):
            omega = matrix.omega
            least = float(omega.min()) if omega.numel() else 0.0
            trace = float(omega.sum(dtype=widest_dtype(omega.device)))
        else:
            wide = matrix.map(lambda tensor: tensor.to(widest_dtype(tensor.device)))
            least = min((float(d.min()) for d in wide.diagonal().values() if d.numel()), default=0.0)
            trace = float(wide.trace())
        if not math.isfinite(trace):
            raise NotFiniteError(f"{form.label} has an importance of {name!r} that is not finite. Measure it again.")
        # The diagonal of a form in other coordinates is rounded where it is 0.
        if least < (0.0 if isinstance(matrix, DiagonalMatrix) else -1e-6 * max(trace, 0.0)):
            raise ConfigurationError(
                f"{form.label} has an importance of {name!r} with negative numbers, down to {least:.3g}; expected none "
                "below 0, since weights would be pushed away from the model's. Clamp them at 0."
            )
        found[name] = trace
    return found


def groups(forms: Iterable[ModelForm]) -> list[frozenset[str]]:
    """Return which parameters have to be solved together: those that some form has in one block."""
    group_of: dict[str, set[str]] = {}
    for each in forms:
        for members in each.blocks.values():
            together = set(members).union(*(group_of.get(name, ()) for name in members))
            group_of |= dict.fromkeys(together, together)
    return [frozenset(found) for found in {id(found): found for found in group_of.values()}.values()]


def _refuse_folded(label: str, batch_norm: object) -> None:
    if batch_norm == "fold":
        raise ConfigurationError(
            f"{label} is a guard with batch_norm='fold', whose importance is of weights as batch norms scale them, and "
            "not of those that are merged. Measure again without it."
        )
