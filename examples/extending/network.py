"""A network of one's own: layers that add to what they are given, each behind a LayerNorm.

    anchorhold-lab run permuted-digits --network residual --with examples/extending/network.py -m SI -m SOS --hidden 100

``--hidden 100,50,50`` asks for three layers in a network that is 100 wide.
"""

from torch import Tensor, nn

from anchorhold_lab.networks import MultiHead, register_network
from anchorhold_lab.scenarios import Scenario


@register_network("residual")
def residual(scenario: Scenario, hidden: tuple[int, ...]) -> MultiHead:
    """Return a network that is as wide as the first of the widths, with a layer inside for each of them."""
    width = hidden[0]
    body = nn.Sequential(
        nn.Linear(scenario.input_shape[0], width),
        *(Layer(width, inner) for inner in hidden),
        nn.LayerNorm(width),
    )
    return MultiHead(body, width, scenario.classes, scenario.heads)


class Layer(nn.Module):
    """Adds to its input what a small network makes of it."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with something added."""
        return x + self.change(x)
