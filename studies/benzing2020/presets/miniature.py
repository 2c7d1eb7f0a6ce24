"""The paper in miniature, on digits that come along."""

from studies.benzing2020.presets.as_published import HALVES, KRONECKER, NO_ALPHA, TORCH_INIT
from studies.benzing2020.presets.form_variants import by_samples, in_two_forms, over_many_tasks
from studies.benzing2020.presets.keeping_variants import choices, keeping, tries
from studies.benzing2020.presets.preset import Chosen, Preset, Stage
from studies.benzing2020.presets.window_variants import CELLS, strengths, windows
from studies.benzing2020.relatives.in_miniature import IN_MINIATURE

# The digits are few and easy: everything is smaller, and a large batch is still eight times the usual one. Strengths
# are the digits' own; those of the permuted digits' variants, and of both forms on the split ones, are the best on
# validation data, with three seeds that no preset uses. The split digits are learned by few units at a high rate, so
# that fine-tuning has something to lose: a wider network at a lower rate forgets nothing of two digits at a time.
_PERMUTED_LARGE = {"batch_size": 256, "learning_rate": 0.024}
_SPLIT_LARGE = {"batch_size": 128, "epochs": 48}
_ROTATED = {"damping": 0.001}
_BY_SAMPLES = by_samples(50, 150, 1400, _ROTATED, damping=0.01)
_OVER_MANY_TASKS = over_many_tasks(400, _ROTATED, KRONECKER, {"tasks": 8, "batch_size": 64, "hidden": (100,)})
# Of other ways of keeping, what is best of five tries by three seeds, on validation data: by its number, from 0; of
# equals the first.
PERMUTED_KEEPING = keeping(30, 150, 32, {"later_epochs": 3})
SPLIT_KEEPING = keeping(8, 40, 32, {"later_epochs": 2})
PERMUTED_TRIES = tries(PERMUTED_KEEPING, (10.0, 50.0, 200.0, 1000.0, 5000.0), {})
SPLIT_TRIES = tries(SPLIT_KEEPING, (10.0, 50.0, 200.0, 1000.0, 5000.0), {})
_PERMUTED_BEST = choices(PERMUTED_TRIES, 1, 4, 4, 0, 1)
_SPLIT_BEST = choices(SPLIT_TRIES, 1, 1, 3, 3, 0)
# Tasks have 25 steps with large batches on the permuted digits, and about 90 on the split ones.
PERMUTED_WINDOWS = windows(_PERMUTED_LARGE, middle=0.95, short=0.85, tied=0.1, skip=5, rate=0.003)
SPLIT_WINDOWS = windows(_SPLIT_LARGE, middle=0.95, short=0.85, tied=0.1, skip=10, rate=0.012)
_PERMUTED_STRENGTHS = (20.0, 10.0, 10.0, 20.0, 20.0, 50.0, 5.0, 20.0, 50.0, 10.0, 20.0)
_SPLIT_STRENGTHS = (10.0,) * len(CELLS)
DIGITS = Preset(
    name="digits",
    about="The paper in miniature, on 1797 digits of 8×8 pixels: permuted digits in place of Permuted MNIST, and "
    "tasks of two digits each in place of Split CIFAR.",
    stages={
        "P-MNIST": Stage(
            title="Permuted digits",
            scenario="permuted-digits",
            usual={"tasks": 3, "epochs": 5, "batch_size": 32, "hidden": (300,)},
            variants={
                "large batch": _PERMUTED_LARGE,
                "large batch, α = 0": {**_PERMUTED_LARGE, **NO_ALPHA},
                "large batch, halves": {**_PERMUTED_LARGE, **HALVES},
                "a tenth of the rate": {"learning_rate": 0.0003},
                "torch's initial weights": TORCH_INIT,
                "long training": {"epochs": 15},
                "long training, searched": {"epochs": 15},
                "re-init": {"reinitialise": True},
                "SGD": {"optimizer": "sgd", "learning_rate": 0.03},
                "decaying rate": {"rate_decay": 0.01},
                "unequal sizes": {"sizes": (1.0, 0.2)},
                "noise": {"tasks": 1},
                **in_two_forms(400, _ROTATED),
                **_BY_SAMPLES,
                **_OVER_MANY_TASKS,
                **PERMUTED_KEEPING,
                **PERMUTED_WINDOWS,
            },
            seeds=3,
            samples=200,
            many_samples=1400,
            path_steps=20,
            noise="noise:60",
            chosen={
                ("SI", "large batch"): Chosen(5.0, reinitialise=False),
                ("SOS", "large batch"): Chosen(10.0, reinitialise=False, settings={"alpha": 1.0}),
                ("SOS", "large batch, halves"): Chosen(10.0, reinitialise=False, settings={"alpha": 1.0}),
                ("SOS", "large batch, α = 0"): Chosen(5.0, reinitialise=False),
                ("SI", "a tenth of the rate"): Chosen(50.0, reinitialise=False),
                ("SI", "torch's initial weights"): Chosen(20.0, reinitialise=False),
                ("SI", "SGD"): Chosen(50.0, reinitialise=False),
                ("SIU", "SGD"): Chosen(100.0, reinitialise=False),
                ("SI", "long training, searched"): Chosen(5.0, reinitialise=False),
                ("L2-growing", "re-init"): Chosen(0.02, reinitialise=True),
                ("SOS", "SGD"): Chosen(10.0, reinitialise=False),
                ("SI", "decaying rate"): Chosen(20.0, reinitialise=False),
                ("SOS", "decaying rate"): Chosen(10.0, reinitialise=False),
                ("SI", "unequal sizes"): Chosen(10.0, reinitialise=False),
                ("SOS", "unequal sizes"): Chosen(10.0, reinitialise=False),
                ("EWC", "diagonal"): Chosen(100.0, reinitialise=False),
                ("EWC", "rotated"): Chosen(20.0, reinitialise=False),
                # With other numbers of samples, and over many tasks, by one seed.
                ("EWC", "diagonal, few samples"): Chosen(50.0, reinitialise=False),
                ("EWC", "rotated, few samples"): Chosen(20.0, reinitialise=False),
                ("EWC", "rotated, few samples, damped"): Chosen(10.0, reinitialise=False),
                ("EWC", "diagonal, more samples"): Chosen(50.0, reinitialise=False),
                ("EWC", "rotated, more samples"): Chosen(10.0, reinitialise=False),
                ("EWC", "diagonal, all samples"): Chosen(50.0, reinitialise=False),
                ("EWC", "rotated, all samples"): Chosen(10.0, reinitialise=False),
                ("EWC", "diagonal, many tasks"): Chosen(5.0, reinitialise=False),
                ("EWC", "rotated, many tasks"): Chosen(5.0, reinitialise=False),
                ("EWC", "Kronecker, many tasks"): Chosen(5.0, reinitialise=False),
                **_PERMUTED_BEST,
                **strengths(_PERMUTED_STRENGTHS, reinitialise=False),
            },
            seeds_of={**dict.fromkeys((*_BY_SAMPLES, *_OVER_MANY_TASKS), 2), **dict.fromkeys(PERMUTED_KEEPING, 1)},
        ),
        "CIFAR": Stage(
            title="Split digits",
            scenario="split-digits",
            usual={"tasks": 4, "epochs": 6, "batch_size": 16, "hidden": (20, 20), "learning_rate": 0.015},
            variants={
                "large batch": _SPLIT_LARGE,
                "large batch, α = 0": {**_SPLIT_LARGE, **NO_ALPHA},
                "large batch, halves": {**_SPLIT_LARGE, **HALVES},
                "MASX's strength": {"strength": 1000.0},
                "no re-init": {"strength": 2.0, "reinitialise": False},
                "c = 0": {"strength": 0.0, "reinitialise": True},
                "all tasks": {"tasks": 5},
                "rate of their sums": {"learning_rate": 0.012},
                "easy first": {"order": (0, 2, 1, 3)},
                "hard first": {"order": (3, 1, 2, 0)},
                **in_two_forms(200, _ROTATED),
                **SPLIT_KEEPING,
                **SPLIT_WINDOWS,
            },
            seeds=3,
            samples=100,
            many_samples=250,
            path_steps=40,
            chosen={
                # As on CIFAR: drawn anew before every task, and held strongly.
                ("SI", "usual"): Chosen(100.0, reinitialise=True),
                ("SI", "large batch"): Chosen(20.0, reinitialise=False),
                ("SOS", "large batch"): Chosen(10.0, reinitialise=False, settings={"alpha": 1.0}),
                ("SOS", "large batch, halves"): Chosen(10.0, reinitialise=False, settings={"alpha": 1.0}),
                ("SOS", "large batch, α = 0"): Chosen(10.0, reinitialise=False),
                ("EWC", "diagonal"): Chosen(200.0, reinitialise=False),
                ("EWC", "rotated"): Chosen(10.0, reinitialise=False),
                **_SPLIT_BEST,
                **strengths(_SPLIT_STRENGTHS, reinitialise=False),
            },
            seeds_of=dict.fromkeys(SPLIT_KEEPING, 1),
        ),
    },
    repetitions=3,
    logits_seeds=3,
    follows_the_paper=False,
    thresholds="digits",
    strengths="Strengths are the best found for digits on validation data, or of the right order where little matters.",
    relatives=IN_MINIATURE,
)
