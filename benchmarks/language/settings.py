"""How large, how long and how strong: every number of the study."""

from dataclasses import dataclass, field, replace

from anchorhold.forms import Form, Kronecker, Kronecker16, Rotated, Rotated16

MEASURES = ("L2", "EWC", "SOS", "MAS")
DAMPING = 1e-3
FORMS: dict[str, Form] = {
    "rotated by position": Rotated(sharing="expand", damping=DAMPING, precision="tf32"),
    "rotated": Rotated(damping=DAMPING, precision="tf32"),
    "Kronecker": Kronecker(damping=DAMPING),
    "rotated16": Rotated16(sharing="expand", damping=DAMPING),
    "rotated16, blocks of 385": Rotated16(sharing="expand", damping=DAMPING, largest_block=385),
    "rotated16, blocks of 129": Rotated16(sharing="expand", damping=DAMPING, largest_block=129),
    "rotated16, rank 96": Rotated16(sharing="expand", damping=DAMPING, outputs="lowrank", inputs="lowrank", rank=96),
    "rotated16, inputs alone": Rotated16(sharing="expand", damping=DAMPING, outputs="identity"),
    "Kronecker16": Kronecker16(damping=DAMPING),
    "Kronecker16, blocks of 129": Kronecker16(damping=DAMPING, largest_block=129),
}
"""EWC in other forms than the diagonal, of the same labels drawn for the same English.

The study's network is 384 wide, and four times that within its blocks: with biases, blocks of 385 leave a side as it is
or take it in four, as blocks of 2048 take sides of 2048 and 6144, and blocks of 129 take each in three or twelve.
"""
SMALLER = tuple(name for name in FORMS if "16" in name)
"""Forms that take less than the rotated one in full."""
FORMS |= {
    "rotated16, blocks of 65": Rotated16(sharing="expand", damping=DAMPING, largest_block=65),
    "rotated16, blocks of 22": Rotated16(sharing="expand", damping=DAMPING, largest_block=22),
    "rotated16, rank 16": Rotated16(sharing="expand", damping=DAMPING, outputs="lowrank", inputs="lowrank", rank=16),
    "Kronecker16, blocks of 22": Kronecker16(damping=DAMPING, largest_block=22),
}
"""Likewise for a network of 64."""
ADAPTER_MEASURES = (*MEASURES, "L2 of B")
"""L2 holds both factors of an adapter, the others B alone: so does this one, to tell importance from leaving A free."""
UNGUARDED = ("shorter", "slower", "averaged", "replay")
"""What anyone can do without a guard: fewer steps, a lower learning rate, weights between those before and after, or,
for those who still have it, English among the Python."""
FROM_START = ("shorter", "slower", "averaged")
"""Those that leave the network as it was where their share is 0."""
WAYS = ("full", "lora")
"""How Python is taught: by training every weight, or an adapter beside weights that stay as they are."""


def methods(way: str) -> tuple[str, ...]:
    """Return everything that is compared in one way, besides fine-tuning."""
    return (*(MEASURES if way == "full" else ADAPTER_MEASURES), *UNGUARDED)


def _measures() -> dict[str, tuple[str, ...]]:
    return {"full": (*UNGUARDED, *MEASURES), "lora": (*UNGUARDED, *ADAPTER_MEASURES)}


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
    vocabulary: int = 256
    """How many kinds of tokens there are: bytes, or more of them where a corpus was put into longer ones."""
    pretrained: str = ""
    """The folder of a network that others have trained, in the place of one that learns English here."""
    start: int = ord("\n")
    """The token that own text begins with: a line's end."""
    lesson: str = "python"
    """What is taught after English."""
    read: tuple[str, ...] = ("english",)
    """What is read before and after the lesson, in the order of worth: what a recipe loses is told of the first. Own
    text is what the model wrote before, other pieces than those that keep it."""

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
    windows: int = 512
    """Pieces of ``context`` bytes of each language that losses are measured on."""

    strengths: tuple[float, ...] = (1e-3, 1e-2, 5e-2, 0.3, 3.0, 30.0)
    """Relative, the same for all measures: a coarser grid would let a method look worse between its points."""
    unguarded: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "shorter": (0.5, 0.25, 0.1, 0.05),
            "slower": (0.3, 0.1, 0.03),
            "averaged": (0.2, 0.4, 0.6, 0.8),
            "replay": (1 / 32, 1 / 8, 1 / 4),
        }
    )
    """The share of the steps, of the learning rate, of the fine-tuned weights in the average, of English in a batch."""
    compared: dict[str, tuple[str, ...]] = field(default_factory=_measures)
    """The methods that are run in each way, in this order, after fine-tuning."""
    seeds: tuple[int, ...] = (0, 1, 2)

    def strengths_of(self, method: str) -> tuple[float, ...]:
        """Return what a method is run with: strengths, or shares where there is no guard."""
        return self.unguarded[method] if method in UNGUARDED else self.strengths


TINY = Settings(
    width=64,
    layers=2,
    heads=2,
    context=64,
    english_steps=600,
    english_batch=16,
    english_rate=3e-3,
    python_steps=100,
    python_batch=16,
    windows=128,
    seeds=(0,),
)
"""A study that a CPU runs through in half an hour: what comes out is an order among forms, in a small network."""

LARGE = Settings(width=768, layers=9, heads=12)
"""4.4 times as many weights; size is all that differs."""

HUGE = Settings(
    width=768,
    layers=12,
    heads=12,
    vocabulary=16_384,
    english_steps=2400,
    english_rate=6e-4,
    python_rate={"full": 2e-4, "lora": 1e-3},
)
"""110 million weights over tokens of some four bytes, which read every English text about six times: as near to a
pretrained model as a card comes in minutes."""

OWN = "own text"
PRETRAINED = Settings(
    lesson="german",
    read=(OWN, "english", "python"),
    python_steps=100,
    python_batch=16,
    windows=128,
    python_rate={"full": 1e-4, "lora": 1e-3},
)
"""Another's network, which knows English, and of German little.

No text at hand is what it learned from. Its own is drawn from what it was, so that the loss there rises by the mean of
log p_before − log p_after: the divergence KL(before ‖ after), which a tolerance counts.
"""

SHORT = replace(PRETRAINED, context=128, python_steps=100, python_batch=4, windows=64)
"""Likewise, a lesson of 51,200 tokens, which a processor gets through in minutes."""

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
    windows=16,
    strengths=(1e-2, 1e1),
    unguarded={"shorter": (0.5,), "slower": (0.3,), "averaged": (0.5,), "replay": (0.25,)},
    seeds=(0,),
)
"""The same study at a size that a CPU runs through in seconds; its numbers mean nothing."""
