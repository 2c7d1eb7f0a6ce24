"""What is usual for each scenario: the settings and strengths of the paper's tables, or our own where it has none."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anchorhold.measures import MEASURES
from anchorhold.settings import number
from anchorhold_lab.training.protocol import Settings

LARGE_BATCH = 2048


@dataclass(frozen=True)
class Protocol:
    """How the runs of one scenario are usually made."""

    settings: Settings = field(default_factory=Settings)
    large: Mapping[str, Any] = field(default_factory=dict)
    """What is different at batch size 2048."""
    damping: float | None = None
    """ξ of SI, SIU and SIB, where it is not the measure's own."""
    chosen: Mapping[str, tuple[float, bool]] = field(default_factory=dict)
    """For each measure its strength c, and whether the network is re-initialised before each task."""
    chosen_large: Mapping[str, tuple[float, bool]] = field(default_factory=dict)
    follows_scripts: bool = False
    """Whether SOS is that of the authors' scripts, rather than that of the paper's table of formulas."""


def protocol_of(settings: Settings, strengths: Mapping[str, float]) -> Protocol:
    """Return a protocol of one's own.

    Args:
        settings: how each task is learned.
        strengths: measures by name, each with its strength c.
    """
    chosen = {
        MEASURES.find(name): number(f"strengths[{name!r}]", c, "a number, 0 or more", lambda c: c >= 0)
        for name, c in {"fine-tune": 0.0, **strengths}.items()
    }
    return Protocol(settings, chosen={name: (c, settings.reinitialise) for name, c in chosen.items()})


_NOTHING = {"fine-tune": (0.0, False)}

# Strengths and re-initialisation: the paper's table of hyper-parameters (its Table "HP"). The rest: the appendix on
# experimental details. MASX is in the text alone: on CIFAR c = 1000 was best, on MNIST it takes MAS' value.
PERMUTED_MNIST = Protocol(
    settings=Settings(epochs=20, batch_size=256, learning_rate=0.001, samples=1000),
    large={"batch_size": LARGE_BATCH, "learning_rate": 0.008},
    damping=0.1,
    chosen={
        "SI": (0.2, True),
        "SIU": (2.0, True),
        "SIB": (0.5, True),
        "SOS": (1.0, True),
        "MAS": (500.0, False),
        "MASX": (500.0, False),
        "AF": (200.0, False),
        "sqrtFisher": (2.0, False),
        "EWC": (1000.0, False),
        "MAS-logits": (0.001, True),
        **_NOTHING,
    },
    chosen_large={"SI": (1.0, True), "SOS": (10.0, True), **_NOTHING},
    follows_scripts=True,
)
SPLIT_CIFAR = Protocol(
    settings=Settings(epochs=60, batch_size=256, learning_rate=0.001, samples=500),
    large={"batch_size": LARGE_BATCH, "later_epochs": 600},
    damping=0.001,
    chosen={
        "SI": (5.0, True),
        "SIU": (2.0, False),
        "SIB": (5.0, True),
        "SOS": (500.0, True),
        "MAS": (200.0, True),
        "MASX": (1000.0, True),
        "AF": (1000.0, True),
        "sqrtFisher": (10.0, True),
        "EWC": (50_000.0, True),
        "MAS-logits": (0.1, True),
        **_NOTHING,
    },
    chosen_large={"SI": (20.0, True), "SOS": (2000.0, True), **_NOTHING},
    follows_scripts=True,
)
# Not in the paper: the best strengths on validation data among powers of ten (times 2 for √Fisher), one seed.
SPLIT_MNIST = dataclasses.replace(
    PERMUTED_MNIST,
    settings=dataclasses.replace(PERMUTED_MNIST.settings, epochs=5),
    large={},
    chosen={
        "SI": (10.0, False),
        "SIU": (1000.0, False),
        "SIB": (100.0, False),
        "SOS": (10.0, False),
        "MAS": (100.0, False),
        "MASX": (100.0, False),
        "AF": (100.0, False),
        "sqrtFisher": (2.0, False),
        "EWC": (1000.0, False),
        "MAS-logits": (0.01, False),
        **_NOTHING,
    },
    chosen_large={},
)
# Not in the paper: small enough to try everything in seconds. The strengths are the best ones on validation data for
# the permuted digits, on a grid 1, 2, 5, 10, …, with two seeds that no example uses.
DIGITS = Protocol(
    settings=Settings(epochs=6, batch_size=64, learning_rate=0.003),
    large={},
    damping=0.1,
    chosen={
        "SI": (20.0, False),
        "SIU": (50.0, False),
        "SIB": (100.0, False),
        "SOS": (10.0, False),
        "ALASSO": (20.0, False),
        "RWalk": (0.5, False),
        "RWalk-batch": (0.5, False),
        "EWC": (200.0, False),
        "EWC-sampled": (200.0, False),
        "EWC-empirical": (500.0, False),
        "online-EWC": (0.02, False),
        "sqrtFisher": (2.0, False),
        "AF": (10.0, False),
        "MAS": (20.0, False),
        "MASX": (20.0, False),
        "MAS-logits": (0.05, False),
        "MASX-logits": (0.2, False),
        "posterior": (20.0, False),
        "posterior-scaled": (20.0, False),
        "L2": (0.01, False),
        "L2-growing": (0.01, False),
        "magnitude": (0.5, False),
        **_NOTHING,
    },
    chosen_large={},
    follows_scripts=False,
)
