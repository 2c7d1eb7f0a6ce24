"""What a preset is: how a benchmark, a measure and a variant become a run."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments import SEARCH_SEEDS, Spec, paper_spec
from anchorhold_lab.experiments.specs.canonical import frozen
from studies.benzing2020.relatives import Study

Benchmark = Literal["P-MNIST", "CIFAR"]
BENCHMARKS: tuple[Benchmark, ...] = ("P-MNIST", "CIFAR")

WindowVariant = Literal[
    "large batch, tied window, α = 0",
    "large batch, first steps left out, α = 0",
    "large batch, short window, α = 0",
    "large batch, tied window",
    "large batch, another rate, α = 0",
    "large batch, another rate",
    "large batch, middle window, α = 0",
    "large batch, short window",
    "large batch, tied window, another rate, α = 0",
    "large batch, long window",
    "large batch, short window, another rate, α = 0",
]
"""The cells of the study of what α is for; see ``window_variants.py``. The last two came when the others had been seen:
the paper's own cell with a strength that is searched for as all others' are, and the best average at another rate."""

_OtherVariant = Literal[
    "usual",
    "large batch",
    "large batch, α = 0",
    "large batch, halves",
    "MASX's strength",
    "a tenth of the rate",
    "torch's initial weights",
    "no re-init",
    "c = 0",
    "all tasks",
    "long training",
    "long training, searched",
    "re-init",
    "rate of their sums",
    "SGD",
    "decaying rate",
    "unequal sizes",
    "easy first",
    "hard first",
    "noise",
    "diagonal",
    "rotated",
    "diagonal, few samples",
    "rotated, few samples",
    "rotated, few samples, damped",
    "diagonal, more samples",
    "rotated, more samples",
    "diagonal, all samples",
    "rotated, all samples",
    "diagonal, many tasks",
    "rotated, many tasks",
    "Kronecker, many tasks",
    "tried alike",
    "replay, one a class",
    "replay, several a class",
    "LwF",
    "DER++",
    "jointly",
    "anew",
]
Variant = _OtherVariant | WindowVariant
"""What can be unusual about a run."""

_Row = tuple[Benchmark, str, Variant]


@dataclass(frozen=True)
class Chosen:
    """What is chosen for one measure: its strength c, whether to re-initialise, settings of its own, and more."""

    strength: float
    reinitialise: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is different in its runs, such as the settings of holds."""


@dataclass(frozen=True)
class SearchPlan:
    """How a strength is searched for; as :func:`~anchorhold_lab.experiments.search` does where nothing else is said."""

    low: float | None = None
    high: float | None = None
    coarse: bool = False
    """Whether it begins with powers of ten alone."""
    around: Variant | None = None
    """In place of a range: a variant of the same measure, with whose strength and its two neighbours it begins."""
    tried: Sequence[Mapping[str, Any]] = ()
    """In place of strengths: what is tried, each as changes of the variant's runs."""
    while_trying: Mapping[str, Any] = field(default_factory=dict)
    """What is different in those tries alone, such as fewer epochs."""
    seeds: Sequence[int] = SEARCH_SEEDS


@dataclass(frozen=True)
class Stage:
    """How a preset plays one of the paper's two benchmarks."""

    title: str
    """What a reader should call it."""
    scenario: str
    usual: Mapping[str, Any]
    """What all its runs have instead of the scenario's usual settings."""
    variants: Mapping[Variant, Mapping[str, Any]]
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
    chosen: Mapping[tuple[str, Variant], Chosen] = field(default_factory=dict)
    """By measure and variant, where it is not what ``paper_spec`` has."""
    searched: Mapping[tuple[str, Variant], SearchPlan] = field(default_factory=dict)
    """The measures and variants whose strength nobody has published; each is searched for, unless it is chosen."""
    seeds_of: Mapping[Variant, int] = field(default_factory=dict)
    """How many runs the rows of a variant are the mean of, where it is another number."""


@dataclass(frozen=True)
class Preset:
    """A size of the study: how each benchmark is played, and how often runs are repeated."""

    name: str
    about: str
    stages: Mapping[Benchmark, Stage]
    repetitions: int
    """Of the runs behind correlations and summed importances."""
    logits_seeds: int
    """How many runs MAS and MAS on logits have at least: a t-test compares them."""
    follows_the_paper: bool
    """Whether its numbers may be compared with the paper's."""
    thresholds: Literal["paper", "digits"] | None
    """Whose thresholds decide the claims; with ``None``, no claim is decided."""
    strengths: str
    """Where strengths come from that the paper does not give, in a sentence."""
    relatives: tuple[Study, ...] = ()
    """The studies of the methods that the paper stands among, in the order of their worth."""
    _made: dict[tuple[_Row, int, Mapping[str, Any]], Spec] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Every run that was asked for, by row, seed and what else: each item and each claim asks for its runs anew."""

    def seeds(self, benchmark: Benchmark, measure: str, variant: Variant = "usual") -> int:
        """Return how many runs the mean of a measure is of."""
        stage = self.stages[benchmark]
        usual = stage.seeds_of.get(variant, stage.seeds)
        return max(usual, self.logits_seeds) if measure in ("MAS", "MAS-logits") else usual

    def is_known(self, benchmark: Benchmark, measure: str, variant: Variant = "usual") -> bool:
        """Whether a run's strength is known, rather than still to be searched for."""
        stage = self.stages[benchmark]
        return (measure, variant) in stage.chosen or (measure, variant) not in stage.searched

    def spec(
        self, benchmark: Benchmark, measure: str, variant: Variant = "usual", *, seed: int = 0, **more: Any
    ) -> Spec:
        """Return a run: what a benchmark, a measure and a variant mean in this preset."""
        asked = (benchmark, measure, variant), seed, frozen(more)
        if asked not in self._made:
            self._made[asked] = self._make(benchmark, measure, variant, seed=seed, **more)
        return self._made[asked]

    def with_choice(self, benchmark: Benchmark, measure: str, variant: Variant, chosen: Chosen) -> "Preset":
        """Return the preset with what a search has found."""
        stage, row = self.stages[benchmark], (measure, variant)
        known = dataclasses.replace(stage, chosen={**stage.chosen, row: chosen})
        found = dataclasses.replace(self, stages={**self.stages, benchmark: known})
        unchanged = {asked: spec for asked, spec in self._made.items() if asked[0] != (benchmark, *row)}
        found._made.update(unchanged)  # noqa: SLF001 (a preset as well)
        return found

    def with_relatives(self, studies: tuple[Study, ...]) -> "Preset":
        """Return the preset with what was found for its relatives by trying."""
        found = dataclasses.replace(self, relatives=studies)
        found._made.update(self._made)  # noqa: SLF001 (likewise)
        return found

    def _make(self, benchmark: Benchmark, measure: str, variant: Variant, *, seed: int, **more: Any) -> Spec:
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
            changes.update(chosen.changes)
        return paper_spec(stage.scenario, measure, seed=seed, **{**changes, **more})
