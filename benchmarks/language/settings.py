"""How large, how long and how strong: every number of the study."""

from dataclasses import dataclass, field

MEASURES = ("L2", "EWC", "SOS", "MAS")
WAYS = ("full", "lora")
"""How Python is taught: by training every weight, or an adapter beside weights that stay as they are."""


@dataclass(frozen=True)
class Settings:
    """One study.

    Strengths are relative: s stands for the strength c = s / (mean importance), so that whatever the measure, s = 1
    pulls a weight of average importance back as L2 does with c = 1.
    """

    width: int = 384
    layers: int = 8
    heads: int = 6
    context: int = 512
    rank: int = 8

    english_steps: int = 2500
    english_batch: int = 64
    english_rate: float = 1e-3
    watched: int = 1000
    """How many of the last English steps SOS sees."""

    measured: int = 256
    """English samples, each of ``context`` bytes, that EWC and MAS look at."""
    adapter_steps: int = 100
    """Steps at learning rate 0 in which SOS sees the English gradients of an adapter that has learned nothing yet."""

    python_steps: int = 250
    python_batch: int = 32
    python_rate: dict[str, float] = field(default_factory=lambda: {"full": 5e-4, "lora": 3e-3})
    looks: int = 1
    """How often the losses are measured while Python is taught, the end included."""

    windows: int = 512
    """Pieces of ``context`` bytes of each language that losses are measured on."""

    strengths: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "L2": (3e-3, 3e-2, 0.3, 3.0, 30.0),
            "EWC": (1e-2, 0.1, 1.0, 10.0, 100.0),  # its importances are spread furthest, so most weights feel less of s
            "SOS": (3e-3, 2e-2, 0.1, 1.0, 10.0),
            "MAS": (3e-3, 2e-2, 0.1, 1.0, 10.0),
        }
    )
    """Relative, from hardly any effect to hardly any learning."""
    seeds: tuple[int, ...] = (0, 1, 2)


REHEARSAL = Settings(
    width=32,
    layers=2,
    heads=2,
    context=64,
    rank=2,
    english_steps=60,
    english_batch=8,
    watched=30,
    measured=8,
    adapter_steps=5,
    python_steps=10,
    python_batch=8,
    looks=2,
    windows=16,
    strengths=dict.fromkeys(MEASURES, (1e-2, 1e1)),
    seeds=(0,),
)
"""The same study at a size that a CPU runs through in seconds; its numbers mean nothing."""
