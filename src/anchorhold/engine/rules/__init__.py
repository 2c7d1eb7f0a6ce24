"""The layer rules: how the gradients of a call's parameters follow from its input and δ, a file for each kind of layer.

Importing this package registers the library's own. A function without a rule is measured by torch.func: exactly, and
more slowly.
"""

from anchorhold.engine.rules.base import RULES, Part, Rule, register_rule
from anchorhold.engine.rules.convolution import Convolution
from anchorhold.engine.rules.elementwise import Expansion, Scale, Shift
from anchorhold.engine.rules.embedding import Embedding
from anchorhold.engine.rules.linear import Linear, Projection
from anchorhold.engine.rules.normalisation import Normalisation

__all__ = [
    "RULES",
    "Convolution",
    "Embedding",
    "Expansion",
    "Linear",
    "Normalisation",
    "Part",
    "Projection",
    "Rule",
    "Scale",
    "Shift",
    "register_rule",
]
