"""What a model says of its own targets, as Hugging Face's classifiers of whole samples do: ``config.problem_type``.

Their loss is chosen by it, and where it is not set they set it when they first see labels, by a rule of their own: so
it is to be read when importance is measured, and not before. Other models have the same field in their configs and
never look at it.
"""

from typing import Any

from torch import Tensor, nn

from anchorhold.engine.scores.likelihoods import LikelihoodName

LIKELIHOOD_OF: dict[str, LikelihoodName] = {
    "regression": "gaussian",
    "single_label_classification": "categorical",
    "multi_label_classification": "bernoulli",
}
"""The likelihood that each problem type's loss is the negative logarithm of."""

_CLASSIFIERS = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio"))
"""How the names of those models end whose loss is chosen by it."""


def problem_type(model: nn.Module, labels: Tensor | None) -> str | None:
    """Return the problem type of a model that has one: the one that is set, or that it would set by these labels.

    Args:
        model: what is called.
        labels: those that travel with the inputs, as the model's own loss takes them; others may be another loss's.
    """
    called = _unwrapped(model)
    if not any(kind.__name__.endswith(_CLASSIFIERS) for kind in type(called).__mro__):
        return None
    config = getattr(called, "config", None)
    named = getattr(config, "problem_type", None)
    if isinstance(named, str) and named in LIKELIHOOD_OF:
        return named
    if labels is None or not isinstance(getattr(config, "num_labels", None), int):
        return None
    if getattr(config, "num_labels", None) == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model itself, out of torch.compile's and PEFT's wrappers, which call it and give its outputs back."""
    inner: Any = getattr(model, "_orig_mod", model)
    base = getattr(inner, "get_base_model", None)
    found = base() if callable(base) else inner
    return found if isinstance(found, nn.Module) else model
