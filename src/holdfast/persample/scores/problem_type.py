"""What a model says of its own targets, as Hugging Face's classifiers do: ``config.problem_type``.

They set it when they first see labels, unless whoever made them did: it is to be read when importance is measured, and
not before.
"""

from torch import nn

from holdfast.persample.scores.likelihoods import LikelihoodName

LIKELIHOOD_OF: dict[str, LikelihoodName] = {
    "regression": "gaussian",
    "single_label_classification": "categorical",
    "multi_label_classification": "bernoulli",
}
"""The likelihood that each problem type's loss is the negative logarithm of."""


def problem_type(model: nn.Module) -> str | None:
    """Return the problem type of a model, or of the outermost module in it that names one."""
    for module in model.modules():
        named = getattr(getattr(module, "config", None), "problem_type", None)
        if isinstance(named, str) and named in LIKELIHOOD_OF:
            return named
    return None
