"""A quick look at everything, on the real data."""

import dataclasses

from holdfast.lab.paper.presets.as_published import LARGE_BATCH, NO_ALPHA, PERMUTED_MNIST, SPLIT_CIFAR
from holdfast.lab.paper.presets.preset import Chosen, Preset

# Enough to see that everything works on the real data, too little for the paper's numbers.
_QUICK_MNIST = {"tasks": 3, "epochs": 2}
_QUICK_CIFAR = {"tasks": 3, "epochs": 5}
QUICK = Preset(
    name="quick",
    about="The real data with three tasks, a few epochs and two seeds: to see that everything works. Its numbers are "
    "not the paper's.",
    stages={
        "P-MNIST": dataclasses.replace(
            PERMUTED_MNIST,
            usual={**PERMUTED_MNIST.usual, **_QUICK_MNIST},
            variants={**PERMUTED_MNIST.variants, "long training": {"epochs": 10}},
            seeds=2,
            many_samples=5000,
            path_steps=20,
            noise="noise:40",
            # What the paper preset's searches found, for all ten tasks: here, for a look.
            chosen={
                ("L2", "usual"): Chosen(0.0002, reinitialise=False),
                ("L2-growing", "usual"): Chosen(0.00005, reinitialise=False),
                ("magnitude", "usual"): Chosen(0.002, reinitialise=False),
                ("SOS", "large batch, α = 0"): Chosen(5.0, reinitialise=True),
                ("SI", "SGD"): Chosen(5.0, reinitialise=False),
                ("SIU", "SGD"): Chosen(20.0, reinitialise=False),
            },
        ),
        "CIFAR": dataclasses.replace(
            SPLIT_CIFAR,
            usual={**SPLIT_CIFAR.usual, **_QUICK_CIFAR},
            variants={
                **SPLIT_CIFAR.variants,
                "large batch": {**LARGE_BATCH, "later_epochs": 50},
                "large batch, α = 0": {**LARGE_BATCH, **NO_ALPHA, "later_epochs": 50},
                "all tasks": {"tasks": 5},
            },
            seeds=2,
            many_samples=2000,
            path_steps=20,
        ),
    },
    repetitions=2,
    logits_seeds=3,
    follows_the_paper=False,
    thresholds=None,
    strengths="Strengths that nobody has published are those that the paper preset found.",
)
