"""The recipes that win, for larger networks, each with the two tries that did best before."""

from benchmarks.language.recipes import REGMEAN, ROTATED, Recipe

BEST = (1e-3, 3e-3)

LARGE_RECIPES = (
    Recipe("fine-tuning"),
    Recipe(
        "own text, distilled, and rotated by it", BEST, guard=ROTATED, measured_on="own", text="own", distilled=True
    ),
    Recipe("rotated", BEST, guard=ROTATED),
    Recipe("own text, distilled", olds=(1 / 4, 1 / 8), text="own", distilled=True),
    Recipe("English", olds=(1 / 8, 1 / 16), text="english"),
)
"""In order of worth."""

HUGE_RECIPES = (*LARGE_RECIPES[:3], REGMEAN, *LARGE_RECIPES[3:])
"""Fine-tuning, own text, a form and merging first: one of each kind that keeps."""

LARGE_ADAPTER_RECIPES = (
    Recipe("fine-tuning", way="lora"),
    Recipe("Kronecker, merged weights", (1e-3, 3e-4), guard="Kronecker", way="lora", space="merged"),
    Recipe(
        "own text, distilled, and Kronecker, merged weights",
        (1e-3, 3e-4),
        guard="Kronecker",
        text="own",
        distilled=True,
        way="lora",
        space="merged",
    ),
    Recipe("own text, distilled", olds=(1 / 4, 1 / 8), text="own", distilled=True, way="lora"),
)
"""Likewise for an adapter."""
