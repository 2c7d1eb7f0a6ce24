"""Read the batches that users give, and call a model with them."""

import contextlib
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import Dataset

from anchorhold.errors import AnchorholdError, BatchError

Forward = Callable[[nn.Module, Any], Tensor]
"""How a model is called: ``forward(model, inputs)`` returns outputs of shape ``[N, ..., C]``."""


@dataclass(frozen=True)
class Batch:
    """Inputs of any structure, targets if there are any, and the number of samples in both.

    ``shared`` holds the places, among the leaves of the inputs, of those that belong to no sample; ``named`` tells that
    the batch was a mapping, whose labels lie where the model's own loss wants them; and ``labelling`` says how they
    come to lie where the outputs do, which only the outputs may tell.
    """

    inputs: Any
    targets: Tensor | None
    size: int
    shared: frozenset[int] = frozenset()
    named: bool = False
    labelling: "Callable[[Batch, Tensor], Tensor | None] | None" = None

    def __getitem__(self, part: slice) -> "Batch":
        start, stop, _ = part.indices(self.size)
        if (start, stop) == (0, self.size):
            return self
        return self._select(lambda tensor: tensor[start:stop], stop - start)

    def rows(self, chosen: Tensor) -> "Batch":
        """Return the samples at these places."""
        return self._select(lambda tensor: tensor[chosen.to(tensor.device)], len(chosen))

    def labels_for(self, outputs: Tensor) -> Tensor | None:
        """Return the labels of these samples as they lie beside the outputs of a model."""
        return self.targets if self.labelling is None else self.labelling(self, outputs)

    def pair(self) -> "Batch":
        """Return the first sample and another: one that differs from it, if there is any."""
        leaves, _ = tree_flatten(self.inputs)
        differs = torch.zeros(self.size, dtype=torch.bool)
        for place, leaf in enumerate(leaves):
            if place not in self.shared:
                differs |= (leaf != leaf[:1]).reshape(self.size, -1).any(1).cpu()
        other = int(differs.int().argmax()) or 1
        return self._select(lambda tensor: tensor[[0, other]], 2)

    def sample_shapes(self) -> list[torch.Size]:
        """Return the shape of each input, without the samples' own dimension."""
        leaves, _ = tree_flatten(self.inputs)
        return [leaf.shape[place not in self.shared :] for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def dims(self) -> Any:
        """Return the inputs' structure with the dimension of the samples, or ``None``, in the place of each leaf."""
        leaves, structure = tree_flatten(self.inputs)
        return tree_unflatten([None if place in self.shared else 0 for place in range(len(leaves))], structure)

    def _select(self, choose: Callable[[Tensor], Tensor], size: int) -> "Batch":
        leaves, structure = tree_flatten(self.inputs)
        chosen = [leaf if place in self.shared else choose(leaf) for place, leaf in enumerate(leaves)]
        targets = None if self.targets is None else choose(self.targets)
        return replace(self, inputs=tree_unflatten(chosen, structure), targets=targets, size=size)


def read_batch(batch: Any, device: torch.device) -> Batch:
    """Return a batch given as inputs, ``(inputs,)``, ``(inputs, targets)`` or a mapping with ``"labels"``."""
    inputs, targets = _parts(batch)
    leaves, _ = tree_flatten(inputs)
    lengths = [len(leaf) if isinstance(leaf, Tensor) and leaf.ndim > 0 else None for leaf in leaves]
    found = [length for length in lengths if length is not None]
    if not found:
        raise BatchError(f"A batch of type {type(batch).__name__} without any tensor; expected inputs as tensors.")
    # Labels tell the number of samples best; without them the first input does.
    size = len(targets) if targets is not None and len(targets) in found else found[0]
    if size == 0:
        raise BatchError("A batch of 0 samples; expected at least one. Leave empty batches out.")
    if targets is not None and len(targets) != size:
        raise BatchError(f"{size} inputs but {len(targets)} targets; expected one target a sample.")

    def usable(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        moved = leaf.to(device)
        return moved.clone() if moved.is_inference() else moved  # autograd cannot work with one of inference mode

    moved = tree_map(usable, inputs)
    shared = frozenset(place for place, length in enumerate(lengths) if length != size)
    return Batch(moved, None if targets is None else targets.to(device), size, shared, isinstance(batch, Mapping))


def check_batches(batches: object) -> Iterable[Any]:
    """Return batches that can be gone through, or say what was given in their place."""
    given = type(batches).__name__
    if isinstance(batches, Dataset) and callable(getattr(batches, "batches", None)):
        raise BatchError(f"Batches of type {given}, which has single pieces; expected batches of them: .batches(8).")
    if isinstance(batches, Dataset) and not hasattr(batches, "__iter__"):
        raise BatchError(
            f"Batches of type {given}, a data set of single samples; expected batches of them: DataLoader(dataset, "
            "batch_size=32), or batch_size=None for a data set of batches."
        )
    is_one = isinstance(batches, Tensor | Mapping | str) or (isinstance(batches, list | tuple) and _is_one(batches))
    if is_one or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        if isinstance(batches, list | tuple):
            given += f" of {', '.join(type(part).__name__ for part in batches[:3])}"
        more = " A tuple of unlabelled batches has to be a list." if isinstance(batches, tuple) else ""
        raise BatchError(
            f"Batches of type {given}; expected an iterable of batches, such as a DataLoader. Put a single batch "
            f"into a list: [batch].{more}"
        )
    return cast("Iterable[Any]", batches)


def _is_one(given: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether this is a single batch such as (inputs, targets).

    A tuple that holds a tensor is, unless all of it is one tensor cut into pieces, as by ``split`` and ``chunk``. So is
    a list of tensors of different kinds with as many samples each, as a DataLoader yields it.
    """
    if len(given) < 2 or not any(isinstance(part, Tensor) for part in given):
        return False
    if isinstance(given, tuple):
        return not all(itertools.starmap(_follows, itertools.pairwise(given)))
    if not all(isinstance(part, Tensor) and part.ndim > 0 for part in given):
        return False
    return len({len(part) for part in given}) == 1 and len({(part.dtype, part.ndim) for part in given}) > 1


def _follows(first: Any, second: Any) -> bool:
    """Return whether the second of two tensors begins in memory where the first one ends."""
    if not all(isinstance(part, Tensor) and part.ndim > 0 and part.layout is torch.strided for part in (first, second)):
        return False
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr() and first.dtype == second.dtype
    return same and bool(second.storage_offset() == first.storage_offset() + len(first) * first.stride(0))


def describe_inputs(inputs: Any) -> str:
    """Return the shapes of a batch's inputs, for a message."""
    shapes = tree_map(lambda leaf: tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__, inputs)
    return textwrap.shorten(str(shapes), 200, placeholder=" …")


def call_model(model: nn.Module, inputs: Any) -> Tensor:
    """Call a model in the usual ways, and take the logits of an output that has them."""
    in_order: list[Any] = []
    by_name: Mapping[str, Any] = {}
    if isinstance(inputs, Mapping):
        by_name = inputs
    elif isinstance(inputs, tuple | list):
        in_order = list(inputs)
    else:
        in_order = [inputs]
    try:
        outputs = model(*in_order, **by_name)
    except TypeError as error:
        _explain_call(model, in_order, by_name, error)
        raise
    outputs = getattr(outputs, "logits", outputs)
    if not isinstance(outputs, Tensor):
        raise BatchError(
            f"The model returned a {type(outputs).__name__}; expected a tensor of outputs (or an object with .logits). "
            "Give forward=lambda model, inputs: ... that returns the tensor to measure."
        )
    return outputs


@contextlib.contextmanager
def explain_failed_call(message: Callable[[str], str]) -> Iterator[None]:
    """Raise BatchError where a call of the user's model fails.

    The library's own errors, and a lack of memory, which other inputs would not mend, stay as they are.

    Args:
        message: makes the error's text of what the model raised, in words.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
        if isinstance(error, AnchorholdError | torch.OutOfMemoryError):
            raise
        raise BatchError(message(f"{type(error).__name__}: {error}")) from error


def _explain_call(model: nn.Module, in_order: list[Any], by_name: Mapping[str, Any], error: TypeError) -> None:
    """Raise what is wrong with the inputs if the model does not take them; any other error is its own."""
    try:
        taken = inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):
        return
    try:
        taken.bind(*in_order, **by_name)
    except TypeError as reason:
        names = [repr(name) for name in by_name]
        given = f"inputs by the names {', '.join(names)}" if names else f"{len(in_order)} inputs in order"
        wanted = textwrap.shorten(", ".join(taken.parameters), 200, placeholder=" …")
        raise BatchError(
            f"A batch with {given}, for a model whose forward takes ({wanted}): {reason}. Name them as it does, or say "
            f"how it is called: forward=lambda model, inputs: model({_advised_call(taken, in_order, by_name)})."
        ) from error


def _advised_call(taken: inspect.Signature, in_order: list[Any], by_name: Mapping[str, Any]) -> str:
    """Return arguments that a model takes: what it misses beside those that are given, or else the first of these."""
    try:
        bound = taken.bind_partial(*in_order, **by_name).arguments
    except TypeError:
        return f"inputs[{next(iter(map(repr, by_name)), 0)}]"
    missing = [name for name, each in taken.parameters.items() if each.default is each.empty and name not in bound]
    given = "**inputs" if by_name else "inputs" if len(in_order) == 1 else "*inputs"
    return ", ".join([given, *(f"{name}=..." for name in missing)])


def _parts(batch: Any) -> tuple[Any, Tensor | None]:
    """Return a batch's inputs and its targets."""
    inputs, targets = batch, None
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        targets = batch.get("labels")
    elif isinstance(batch, tuple | list):
        # Samples that nobody has collated are mappings: several of them, or one without a tensor.
        mappings = len(batch) > 0 and all(isinstance(part, Mapping) for part in batch)
        if mappings and (len(batch) > 1 or not any(isinstance(leaf, Tensor) for leaf in tree_flatten(batch[0])[0])):
            raise BatchError(
                f"A batch that is a list of {len(batch)} rows with {', '.join(map(repr, list(batch[0])[:5]))}, as a "
                "data set has them before they are collated, or a trainer whose model writes the texts itself; "
                "expected tensors. Give batches that a model can be called with, to a callback by consolidate_at_end=."
            )
        if len(batch) not in (1, 2):
            raise BatchError(
                f"A batch of {len(batch)} parts; expected inputs, (inputs, targets) or a mapping with 'labels'. Group "
                "several inputs as ((a, b), targets) or {'name': tensor, ..., 'labels': targets}."
            )
        inputs, targets = batch[0], batch[1] if len(batch) == 2 else None
    if targets is not None and (not isinstance(targets, Tensor) or targets.ndim == 0):
        raise BatchError(
            f"Targets of type {type(targets).__name__}; expected a tensor with one entry a sample. torch.as_tensor "
            "makes one of an array or a list, of the inputs too."
        )
    return inputs, targets


class KeptInputs:
    """Calls a model with copies of its inputs, unless its first call has left them alone.

    Some models write to their inputs, such as those that scale images in place. A batch is the user's, and it is gone
    through several times: the second pass has to see what the first one saw.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._writes: bool | None = None

    def __call__(self, model: nn.Module, inputs: Any) -> Tensor:
        """Call the model."""
        if self._writes is False:
            return self._forward(model, inputs)
        copies = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
        outputs = self._forward(model, copies)
        if self._writes is None:
            tensors = [leaf for leaf in tree_leaves(copies) if isinstance(leaf, Tensor) and not leaf.is_inference()]
            self._writes = any(leaf._version for leaf in tensors)
        return outputs


class Replaceable(nn.Module):
    """A model together with how it is called, so that a call may put other tensors in the place of its own."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.call = forward

    def forward(self, inputs: Any) -> Tensor:
        return self.call(self.model, inputs)

    def slots(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every place that holds a parameter or buffer, once, with what it holds.

        A tied parameter has a place in each of its modules; a module that is used twice has its places only once.
        """
        for prefix, module in self.named_modules():
            yield from module.named_parameters(prefix, recurse=False, remove_duplicate=False)
            yield from module.named_buffers(prefix, recurse=False, remove_duplicate=False)

    def call_with(self, tensors: Mapping[str, Tensor], inputs: Any) -> Tensor:
        """Call the model with other tensors in some of its slots."""
        # Every slot is named, so nothing is left for torch to tie: where a module is used twice, that would swap its
        # parameters twice and leave the wrong ones behind.
        try:
            outputs: Tensor = functional_call(self, dict(tensors), (inputs,), tie_weights=False)
        finally:
            # Recurrent layers list their own weights again, as they do by themselves when they are next called.
            for module in self.modules():
                if isinstance(module, nn.RNNBase):
                    module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]  # noqa: SLF001
        return outputs
