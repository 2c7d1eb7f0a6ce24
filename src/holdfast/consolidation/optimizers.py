"""Which optimisers can be watched, and why the others cannot."""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam

from holdfast.errors import OptimizerError


def check_optimizer(optimizer: object, protected: Mapping[str, nn.Parameter]) -> None:
    """Refuse what cannot be observed, or trains none of the protected parameters."""
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"attach() was given a {type(optimizer).__name__}; expected a torch.optim.Optimizer. For a wrapper, attach "
            "the optimiser inside it."
        )
    if isinstance(optimizer, SparseAdam):
        raise OptimizerError("SparseAdam takes sparse gradients only, and a penalty is dense. Use Adam.")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise OptimizerError(
            "An optimiser with maximize=True would climb the penalty too. Minimise the negative objective instead."
        )
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not {id(parameter) for parameter in trained} & {id(parameter) for parameter in protected.values()}:
        raise OptimizerError(
            f"This {type(optimizer).__name__} owns none of the {len(protected)} protected parameters (such as "
            f"{next(iter(protected))!r}). {_advice(trained, protected.values())}"
        )


def _advice(trained: Iterable[Tensor], protected: Iterable[nn.Parameter]) -> str:
    """Tell how an optimiser comes to own a model's parameters."""
    protected = list(protected)
    if not any(parameter.requires_grad for parameter in protected):
        return (
            "All of them are frozen (requires_grad=False), so no step moves them and there is nothing to hold. Protect "
            "what is trained: protect='*lora_*' for an adapter, for instance."
        )
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
