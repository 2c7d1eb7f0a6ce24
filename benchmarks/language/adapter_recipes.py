"""What keeps English while an adapter learns Python: held by its merged weights, by its factors, or averaged.

Every trained adapter is averaged with what was before too, by a share of B, so that fine-tuning's row is averaging's.
"""

from benchmarks.language.recipes import OLDS, ROTATED, Recipe

MATRIX = (3e-5, 1e-4, 3e-4, 1e-3)
DIAGONAL = (1e-4, 3e-4, 1e-3, 3e-3)
FACTORS = (1e-2, 1e-1, 1.0, 10.0)
FIRST = (1e-3, 1e-2, 1e-1, 1.0)
"""Merged weights were first held so much, on other networks, where the least was the best."""

ADAPTER_RECIPES = (
    Recipe("fine-tuning", way="lora"),
    Recipe("Kronecker, merged weights", MATRIX, guard="Kronecker", way="lora", space="merged", earlier=FIRST),
    Recipe("rotated, merged weights", MATRIX, guard=ROTATED, way="lora", space="merged", earlier=FIRST),
    Recipe(
        "own text, distilled, and Kronecker, merged weights",
        MATRIX,
        guard="Kronecker",
        text="own",
        distilled=True,
        way="lora",
        space="merged",
        earlier=FIRST,
    ),
    Recipe("EWC, merged weights", DIAGONAL, guard="EWC", way="lora", space="merged", earlier=FACTORS),
    Recipe("EWC, factors", FACTORS, guard="EWC", way="lora"),
    Recipe("Kronecker, factors", FACTORS, guard="Kronecker", way="lora"),
    Recipe("rotated, factors", FACTORS, guard=ROTATED, way="lora"),
    Recipe("own text, distilled", olds=OLDS, text="own", distilled=True, way="lora"),
)
"""In order of worth."""
