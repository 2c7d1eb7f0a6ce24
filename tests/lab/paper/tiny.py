"""A preset that is over in seconds: nothing in it means anything, but all of it runs."""

import dataclasses

from holdfast.lab.paper.presets import DIGITS, Chosen, SearchPlan

_SMALL = {"tasks": 2, "epochs": 1, "hidden": (8,), "batch_size": 64}
_LARGE = {"batch_size": 256}
_NO_ALPHA = {"measure_settings": {"alpha": 0.0}}


def tiny_preset(**changes):
    """Return the preset; ``changes`` are those of the stage that plays Permuted MNIST."""
    permuted, split = DIGITS.stages["P-MNIST"], DIGITS.stages["CIFAR"]
    sizes = {"seeds": 2, "samples": 20, "many_samples": 60, "path_steps": 4}
    variants = {"large batch": _LARGE, "large batch, α = 0": {**_LARGE, **_NO_ALPHA}}
    stages = {
        "P-MNIST": dataclasses.replace(
            permuted,
            **{
                **sizes,
                "usual": _SMALL,
                "variants": {**permuted.variants, **variants, "long training": {"epochs": 2}},
                "noise": "noise:5",
                **changes,
            },
        ),
        "CIFAR": dataclasses.replace(
            split, usual=_SMALL, variants={**split.variants, **variants, "all tasks": {"tasks": 3}}, **sizes
        ),
    }
    return dataclasses.replace(DIGITS, stages=stages, repetitions=2, logits_seeds=2)


def with_unknown_strength():
    """Return the preset with one strength, that of L2, still to be searched for."""
    return tiny_preset(searched={("L2", "usual"): SearchPlan()})


FOUND = Chosen(0.1, reinitialise=False)
