"""The paper's networks. Any other module serves as well."""

from holdfast.models.dropout import Dropout, give_generator
from holdfast.models.networks import MultiHead, cnn, initialise, mlp

__all__ = ["Dropout", "MultiHead", "cnn", "give_generator", "initialise", "mlp"]
