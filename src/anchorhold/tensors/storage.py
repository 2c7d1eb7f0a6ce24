"""How what is kept about parameters is kept: where, in how many bits, and once where several tensors are equal.

By default it lies where they lie, no less precisely.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.tensors.packed import Packed, pack_importance, pack_weights, packed_bytes
from anchorhold.tensors.sharding import is_sharded

StateDtype = torch.dtype | Literal["8bit"]
"""A precision of what rests. In ``"8bit"`` an importance takes 8 bits, and an anchor 24, or the 16 of its weights."""
_LEAST_DIMENSIONS = 2
"""Of tensors that may be kept once: vectors take too little to be worth it."""
_SEEN_FIRST = 16
"""Numbers of such a tensor that are looked at first."""


def running_dtype(parameter: Tensor) -> torch.dtype:
    """Return the precision of a parameter's running state: its own, but single at least.

    In 16 bits, small additions to a running average fall below the rounding step and vanish.
    """
    return torch.float32 if parameter.dtype.itemsize < 4 else parameter.dtype


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise type that a device has: double, but single on Apple's."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Storage:
    """How to keep tensors about parameters.

    What rests from one task to the next, the anchor and Ω, may be kept in another precision than the running state of
    the current task, which would freeze in 16 bits. θ(0) has the precision of the parameter: it is subtracted from it,
    and a rounding error would soon be larger than the difference. All of it may lie on another device.
    """

    dtype: StateDtype | None = None
    """Of what rests; by default as precise as the parameter, but single at least."""
    device: torch.device | None = None
    """Of everything that is kept; by default the parameter's."""

    def __post_init__(self) -> None:
        # float16 holds nothing below 6e-8, where many a Fisher information lies.
        if self.dtype not in (None, torch.bfloat16, torch.float32, torch.float64, "8bit"):
            raise ConfigurationError(
                f"state_dtype={self.dtype}: expected torch.bfloat16, torch.float32 or torch.float64 (float16 would "
                "round small importances to 0), or '8bit'."
            )

    @property
    def is_packed(self) -> bool:
        """Whether what rests is kept in bytes that are no floating-point numbers."""
        return self.dtype == "8bit"

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise ConfigurationError if what rests about some parameters cannot be packed."""
        first = next((name for name, p in parameters.items() if is_sharded(p)), None) if self.is_packed else None
        if first is not None:
            raise ConfigurationError(
                f"state_dtype='8bit' with parameters that are spread over processes, such as {first!r}: expected "
                "parameters that each process has whole, as with DDP. Take state_dtype=torch.bfloat16, which is spread "
                "as they are."
            )

    def resting_dtype(self, parameter: Tensor) -> torch.dtype:
        """Return the dtype of what rests; of that which is packed, the one in which it is while it is too small."""
        return self.dtype if isinstance(self.dtype, torch.dtype) else running_dtype(parameter)

    def to_storage(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Return weights as they rest from task to task; they may share memory with those given."""
        if not self.is_packed:
            return self._placed(tensor.to(self.resting_dtype(parameter)), parameter)
        if _is_exact_in_16_bits(parameter):
            return self._placed(tensor.to(parameter.dtype), parameter)
        return self._packed(pack_weights(tensor), parameter)

    def importance_to_storage(self, tensor: Tensor, parameter: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """Return an importance as it rests from task to task; it may share memory with the one given.

        Args:
            tensor: Ω, or a tensor that Q is made of.
            parameter: one that it is of.
            noise: what decides between rounding up and down where Ω is packed; without, it is rounded to the nearest.
        """
        if not self.is_packed:
            return self._placed(tensor.to(self.resting_dtype(parameter)), parameter)
        return self._packed(pack_importance(tensor, noise), parameter)

    def weights_bytes(self, parameter: Tensor) -> int:
        """Return the bytes of a tensor like a parameter, as it rests."""
        if self.is_packed and _is_exact_in_16_bits(parameter):
            return 2 * parameter.numel()
        few = self.resting_dtype(parameter).itemsize * parameter.numel()
        return packed_bytes(parameter.numel(), importance=False) or few if self.is_packed else few

    def importance_bytes(self, numel: int, parameter: Tensor) -> int:
        """Return the bytes of an importance of so many numbers, as it rests beside a parameter."""
        few = self.resting_dtype(parameter).itemsize * numel
        return packed_bytes(numel, importance=True) or few if self.is_packed else few

    def running(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Return a tensor as a running state is kept."""
        return self._placed(tensor.to(running_dtype(parameter)), parameter)

    def exact(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Return weights of a parameter as they are kept without rounding; they may share memory with those given."""
        return self._placed(tensor.to(parameter.dtype), parameter)

    def is_in_place(self, kept: Tensor, parameter: Tensor) -> bool:
        """Whether a tensor lies where it should."""
        return kept.device == (self.device or parameter.device) and is_sharded(kept) == is_sharded(parameter)

    def _packed(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        kept = tensor if isinstance(tensor, Packed) else tensor.to(running_dtype(parameter))
        return self._placed(kept, parameter)

    def _placed(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        device = self.device or parameter.device
        if tensor.device == device:
            return tensor
        if is_sharded(parameter):
            raise ConfigurationError(
                f"state_device={str(self.device)!r} with sharded parameters on {parameter.device}: their state is "
                "sharded as they are. Leave state_device out, or let FSDP offload both (CPUOffloadPolicy)."
            )
        moved = tensor.to(device)
        if device.type != "cpu" or parameter.device.type != "cuda":
            return moved
        # Only pinned memory is read by a GPU without the processor's help.
        return moved.with_parts(Tensor.pin_memory) if isinstance(moved, Packed) else moved.pin_memory()


def _is_exact_in_16_bits(parameter: Tensor) -> bool:
    return parameter.dtype.itemsize == 2


def to_compute(kept: Tensor, parameter: Tensor) -> Tensor:
    """Return what is kept about a parameter where the parameter is: itself, or a copy."""
    return kept if kept.device == parameter.device else kept.to(parameter.device, non_blocking=True)


def is_as_kept(weights: Tensor, kept: Tensor) -> bool:
    """Return whether weights are those that are kept, but for the rounding of that."""
    rounded = pack_weights(weights) if isinstance(kept, Packed) else weights.to(kept)
    return torch.equal(rounded, kept)


def put_back(used: Tensor, kept: Tensor) -> None:
    """Keep what was changed :func:`to_compute`."""
    if used is not kept:
        kept.copy_(used)  # waits, since the processor may read it at any time


class Once:
    """Gives for each tensor the first of those given so far that is equal to it, number by number."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or one that was given before and is the same."""
        if tensor.ndim < _LEAST_DIMENSIONS or tensor.is_meta:
            return tensor
        few = tensor.reshape(-1)[:: max(1, tensor.numel() // _SEEN_FIRST)]  # so that all numbers are compared of few
        known = self._known.setdefault((tensor.shape, tensor.dtype, tensor.device, *few.tolist()), [])
        for other in known:
            if torch.equal(tensor, other):
                return other
        known.append(tensor)
        return tensor


def each_as_it_is(tensor: Tensor) -> Tensor:
    """Return a tensor, where equal ones are not looked for."""
    return tensor


def free_bytes(device: torch.device) -> int | None:
    """Return the memory of a device that this process could still take; ``None`` where a device does not say.

    A processor shares its own with others.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device, a processor's too; ``None`` where nothing tells."""
    if device.type != "cpu":
        return free_bytes(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        known = {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= names.keys()
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 if known else None
