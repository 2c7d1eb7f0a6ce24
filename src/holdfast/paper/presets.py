"""Three sizes of the same study: the paper's own, a quick look on the real data, and a miniature on digits."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.errors import ConfigurationError
from holdfast.experiments import Spec, paper_spec

Benchmark = Literal["P-MNIST", "CIFAR"]
BENCHMARKS: tuple[Benchmark, ...] = ("P-MNIST", "CIFAR")

Variant = Literal[
    "usual",
    "large batch",
    "large batch, α = 0",
    "no re-init",
    "c = 0",
    "all tasks",
    "long training",
    "SGD",
    "noise",
    "many samples",
]
"""What can be unusual about a run."""


@dataclass(frozen=True)
class Chosen:
    """What is chosen for one measure: its strength c, whether to re-initialise, and settings of its own."""

    strength: float
    reinitialise: bool
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """How a preset plays one of the paper's two benchmarks."""

    title: str
    """What a reader should call it."""
    scenario: str
    usual: Mapping[str, Any]
    """What all its runs have instead of the scenario's usual settings."""
    variants: Mapping[str, Mapping[str, Any]]
    """What unusual runs have on top of that."""
    seeds: int
    """How many runs each row of Table 1 is the mean of."""
    samples: int
    """How many samples a measure after training looks at."""
    many_samples: int
    """How many it looks at where sample sizes are compared."""
    path_steps: int
    """From how many steps of each task the full-gradient path integral is estimated."""
    noise: str = "noise"
    """The probe of gradient noise."""
    chosen: Mapping[tuple[str, str], Chosen] = field(default_factory=dict)
    """By measure and variant, where it is not what ``paper_spec`` has."""
    searched: frozenset[tuple[str, str]] = frozenset()
    """The measures and variants whose strength nobody has published; each is searched for, unless it is chosen."""


@dataclass(frozen=True)
class Preset:
    """A size of the study: how each benchmark is played, and how often runs are repeated."""

    name: str
    about: str
    stages: Mapping[Benchmark, Stage]
    repetitions: int
    """Of the runs behind correlations and summed importances."""
    logits_seeds: int
    """Of MAS and MAS on logits, where a t-test compares them."""

    def is_known(self, benchmark: Benchmark, measure: str, variant: str = "usual") -> bool:
        """Whether a run's strength is known, rather than still to be searched for."""
        stage = self.stages[benchmark]
        return (measure, variant) in stage.chosen or (measure, variant) not in stage.searched

    def spec(self, benchmark: Benchmark, measure: str, variant: str = "usual", *, seed: int = 0, **more: Any) -> Spec:
        """Return a run: what a benchmark, a measure and a variant mean in this preset."""
        if not self.is_known(benchmark, measure, variant):
            raise ConfigurationError(
                f"The strength of {measure} on {benchmark} ({variant}) is not known yet; search for it first, and give "
                "what was found to Preset.with_choice."
            )
        stage = self.stages[benchmark]
        changes = {**stage.usual, **stage.variants.get(variant, {})}
        if (chosen := stage.chosen.get((measure, variant))) is not None:
            changes.update(strength=chosen.strength, reinitialise=chosen.reinitialise)
            changes["measure_settings"] = {**chosen.settings, **changes.get("measure_settings", {})}
        return paper_spec(stage.scenario, measure, seed=seed, **{**changes, **more})

    def with_choice(self, benchmark: Benchmark, measure: str, variant: str, chosen: Chosen) -> "Preset":
        """Return the preset with what a search has found."""
        stage = self.stages[benchmark]
        known = dataclasses.replace(stage, chosen={**stage.chosen, (measure, variant): chosen})
        return dataclasses.replace(self, stages={**self.stages, benchmark: known})


_LARGE = {"batch_size": 2048}
_NO_ALPHA = {"measure_settings": {"alpha": 0.0}}
_SGD = {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9}
_FREE = {"strength": 0.0}
_ALONE = {"tasks": 1}

# Accuracies in bf16 are those in TF32 within their scatter, and the runs take half the time.
_PERMUTED_MNIST = Stage(
    title="P-MNIST",
    scenario="permuted-mnist",
    usual={"precision": "bf16"},
    variants={
        "large batch": _LARGE,
        "large batch, α = 0": {**_LARGE, **_NO_ALPHA},
        "long training": {"epochs": 200},
        "SGD": _SGD,
        "noise": _ALONE,
    },
    seeds=3,
    samples=1000,
    many_samples=30_000,
    path_steps=500,
    searched=frozenset(
        {("L2", "usual"), ("L2-growing", "usual"), ("magnitude", "usual"), ("SI", "SGD"), ("SIU", "SGD")}
    ),
)
_SPLIT_CIFAR = Stage(
    title="Split CIFAR",
    scenario="split-cifar",
    usual={"precision": "bf16"},
    variants={
        "large batch": _LARGE,
        "large batch, α = 0": {**_LARGE, **_NO_ALPHA},
        "no re-init": {"strength": 0.5, "reinitialise": False},
        "c = 0": _FREE,
        "all tasks": {"tasks": 11},
    },
    seeds=10,
    samples=500,
    many_samples=5000,
    path_steps=500,
)

PAPER = Preset(
    name="paper",
    about="The paper's protocol on the real data: 784-2000-2000-10 on ten permutations of MNIST, and the Keras CNN on "
    "CIFAR-10 and five groups of CIFAR-100.",
    stages={"P-MNIST": _PERMUTED_MNIST, "CIFAR": _SPLIT_CIFAR},
    repetitions=5,
    logits_seeds=10,
)

# Enough to see that everything works on the real data, too little for the paper's numbers.
_QUICK_MNIST = {"tasks": 3, "epochs": 2}
_QUICK_CIFAR = {"tasks": 3, "epochs": 5}
QUICK = Preset(
    name="quick",
    about="The real data with three tasks, a few epochs and two seeds: to see that everything works. Its numbers are "
    "not the paper's.",
    stages={
        "P-MNIST": dataclasses.replace(
            _PERMUTED_MNIST,
            usual={**_PERMUTED_MNIST.usual, **_QUICK_MNIST},
            variants={**_PERMUTED_MNIST.variants, "long training": {"epochs": 10}},
            seeds=2,
            many_samples=5000,
            path_steps=20,
            noise="noise:40",
            # Of the right order, for a look; the paper preset searches.
            chosen={
                ("L2", "usual"): Chosen(0.01, reinitialise=False),
                ("L2-growing", "usual"): Chosen(0.01, reinitialise=False),
                ("magnitude", "usual"): Chosen(0.5, reinitialise=False),
                ("SI", "SGD"): Chosen(0.2, reinitialise=True),
                ("SIU", "SGD"): Chosen(2.0, reinitialise=True),
            },
        ),
        "CIFAR": dataclasses.replace(
            _SPLIT_CIFAR,
            usual={**_SPLIT_CIFAR.usual, **_QUICK_CIFAR},
            variants={
                **_SPLIT_CIFAR.variants,
                "large batch": {**_LARGE, "later_epochs": 50},
                "large batch, α = 0": {**_LARGE, **_NO_ALPHA, "later_epochs": 50},
                "all tasks": {"tasks": 5},
            },
            seeds=2,
            many_samples=2000,
            path_steps=20,
        ),
    },
    repetitions=2,
    logits_seeds=3,
)

# The digits are few and easy: everything is smaller, and a large batch is still eight times the usual one. Strengths
# are the digits' own; those of the permuted digits' variants are the best on validation data, with three seeds that no
# preset uses. On the split digits, little is forgotten whatever the strength.
_PERMUTED_LARGE = {"batch_size": 256, "learning_rate": 0.024}
_SPLIT_LARGE = {"batch_size": 128, "epochs": 48}
DIGITS = Preset(
    name="digits",
    about="The paper in miniature, on 1797 digits of 8×8 pixels: permuted digits in place of Permuted MNIST, and five "
    "tasks of two digits each in place of Split CIFAR.",
    stages={
        "P-MNIST": Stage(
            title="Permuted digits",
            scenario="permuted-digits",
            usual={"tasks": 3, "epochs": 5, "batch_size": 32, "hidden": (300,)},
            variants={
                "large batch": _PERMUTED_LARGE,
                "large batch, α = 0": {**_PERMUTED_LARGE, **_NO_ALPHA},
                "long training": {"epochs": 15},
                "SGD": {"optimizer": "sgd", "learning_rate": 0.03},
                "noise": _ALONE,
            },
            seeds=3,
            samples=200,
            many_samples=1400,
            path_steps=20,
            noise="noise:60",
            chosen={
                ("SI", "large batch"): Chosen(5.0, reinitialise=False),
                ("SOS", "large batch"): Chosen(10.0, reinitialise=False, settings={"alpha": 1.0}),
                ("SOS", "large batch, α = 0"): Chosen(5.0, reinitialise=False),
                ("SI", "SGD"): Chosen(50.0, reinitialise=False),
                ("SIU", "SGD"): Chosen(100.0, reinitialise=False),
            },
        ),
        "CIFAR": Stage(
            title="Split digits",
            scenario="split-digits",
            usual={"tasks": 4, "epochs": 6, "batch_size": 16, "hidden": (100,)},
            variants={
                "large batch": _SPLIT_LARGE,
                "large batch, α = 0": {**_SPLIT_LARGE, **_NO_ALPHA},
                "no re-init": {"strength": 2.0, "reinitialise": False},
                "c = 0": {**_FREE, "reinitialise": True},
                "all tasks": {"tasks": 5},
            },
            seeds=3,
            samples=100,
            many_samples=250,
            path_steps=20,
            chosen={
                # As on CIFAR: drawn anew before every task, and held strongly.
                ("SI", "usual"): Chosen(100.0, reinitialise=True),
                ("SI", "large batch"): Chosen(20.0, reinitialise=False),
                ("SOS", "large batch"): Chosen(10.0, reinitialise=False, settings={"alpha": 1.0}),
                ("SOS", "large batch, α = 0"): Chosen(10.0, reinitialise=False),
            },
        ),
    },
    repetitions=3,
    logits_seeds=3,
)

PRESETS = {preset.name: preset for preset in (PAPER, QUICK, DIGITS)}
