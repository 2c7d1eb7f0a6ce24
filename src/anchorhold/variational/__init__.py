"""Weights as distributions: mean-field Gaussians in the place of a model's linear and convolutional weights.

What holds them is :class:`anchorhold.Variational`, in ``holds/of_weights/variational.py``.
"""

from anchorhold.variational.coresets import k_center, refined
from anchorhold.variational.mean_field import MeanField, mean_field, mean_field_layers
from anchorhold.variational.prediction import predictive

__all__ = ["MeanField", "k_center", "mean_field", "mean_field_layers", "predictive", "refined"]
