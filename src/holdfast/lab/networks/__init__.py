"""The paper's networks. Any other module serves as well."""

from holdfast.lab.networks.dropout import Dropout, draw_kept_, give_generator, with_own_dropout
from holdfast.lab.networks.multi_head import MultiHead, cnn, draw_weights, initialise, mlp, take_weights

__all__ = [
    "Dropout",
    "MultiHead",
    "cnn",
    "draw_kept_",
    "draw_weights",
    "give_generator",
    "initialise",
    "mlp",
    "take_weights",
    "with_own_dropout",
]
