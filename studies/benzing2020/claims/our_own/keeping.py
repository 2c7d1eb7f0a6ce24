"""Claims of our own about other ways of keeping; their thresholds were set before these runs."""

from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import difference
from studies.benzing2020.claims.rule import AtLeast
from studies.benzing2020.presets import BENCHMARKS

_MEMORIES = tuple(
    claim
    for benchmark in BENCHMARKS
    for claim in (
        Claim(
            f"own-tiny-memory-helps-{benchmark.lower()}",
            ("keeping",),
            f"One old sample a class, once more at every step, keeps more than nothing ({benchmark}).",
            "accuracy of replay with one sample a class less that of fine-tuning",
            difference(benchmark, "replay, one a class", "fine-tune"),
            AtLeast(0.0),
            own=True,
        ),
        Claim(
            f"own-more-memory-helps-{benchmark.lower()}",
            ("keeping",),
            f"Several samples a class keep more than one ({benchmark}).",
            "accuracy of replay with several samples a class less that with one",
            difference(benchmark, "replay, several a class", "replay, one a class"),
            AtLeast(0.0),
            own=True,
        ),
    )
)

CLAIMS = (
    # The paper takes it for granted, and says nothing about it.
    Claim(
        "own-protection-helps",
        ("table1",),
        "SI keeps what plain fine-tuning forgets (Permuted MNIST).",
        "accuracy of SI less that of fine-tuning",
        difference("P-MNIST", "SI", "fine-tune"),
        AtLeast(0.0),
        own=True,
    ),
    *_MEMORIES,
)
