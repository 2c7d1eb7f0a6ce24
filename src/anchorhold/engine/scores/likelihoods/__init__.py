"""Whose log-likelihood a score is: of one label out of several, of real values, or of labels that are each 0 or 1."""

from anchorhold.engine.scores.likelihoods.base import Likelihood, LikelihoodName
from anchorhold.engine.scores.likelihoods.bernoulli import Bernoulli
from anchorhold.engine.scores.likelihoods.categorical import Categorical
from anchorhold.engine.scores.likelihoods.gaussian import Gaussian

LIKELIHOODS: dict[LikelihoodName, Likelihood] = {
    "categorical": Categorical(),
    "gaussian": Gaussian(),
    "bernoulli": Bernoulli(),
}
"""Each likelihood by its name."""

__all__ = ["LIKELIHOODS", "Bernoulli", "Categorical", "Gaussian", "Likelihood", "LikelihoodName"]
