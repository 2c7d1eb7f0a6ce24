"""Which optimizers can be watched, and why the others cannot; what they train, and what a scaler has told them."""

import inspect
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam

from anchorhold.errors import OptimizerError
from anchorhold.tensors.sharding import is_trained_in_pieces, local

T = TypeVar("T")


IN_PIECES = "DeepSpeed's ZeRO trains flat copies of the parameters, each process its own piece of them."
PENALTY_IN_LOSS = (
    "No hook sees what the model's own parameters get there: do not attach(), take a measure from data, such as "
    "Fisher(), and give the penalty to the loss, engine.backward(loss + guard.penalty()); or train without ZeRO "
    "(stage 0), where attach(engine.optimizer) is all."
)


def trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of an optimizer's groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def ids(parameters: Iterable[Tensor]) -> set[int]:
    """Return what tells parameters apart, whatever their values."""
    return {id(parameter) for parameter in parameters}


def innermost(optimizer: T) -> T | Optimizer:
    """Return the optimizer that takes the steps, out of wrappers such as Accelerate's and Lightning's.

    Accelerate's wrapper is an ``Optimizer`` itself, but one whose hooks never run. One whose hooks do run, such as
    Lookahead around another optimizer, takes steps of its own.
    """
    found: T | Optimizer = optimizer
    # torch marks the ``step`` of each class that calls hooks.
    while not getattr(getattr(type(found), "step", None), "hooked", False):
        if not isinstance(inner := getattr(found, "optimizer", None), Optimizer):
            break
        found = inner
    return found


def is_within_its_own_step(optimizer: Optimizer) -> bool:
    """Return whether a hook runs around a base class's step, inside the step of the class derived from it.

    torch puts hooks around the ``step`` of each class of which an optimizer is made. Where one that has its own calls
    its base's, they run for both, and the outer one is the whole step.
    """
    hooked = [kind for kind in type(optimizer).__mro__ if getattr(vars(kind).get("step"), "hooked", False)]
    if len(hooked) < 2:
        return False
    code = vars(hooked[0])["step"].__code__
    # torch wraps the step of every class in the same function: its code is on the stack once for each that runs.
    frame, around = inspect.currentframe(), 0
    while frame is not None:
        around += frame.f_code is code and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return around > 1


def check_optimizer(
    optimizer: object, protected: Mapping[str, nn.Parameter], frozen: Mapping[str, nn.Parameter]
) -> None:
    """Refuse what cannot be observed, or trains none of the protected parameters nor of the frozen ones given."""
    if not isinstance(optimizer, Optimizer):
        several = isinstance(optimizer, list | tuple | dict)
        instead = "For a wrapper, attach the optimizer inside it"
        instead = "Give several one after the other, attach(first, second)" if several else instead
        raise OptimizerError(
            f"attach() was given a {type(optimizer).__name__}; expected a torch.optim.Optimizer. {instead}."
        )
    if isinstance(optimizer, SparseAdam):
        raise OptimizerError("SparseAdam takes sparse gradients only, and a penalty is dense. Use Adam.")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise OptimizerError(
            "An optimizer with maximize=True would climb the penalty too. Minimise the negative objective instead."
        )
    if hasattr(optimizer, "optimizer_dict"):  # Transformers' LayerWiseDummyOptimizer, whose own steps do nothing
        raise OptimizerError(
            f"This {type(optimizer).__name__} stands for an optimizer of each layer, whose steps are taken inside "
            "backward(), as soon as a layer has its gradient: they can be neither seen nor held. Use the form that "
            "steps after backward(), such as optim='galore_adamw' in place of 'galore_adamw_layerwise'."
        )
    trained = trained_by(optimizer)
    if not ids(trained) & (ids(protected.values()) | ids(frozen.values())):
        raise OptimizerError(
            f"This {type(optimizer).__name__} owns none of the {len(protected)} protected parameters (such as "
            f"{next(iter(protected))!r}). {_advice(trained, protected.values())}"
        )


def _advice(trained: Iterable[Tensor], protected: Iterable[nn.Parameter]) -> str:
    """Tell how an optimizer comes to own a model's parameters."""
    protected = list(protected)
    if not any(parameter.requires_grad for parameter in protected):
        return (
            "All of them are frozen (requires_grad=False), so no step moves them and there is nothing to hold. Protect "
            "what is trained: protect='*lora_*' for an adapter, for instance."
        )
    if any(map(is_trained_in_pieces, protected)):
        return f"{IN_PIECES} {PENALTY_IN_LOSS}"
    sixteen_bit = {parameter.shape for parameter in protected if parameter.dtype.itemsize < 4}
    if any(parameter.dtype.itemsize >= 4 and parameter.shape in sixteen_bit for parameter in trained):
        return (
            "It seems to train single-precision copies (master weights) of a 16-bit model, whose steps the model's own "
            "parameters do not take. Keep the model in single precision and compute under torch.autocast instead."
        )
    return "Build it from this model's parameters, and after the model is on its device."


def refuse_sparse(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse gradients that are neither measured nor held."""
    for name, parameter in parameters.items():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise OptimizerError(
                f"{name!r} has a sparse gradient, which cannot be measured or held. Use Embedding(sparse=False), or "
                "leave it out of protect."
            )


def give_each_its_own_gradient(parameters: Mapping[str, nn.Parameter]) -> None:
    """Copy gradients that share their memory with another's, or their elements with each other.

    ``backward()`` makes none of these, but who assigns what ``torch.autograd.grad`` returns may have them, and what is
    added to one of them must not end up in another.
    """
    given = [(p, p.grad) for p in parameters.values() if p.grad is not None and not p.grad.is_sparse]
    # This runs at every step, so a plain tensor is not asked whether it is sharded.
    parts = [(p, grad, grad if type(grad) is Tensor else local(grad)) for p, grad in given]
    places = [own.data_ptr() for _, _, own in parts if own.numel()]
    if len(set(places)) == len(places) and not [own for _, _, own in parts if not own.is_contiguous()]:
        return
    taken = set()
    for parameter, grad, own in parts:
        # A stride of 0 is one number that stands for several entries, as expand() makes them.
        repeats = any(n > 1 and not s for n, s in zip(own.shape, own.stride(), strict=True))
        if own.numel() and (repeats or own.data_ptr() in taken):
            parameter.grad = grad.clone()
        taken.add(own.data_ptr())


class Scaling(NamedTuple):
    """The factor in the gradients that an optimizer is about to remove, and whether it is about to skip."""

    factor: float
    skipped: bool


def read_scaling(optimizer: Optimizer) -> Scaling:
    """Return what the scaler has set on the optimizer for the coming step."""
    # GradScaler sets both for the time of a step, on optimizers that unscale by themselves, as fused ones do. For all
    # others it has unscaled the gradients before, and does not call a step that would overflow.
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    skipped = found_inf is not None and bool(found_inf.item() > 0)
    return Scaling(1.0 if scale is None else float(scale), skipped)
