"""A quick look at everything, on the real data."""

import dataclasses

from studies.benzing2020.presets.as_published import (
    HALVES,
    KRONECKER,
    LARGE_BATCH,
    NO_ALPHA,
    PERMUTED_MNIST,
    ROTATED,
    SPLIT_CIFAR,
)
from studies.benzing2020.presets.form_variants import over_many_tasks
from studies.benzing2020.presets.keeping_variants import choices
from studies.benzing2020.presets.preset import Chosen, Preset
from studies.benzing2020.presets.window_variants import CELLS, strengths, windows
from studies.benzing2020.relatives.in_miniature import QUICKLY

# Enough to see that everything works on the real data, too little for the paper's numbers.
_QUICK_MNIST = {"tasks": 3, "epochs": 2}
_QUICK_CIFAR = {"tasks": 3, "epochs": 5}
_TEN_TASKS = {"tasks": 10, "hidden": (100, 100), "epochs": 1}
# Of other ways of keeping, the middle one of what the paper preset tries.
_KEEPING = {
    benchmark: choices({row: plan for row, plan in stage.searched.items() if plan.tried}, 2, 2, 2, 2, 2)
    for benchmark, stage in (("P-MNIST", PERMUTED_MNIST), ("CIFAR", SPLIT_CIFAR))
}
# Beyond the diagonal, of the order that first trials had.
_FORMS = {
    row: Chosen(200.0 if row[1].startswith("diagonal") else 50.0, reinitialise=False)
    for row in PERMUTED_MNIST.searched
    if row[0] == "EWC"
}
_CIFAR_LARGE = {**LARGE_BATCH, "later_epochs": 50}
_MNIST_WINDOWS, _CIFAR_WINDOWS = (strengths([c] * len(CELLS), reinitialise=True) for c in (10.0, 2000.0))
QUICK = Preset(
    name="quick",
    about="The real data with three tasks, a few epochs and two seeds: to see that everything works. Its numbers are "
    "not the paper's.",
    stages={
        "P-MNIST": dataclasses.replace(
            PERMUTED_MNIST,
            usual={**PERMUTED_MNIST.usual, **_QUICK_MNIST},
            variants={
                **PERMUTED_MNIST.variants,
                "long training": {"epochs": 10},
                "long training, searched": {"epochs": 10, "reinitialise": True},
                **over_many_tasks(10_000, ROTATED, KRONECKER, _TEN_TASKS),
                "jointly": {"trains": "jointly"},
            },
            seeds=2,
            many_samples=5000,
            path_steps=20,
            noise="noise:40",
            # What the paper preset's searches found, for all ten tasks: here, for a look.
            chosen={
                ("L2", "usual"): Chosen(0.0002, reinitialise=False),
                ("L2-growing", "usual"): Chosen(0.00005, reinitialise=False),
                ("magnitude", "usual"): Chosen(0.002, reinitialise=False),
                ("L2-growing", "re-init"): Chosen(0.0002, reinitialise=True),
                ("SI", "long training, searched"): Chosen(0.05, reinitialise=True),
                ("SOS", "large batch, α = 0"): Chosen(5.0, reinitialise=True),
                # Of the order that SI's own strength has, at a tenth of the rate ten times as much.
                ("SI", "a tenth of the rate"): Chosen(2.0, reinitialise=True),
                ("SI", "torch's initial weights"): Chosen(0.2, reinitialise=True),
                ("SI", "SGD"): Chosen(5.0, reinitialise=False),
                ("SIU", "SGD"): Chosen(20.0, reinitialise=False),
                # Of the order of what they have without.
                ("SOS", "SGD"): Chosen(1.0, reinitialise=False),
                ("SI", "decaying rate"): Chosen(0.5, reinitialise=True),
                ("SOS", "decaying rate"): Chosen(1.0, reinitialise=True),
                ("SI", "unequal sizes"): Chosen(0.2, reinitialise=True),
                ("SOS", "unequal sizes"): Chosen(1.0, reinitialise=True),
                **_FORMS,
                **_MNIST_WINDOWS,
                **_KEEPING["P-MNIST"],
            },
            seeds_of={},
        ),
        "CIFAR": dataclasses.replace(
            SPLIT_CIFAR,
            usual={**SPLIT_CIFAR.usual, **_QUICK_CIFAR},
            variants={
                **SPLIT_CIFAR.variants,
                "large batch": _CIFAR_LARGE,
                "large batch, α = 0": {**_CIFAR_LARGE, **NO_ALPHA},
                "large batch, halves": {**_CIFAR_LARGE, **HALVES},
                **windows(_CIFAR_LARGE, middle=0.99, short=0.97, tied=0.1, skip=20, rate=0.004),
                "jointly": {"trains": "jointly"},
                "all tasks": {"tasks": 5},
                "easy first": {"order": (1, 2, 0)},
                "hard first": {"order": (0, 2, 1)},
            },
            seeds=2,
            many_samples=2000,
            path_steps=20,
            chosen={
                ("EWC", "diagonal"): Chosen(10_000.0, reinitialise=False),
                ("EWC", "rotated"): Chosen(20.0, reinitialise=False),
                **_CIFAR_WINDOWS,
                **_KEEPING["CIFAR"],
            },
            seeds_of={},
        ),
    },
    repetitions=2,
    logits_seeds=3,
    follows_the_paper=False,
    thresholds=None,
    strengths="Strengths that nobody has published are those that the paper preset found, or of their order.",
    relatives=QUICKLY,
)
