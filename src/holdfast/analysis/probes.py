"""The probes by name."""

from holdfast.errors import ConfigurationError
from holdfast.training.observing import Observer


def make_probe(text: str, *, seed: int) -> tuple[str, Observer]:
    """Return a probe and its name, from a text such as ``"path:500"``."""
    raise ConfigurationError(f"No probe is called {text!r}.")
