"""Files of kept inputs with their predictions: safetensors, and either whole or absent."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from anchorhold.errors import StateError
from anchorhold.retention.kept_set import Chunk, KeptSet
from anchorhold.whole_files import read_tensors, sealed, unsealed, write_tensors

_KEY = "holdfast_kept"


def write(path: str | os.PathLike[str], sets: Mapping[str, KeptSet]) -> None:
    """Write sets to a file."""
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise StateError(f"No kept inputs can be written to {str(path)!r}: expected a file in a folder that is there.")
    about, tensors = taken_apart(sets)
    write_tensors(path, tensors, {_KEY: sealed({"sets": about}, tensors)})


def taken_apart(sets: Mapping[str, KeptSet]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return sets as plain values, and tensors by name: what they are written as."""
    tensors: dict[str, Tensor] = {}
    about = []
    for number, kept in enumerate(sets.values()):
        chunks = []
        for place, chunk in enumerate(kept.chunks):
            leaves, structure = tree_flatten(chunk.batch)
            under = f"{number}/{place}"
            tensors |= {f"{under}/leaf/{i}": leaf for i, leaf in enumerate(leaves)}
            tensors[f"{under}/log_p"] = chunk.log_p
            if chunk.places is not None:
                tensors[f"{under}/places"] = chunk.places
            chunks.append(
                {
                    "structure": treespec_dumps(structure),
                    "leaves": len(leaves),
                    "size": chunk.size,
                    "per": chunk.per,
                    "loss": chunk.loss,
                    "labelled": chunk.labelled,
                }
            )
        lost = kept.forward is not None or kept.forward_is_lost
        about.append({"name": kept.name, "forward": lost, "chunks": chunks})
    return about, tensors


def read(path: str | os.PathLike[str]) -> list[KeptSet]:
    """Read the sets of a file, or say why it has none."""
    if not Path(path).is_file():
        raise StateError(f"There is no file of kept inputs at {str(path)!r}. Give the path that kept.save() wrote.")
    read_in, texts = read_tensors(path)
    # In memory that is aligned as new tensors are: products of others may differ in their last bits.
    tensors = {name: tensor.clone() for name, tensor in read_in.items()}
    about, checked = unsealed(texts.get(_KEY, "{}"), tensors, path)
    if not checked:
        raise StateError(f"{str(path)!r} is no file of kept inputs. Give one that guard.kept.save() wrote.")
    try:
        return list(put_together(about["sets"], tensors))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StateError(
            f"{str(path)!r} is no whole file of kept inputs ({type(error).__name__}: {error}). Use another copy."
        ) from error


def put_together(about: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> Iterator[KeptSet]:
    """Go through the sets that :func:`taken_apart` was given."""
    for number, told in enumerate(about):
        chunks = []
        for place, part in enumerate(told["chunks"]):
            under = f"{number}/{place}"
            leaves = [tensors[f"{under}/leaf/{i}"] for i in range(part["leaves"])]
            batch = tree_unflatten(leaves, treespec_loads(part["structure"]))
            kept = tensors[f"{under}/log_p"], tensors.get(f"{under}/places"), part["per"]
            chunks.append(Chunk(batch, part["size"], *kept, part["loss"], part["labelled"]))
        yield KeptSet(told["name"], chunks, None, forward_is_lost=told["forward"], is_unproven=True)
