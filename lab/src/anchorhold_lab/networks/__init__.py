"""The paper's networks. Any other module serves as well."""

from anchorhold_lab.networks.dropout import Dropout, draw_kept_, give_generator, with_own_dropout
from anchorhold_lab.networks.multi_head import MultiHead, cnn, draw_weights, initialise, mlp, take_weights
from anchorhold_lab.networks.registry import NETWORKS, NetworkKind, Tasks, register_network

__all__ = [
    "NETWORKS",
    "Dropout",
    "MultiHead",
    "NetworkKind",
    "Tasks",
    "cnn",
    "draw_kept_",
    "draw_weights",
    "give_generator",
    "initialise",
    "mlp",
    "register_network",
    "take_weights",
    "with_own_dropout",
]
