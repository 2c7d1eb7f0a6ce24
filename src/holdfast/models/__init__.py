"""The paper's networks. Any other module serves as well."""

from holdfast.models.dropout import Dropout, draw_kept_, give_generator, with_own_dropout
from holdfast.models.networks import MultiHead, cnn, initialise, mlp

__all__ = ["Dropout", "MultiHead", "cnn", "draw_kept_", "give_generator", "initialise", "mlp", "with_own_dropout"]
