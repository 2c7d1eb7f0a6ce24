"""The networks that a spec can name, and how others add their own."""

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import nn

from anchorhold.errors import ConfigurationError
from anchorhold.registry import Registry, registering
from anchorhold_lab.networks.multi_head import MultiHead, cnn, mlp

F = TypeVar("F", bound=Callable[..., MultiHead])

_GIVEN = ("scenario", "hidden")
_SIDE = 32
"""Of the images that the paper's CNN takes."""


class Tasks(Protocol):
    """What a network has to know of the tasks that it is to learn, as a ``Scenario`` says it."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def classes(self) -> int:
        """How many classes each head tells apart."""

    @property
    def heads(self) -> int:
        """How many heads the tasks need."""


@dataclass(frozen=True)
class NetworkKind:
    """A network that a spec can name."""

    make: Callable[..., MultiHead]
    """Makes it from the tasks, and from the widths of its hidden layers if it takes them."""
    called: str
    """What it is called in a sentence."""
    takes_hidden: bool

    @property
    def __wrapped__(self) -> Callable[..., MultiHead]:
        """What was registered, by which the registry tells whether it is registered again."""
        return self.make

    def network(self, scenario: Tasks, hidden: tuple[int, ...] | None) -> MultiHead:
        """Return a network that fits the tasks; the run draws its weights."""
        made = self.make(scenario, hidden) if self.takes_hidden else self.make(scenario)
        if not isinstance(made, MultiHead):
            raise ConfigurationError(
                f"What makes {self.called} returned a {type(made).__name__}; expected an "
                "anchorhold_lab.networks.MultiHead of a body and its heads."
            )
        return made


NETWORKS: Registry[NetworkKind] = Registry("network")
"""Every network that a spec can name."""


def register_network(name: str) -> Callable[[F], F]:
    """Let a network of one's own be asked for by name: in a spec, on the command line, and as a scenario's usual one.

    >>> @register_network("narrow")
    ... def narrow(scenario, hidden):
    ...     body = nn.Sequential(nn.Linear(scenario.input_shape[0], hidden[0]), nn.Tanh())
    ...     return MultiHead(body, hidden[0], scenario.classes, scenario.heads)

    What is decorated is a function of the scenario and, if it takes them, of the widths of hidden layers:

    - ``scenario`` is the :class:`~anchorhold_lab.scenarios.Scenario` that is to be learned. ``scenario.input_shape`` is
      the shape of one input, ``(64,)`` for the digits and ``(3, 32, 32)`` for CIFAR; ``scenario.classes`` is how many
      classes a head tells apart; ``scenario.heads`` is how many heads there are to be.
    - ``hidden`` is a tuple of one or more positive whole numbers, those that were asked for or else the scenario's
      usual ones. A function without this argument is of a network that has no widths to choose, and to ask for some
      is refused.

    It returns a :class:`~anchorhold_lab.networks.MultiHead`, whose weights the run then draws from its seed.
    """

    def wrap(make: F) -> NetworkKind:
        given = list(inspect.signature(make).parameters) if inspect.isfunction(make) else []
        if given not in (list(_GIVEN[:1]), list(_GIVEN)):
            raise ConfigurationError(
                f"register_network({name!r}) was given {make!r}; expected a function of (scenario, hidden), or of "
                "(scenario) for a network that has no widths to choose."
            )
        return NetworkKind(make, f"the network {name!r}", takes_hidden="hidden" in given)

    return registering(NETWORKS, name, wrap)


def _mlp(scenario: Tasks, hidden: tuple[int, ...]) -> MultiHead:
    """Return fully connected layers, into which images go as rows of pixels."""
    return _rows_of_pixels(scenario, hidden, bias=0.1)


def _mlp_torch_init(scenario: Tasks, hidden: tuple[int, ...]) -> MultiHead:
    """Return the same with weights and biases that begin as torch draws them for linear layers."""
    return _rows_of_pixels(scenario, hidden, bias=None)


def _rows_of_pixels(scenario: Tasks, hidden: tuple[int, ...], bias: float | None) -> MultiHead:
    shape = scenario.input_shape
    made = mlp(math.prod(shape), hidden, scenario.classes, scenario.heads, bias)
    if len(shape) > 1:
        made.body = nn.Sequential(nn.Flatten(), made.body)
    return made


def _mlp_batch_norm(scenario: Tasks, hidden: tuple[int, ...]) -> MultiHead:
    """Return the same with a batch norm after each hidden layer, whose bias it makes superfluous."""
    widths = [math.prod(scenario.input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()] if len(scenario.input_shape) > 1 else []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU(inplace=True)]
    return MultiHead(nn.Sequential(*layers), widths[-1], scenario.classes, scenario.heads)


def _cnn(scenario: Tasks) -> MultiHead:
    shape = scenario.input_shape
    if len(shape) != 3 or shape[1:] != (_SIDE, _SIDE):
        raise ConfigurationError(
            f"The network 'cnn' for inputs of shape {shape}; expected images of {_SIDE} by {_SIDE} pixels, such as "
            f"(3, {_SIDE}, {_SIDE}). Take 'mlp', or register a network of your own."
        )
    return cnn(scenario.classes, scenario.heads, shape[0])


NETWORKS.register("mlp", NetworkKind(_mlp, "fully connected layers", takes_hidden=True))
NETWORKS.register(
    "mlp-batch-norm", NetworkKind(_mlp_batch_norm, "fully connected layers with batch norm", takes_hidden=True)
)
NETWORKS.register(
    "mlp-torch-init", NetworkKind(_mlp_torch_init, "fully connected layers as torch draws them", takes_hidden=True)
)
NETWORKS.register("cnn", NetworkKind(_cnn, "the paper's CNN", takes_hidden=False))
