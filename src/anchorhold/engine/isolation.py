"""Measure a model without leaving a trace.

Importance is a property of the trained network, so it is measured in eval mode, whatever mode the model is in. All that
measuring could disturb is put back: modes, buffers, gradients, ``requires_grad``, random state, and the rows that an
embedding with ``max_norm`` shortens. Three of torch's functions are replaced while any thread measures: the switch of
autocast, the function that shortens rows, and the reentrant checkpoint.
"""

import contextlib
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from anchorhold.errors import AnchorholdError, ModelError
from anchorhold.seeding import undisturbed
from anchorhold.tensors.names import has_module


@contextlib.contextmanager
def isolated(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode with gradients for ``parameters`` of single samples, and restore all afterwards."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_with_gradients(model, parameters))
        stack.enter_context(reentrant_checkpoints_run())
        # A fused attention hides its backward pass from vmap.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if has_module(model, nn.RNNBase):
            stack.enter_context(without_cudnn())
        # Where torch has no batched form of an operation it runs it in a loop, and says so: nothing to act on here.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@contextlib.contextmanager
def evaluation_with_gradients(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode with gradients for ``parameters``, and restore everything afterwards."""
    parameters = list(parameters)
    with evaluation_mode(model, parameters), torch.enable_grad():
        required = [parameter.requires_grad for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.requires_grad_(True)
            yield
        finally:
            for parameter, requires_grad in zip(parameters, required, strict=True):
                parameter.requires_grad_(requires_grad)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode, without gradients, and restore everything afterwards.

    Args:
        model: the network.
        parameters: some that say on which devices it draws random numbers.

    Raise ModelError if the model has no eval mode.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(undisturbed())  # the random states of the CPU, Python's and numpy's too
        devices = {parameter.device for parameter in parameters if parameter.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        # Autocast would round to 16 bits what is measured, and a compiled model hides its layers.
        stack.enter_context(autocast_off(model))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(renormed_rows_put_back())
        stack.enter_context(_without_caches(model))
        stack.enter_context(float32_products())
        modes = [(module, module.training) for module in model.modules()]
        buffers = [
            (module, name, tensor, versions_of([tensor]), tensor.detach().clone())
            for module in model.modules()
            for name, tensor in module.named_buffers(recurse=False)
        ]
        try:
            try:
                to_eval_mode(model)
            except NotImplementedError as error:
                raise ModelError(
                    f"The {type(model).__name__} has no eval mode, in which importance is measured ({error}). Of a "
                    "program that torch.export has made, measure the module that it was made from: its parameters are "
                    "the same."
                ) from error
            yield
        finally:
            with torch.no_grad():
                for module, name, tensor, version, values in buffers:
                    # A buffer that was not written to is left alone: a write would upset a later backward pass.
                    if versions_of([tensor]) != version:
                        tensor.copy_(values)
                    # The module may have put another tensor in its place.
                    setattr(module, name, tensor)
            for module, training in modes:
                # One by one: train() would set the modules below as well, and may do more.
                module.training = training


def to_eval_mode(model: nn.Module) -> None:
    """Put a model into eval mode, but for layers that could not be trained any more after a call in it."""
    model.eval()
    for module in model.modules():
        # On some CPUs bitsandbytes' 4-bit layers pack their weights anew in eval mode, for good.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.training = True


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor was written to: 0 for one made in inference mode, to which nobody may write."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


@contextlib.contextmanager
def _without_caches(model: nn.Module) -> Iterator[None]:
    """Keep Hugging Face's models from filling a cache for generation, as they do in eval mode.

    Nobody reads it here, it takes memory, and some write to it in place, which autograd and vmap refuse.
    """
    changed: list[Any] = []
    for module in model.modules():
        with contextlib.suppress(Exception):  # whatever a config of another kind says to being asked, or set
            config: Any = module.config
            if config.use_cache is True:
                config.use_cache = False
                changed.append(config)
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


class ProcessSwitch:
    """Sets something when the first user enters, and puts it back when the last one leaves.

    Args:
        set: sets it, and returns how to put it back.
    """

    def __init__(self, set: Callable[[], Callable[[], None]]) -> None:
        self._set = set
        self._lock = threading.Lock()
        self._users = 0
        self._put_back: Callable[[], None] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Have it set for a while."""
        with self._lock:
            if not self._users:
                self._put_back = self._set()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._put_back is not None:
                    self._put_back()


def _set_float32_products() -> Callable[[], None]:
    """Compute products and convolutions in float32 proper, not in TF32, which cuDNN takes unless told otherwise.

    Its ten bits would reach every importance, and let a sample's outputs depend on how many others are in the batch.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False

    def put_back() -> None:
        matmul.allow_tf32, cudnn.allow_tf32 = before

    return put_back


def _set_cudnn_off() -> Callable[[], None]:
    """Leave recurrent layers to torch's own kernels: those of cuDNN have no backward pass in eval mode."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False

    def put_back() -> None:
        torch.backends.cudnn.enabled = before

    return put_back


class _Opened:
    @staticmethod
    def apply(function: Callable[..., Any], _preserve_random_state: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _open_reentrant_checkpoints() -> Callable[[], None]:
    """Run what is checkpointed with ``use_reentrant=True`` as if it were not.

    That form runs under ``no_grad`` and builds its graph in ``backward()`` only: the parameters inside would look as if
    no output depended on them, and get importance 0. Chunks of samples keep the memory in bounds without it.
    """
    kept = torch.utils.checkpoint.CheckpointFunction
    torch.utils.checkpoint.CheckpointFunction = _Opened  # type: ignore[assignment, misc]

    def put_back() -> None:
        torch.utils.checkpoint.CheckpointFunction = kept  # type: ignore[misc]

    return put_back


float32_products = ProcessSwitch(_set_float32_products)
without_cudnn = ProcessSwitch(_set_cudnn_off)
reentrant_checkpoints_run = ProcessSwitch(_open_reentrant_checkpoints)


_autocast_lock = threading.Lock()
_without_autocast: Counter[int] = Counter()
"""In how many regions without autocast each thread is."""
_asked_for_autocast: set[int] = set()
"""The threads that asked for autocast in such a region, and did not get it."""

_OF_PRECISION = re.compile(r"dtype|same type|scalar type|half|float16|fp16|bf16", re.IGNORECASE)
_NOTE = (
    "Importances are measured without autocast, also where the model or a wrapper around it enters it, so that they "
    "have the digits of the parameters. A model that needs autocast to work, since it converts to 16 bits by itself or "
    "its attention takes nothing else, has to be measured with parameters in 16 bits, or in a form without that need."
)


@contextlib.contextmanager
def autocast_off(model: nn.Module) -> Iterator[None]:
    """Turn autocast off in this thread, also where the model enters it by itself.

    A model that Accelerate has prepared for 16 bits, as the Hugging Face Trainer does, enters autocast in its forward
    pass, and so do some models as they are written. Leaving the caller's region does not reach those. A model whose
    parameters differ in precision may work under autocast only: what it enters by itself stays.
    """
    parameters = list(model.parameters())
    with contextlib.ExitStack() as stack:
        for device_type in filter(torch.amp.is_autocast_available, {parameter.device.type for parameter in parameters}):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        if len({parameter.dtype for parameter in parameters if parameter.is_floating_point()}) == 1:
            stack.enter_context(_never_on())
        yield


@contextlib.contextmanager
def _never_on() -> Iterator[None]:
    """Let whatever switches autocast on, in this thread, leave it off."""
    thread = threading.get_ident()
    with _autocast_lock:
        if not _without_autocast:
            _autocast_switch.install()
        _without_autocast[thread] += 1
    try:
        yield
    except RuntimeError as error:
        if (
            thread in _asked_for_autocast
            and not isinstance(error, AnchorholdError)
            and _OF_PRECISION.search(str(error))
        ):
            error.add_note(_NOTE)
        raise
    finally:
        with _autocast_lock:
            _without_autocast[thread] -= 1
            if not _without_autocast[thread]:
                del _without_autocast[thread]
                _asked_for_autocast.discard(thread)
            if not _without_autocast:
                _autocast_switch.remove()


class _AutocastSwitch:
    """Stands where ``torch.autocast`` finds the function that switches it on and off, while any thread is without."""

    def __init__(self) -> None:
        self.original: Callable[..., Any] = torch.set_autocast_enabled

    def install(self) -> None:
        self.original = torch.set_autocast_enabled
        torch.set_autocast_enabled = self  # type: ignore[assignment]

    def remove(self) -> None:
        torch.set_autocast_enabled = self.original

    def __call__(self, device_type: str | bool, enabled: bool | None = None) -> None:
        if enabled is None:  # the older form
            device_type, enabled = "cuda", bool(device_type)
        thread = threading.get_ident()
        if enabled and thread in _without_autocast:
            _asked_for_autocast.add(thread)
            enabled = False
        elif enabled and isinstance(threading.current_thread(), threading._DummyThread):  # noqa: SLF001
            # One of torch's own: a GPU's backward pass runs there, and with it what was checkpointed, once more.
            enabled = False
        self.original(device_type, enabled)


_autocast_switch = _AutocastSwitch()


_renorm_lock = threading.Lock()
_renormed: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
"""For each thread that measures: tables, rows of them that were shortened, and what these held before."""


@contextlib.contextmanager
def renormed_rows_put_back() -> Iterator[None]:
    """Put back, at the end, what embeddings with ``max_norm`` write to their tables in this thread.

    Torch shortens, in place, the rows that are looked up and longer than ``max_norm``. They stay so while importance is
    measured, since the model is measured as it computes; then they are put back, bit for bit. Only rows that changed
    are remembered, since a table may be large.
    """
    thread = threading.get_ident()
    with _renorm_lock:
        if not _renormed:
            _renorm_switch.install()
        outside = _renormed.get(thread)
        _renormed[thread] = []
    try:
        yield
    finally:
        with _renorm_lock:
            # The last change first: a row may have been shortened more than once.
            for table, rows, values in reversed(_renormed[thread]):
                table[rows] = values
            if outside is None:
                del _renormed[thread]
            else:
                _renormed[thread] = outside
            if not _renormed:
                _renorm_switch.remove()


def renormed_among(parameters: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the parameters some of whose rows have changed since this thread began to measure."""
    changed = _renormed.get(threading.get_ident())
    if not changed:
        return []
    tables = {table.data_ptr() for table, _, _ in changed}
    return [name for name, parameter in parameters.items() if parameter.data_ptr() in tables]


class _RenormSwitch:
    """Stands where ``F.embedding`` and ``F.embedding_bag`` find the function that shortens rows, while any measures."""

    name = "_no_grad_embedding_renorm_"

    def __init__(self) -> None:
        self.original: Callable[..., Any] = torch.embedding_renorm_

    def install(self) -> None:
        self.original = getattr(F, self.name)
        setattr(F, self.name, self)

    def remove(self) -> None:
        setattr(F, self.name, self.original)

    def __call__(self, weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
        changed = _renormed.get(threading.get_ident())
        if changed is None:
            self.original(weight, input, max_norm, norm_type)
            return
        # By way of .data, since all of it will be as it was: a backward pass that is still to come need not know.
        table, rows = weight.data, input.unique()
        before = table[rows]
        torch.embedding_renorm_(table, input, max_norm, norm_type)
        shortened = (table[rows] != before).any(1)
        if bool(shortened.any()):
            changed.append((table, rows[shortened], before[shortened]))


_renorm_switch = _RenormSwitch()
