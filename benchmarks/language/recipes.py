"""Everything that keeps, on the study's networks: guards, old and own text, merging, and what they come to together.

Every trained network is looked at as it is and averaged with the one before, on two halves of the text kept apart: what
to take is chosen by one of them, and reported on the other.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import anchorhold
from anchorhold import Fisher, Guard, GuardOptions, Kronecker
from anchorhold.forms import Form, Matrix
from anchorhold.holds import Hold
from anchorhold.seeding import derive_seed
from benchmarks.language.corpus import Corpus
from benchmarks.language.english import Taught, is_learned, learn_english, new_guard, start_python, weights_of
from benchmarks.language.lines import add
from benchmarks.language.lines import read as read_lines
from benchmarks.language.pretrained import Pretrained
from benchmarks.language.settings import OWN, SMALLER, Settings
from benchmarks.language.training import Device, batches, bits_per_byte, spread, teach

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the trained weights in the average with those before."""
PIECES = 512
"""How many the model writes itself, each as long as its context, and of English where that is replayed."""
OLD = 1 / 8
"""The share of a step that is old or own text, where nothing else is said: four pieces beside the 32."""


@dataclass(frozen=True)
class Recipe:
    """A way of keeping English, with as many tries as the others have."""

    name: str
    strengths: tuple[float, ...] = (0.0,)
    """Of its guard, relative to the mean importance."""
    olds: tuple[float, ...] = (OLD,)
    """Shares of a step that are old text."""
    guard: str | None = None
    """``"EWC"``, or one of the forms."""
    measured_on: Literal["english", "own"] = "english"
    text: Literal["english", "own"] | None = None
    distilled: bool = False
    """Whether what the model said before of that text is its target, in the place of the text's next bytes."""
    merged_by: Form | str | None = None
    """The form of both models by which the fine-tuned one is merged with the one before, in the place of an average."""
    way: Literal["full", "lora"] = "full"
    """Whether all weights are trained, or an adapter is; the same for all recipes that are run together."""
    space: Literal["weights", "merged"] = "weights"
    """What the guard holds of an adapter."""
    earlier: tuple[float, ...] = ()
    """Strengths that were tried first, on networks of their own: what was found stays, and they are not run again."""

    @property
    def is_fine_tuning(self) -> bool:
        """Whether nothing is kept while training."""
        return self.guard is None and self.text is None

    def trials(self) -> Iterator["Trial"]:
        """Yield what is to be trained."""
        yield from self._trials_of(self.strengths)

    def searches(self) -> list[list["Trial"]]:
        """Return the trials that belong together: those to be trained, and those that were before them."""
        return [list(self._trials_of(strengths)) for strengths in (self.strengths, self.earlier) if strengths]

    def _trials_of(self, strengths: Sequence[float]) -> Iterator["Trial"]:
        for strength, old in itertools.product(strengths, self.olds if self.text else (0.0,)):
            yield Trial(self.name, strength, old)


@dataclass(frozen=True)
class Trial:
    """One training."""

    recipe: str
    strength: float
    old: float


WEAK = (1e-4, 3e-4, 1e-3, 3e-3)
STRONG = (1e-3, 3e-3, 1e-2, 3e-2)
DIAGONAL = (3e-3, 1e-2, 3e-2, 1e-1)
OLDS = (1 / 32, 1 / 16, 1 / 8, 1 / 4)
ROTATED = "rotated by position"
REGMEAN = Recipe("RegMean merge", merged_by=Kronecker(outputs="identity", damping=0.0))
RECIPES = (
    Recipe("fine-tuning"),
    Recipe("rotated", STRONG, guard=ROTATED),
    Recipe("own text, distilled", olds=OLDS, text="own", distilled=True),
    Recipe("own text, distilled, and rotated", WEAK, guard=ROTATED, text="own", distilled=True),
    Recipe(
        "own text, distilled, and rotated by it", WEAK, guard=ROTATED, measured_on="own", text="own", distilled=True
    ),
    Recipe("EWC", DIAGONAL, guard="EWC"),
    Recipe("English", olds=OLDS, text="english"),
    Recipe("English and rotated", WEAK, guard=ROTATED, text="english"),
    Recipe("English, distilled", olds=OLDS, text="english", distilled=True),
    Recipe("English, distilled, and rotated", WEAK, guard=ROTATED, text="english", distilled=True),
    Recipe("own text", olds=OLDS, text="own"),
    Recipe("own text and rotated", WEAK, guard=ROTATED, text="own"),
    Recipe("own text, distilled, and EWC", DIAGONAL, guard="EWC", text="own", distilled=True),
    Recipe("rotated by own text", STRONG, guard=ROTATED, measured_on="own"),
    Recipe("rotated by samples", STRONG, guard="rotated"),
    Recipe("Kronecker", STRONG, guard="Kronecker"),
    Recipe("Fisher merge", merged_by="diagonal"),
    REGMEAN,
)
"""In order of worth."""
FORM_RECIPES = (*RECIPES[:2], *(Recipe(name, STRONG, guard=name) for name in SMALLER))
"""Forms that take less, beside the rotated one in full."""


@dataclass(frozen=True)
class Looked:
    """What one trial came to: losses in bits a byte on the half that chooses and the half that is reported."""

    trial: Trial
    seed: int
    network: str
    before: dict[str, list[float]]
    """By what is read: that of which the loss is told first, and the lesson last."""
    after: dict[str, dict[str, list[float]]]
    """By the share of the trained weights."""
    seconds: float
    machine: str
    """What it ran on."""
    corpus: str
    """What it read, by its sha256: the packages that text is made from have new versions now and then."""
    held: dict[str, float | None] | None = None
    """c, κ, T and tr Q of the guard; ``None`` without one, and in rows that were made before it was noted."""

    def is_free(self, network: str) -> bool:
        """Whether it is fine-tuning of a network, with which its other trials are compared."""
        return self.network == network and self.trial.recipe == RECIPES[0].name

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Looked":
        """Return what ``asdict`` returned as it was."""
        return cls(**{**plain, "trial": Trial(**plain["trial"])})


def gained(before: dict[str, list[float]], after: dict[str, list[float]]) -> float:
    """Return what was learned of the lesson, on all of its text kept apart: where to look is no recipe's choice."""
    *_, lesson = before
    pairs = list(zip(before[lesson], after[lesson], strict=True))
    return sum(then - now for then, now in pairs) / len(pairs)


class Kitchen:
    """One network that has learned English, and what recipes need of it."""

    def __init__(
        self, settings: Settings, corpus: Corpus, device: Device, seed: int, folder: Path, way: str = "full"
    ) -> None:
        self.settings, self.corpus, self.device, self.seed, self.folder = settings, corpus, device, seed, folder
        self.way, self.digest = way, corpus.digest()
        self.taught: Taught = start_python(settings, device, seed, folder, way)
        self._guard: tuple[tuple[Any, ...], Guard] | None = None
        self._tuned: dict[str, Tensor] | None = None
        self._halves = {text: self._apart(text) for text in (*settings.read, settings.lesson)}
        self.before = self.losses()

    @property
    def model(self) -> torch.nn.Module:
        return self.taught.model

    def losses(self) -> dict[str, list[float]]:
        """Return the losses of the model as it is, on both halves of each text."""
        return {
            text: [bits_per_byte(self.device, self.taught.model, half, self.corpus.lengths) for half in halves]
            for text, halves in self._halves.items()
        }

    def _apart(self, text: str) -> list[Tensor]:
        """Return pieces of a text that nothing learns from, in two halves."""
        settings = self.settings
        if text == OWN:
            written = self._own(settings.windows, derive_seed(self.seed, "read"), "read")
            pieces = torch.stack([piece.tokens for piece in written.pieces]).to(self.device.device)
            return list(pieces.tensor_split(2))
        halves = self.corpus.of(text, "validation").tensor_split(2)
        return [spread(half, max(1, settings.windows // 2), settings.context) for half in halves]

    def pairs(self, text: str, size: int) -> list[tuple[Tensor, Tensor]]:
        """Return batches of English, or of the model's own text, with the bytes that come next."""
        if text == "own":
            pieces = min(PIECES, 8 * self.settings.measured)
            return [_pair(batch) for batch in self._own(pieces, self.seed, "text").batches(size)]
        old = self._pieces(text, PIECES, "old", size)
        return [(piece[:, :-1], piece[:, 1:]) for piece in old]

    def _own(self, pieces: int, seed: int, purpose: str) -> anchorhold.OwnText:
        """Return what the model writes before the lesson."""
        self.taught.restart()
        with torch.autocast(self.device.device.type, torch.bfloat16, enabled=self.device.on_gpu):
            return anchorhold.write_text(
                # which by itself has a cache of what it has read
                self.model.model if isinstance(self.model, Pretrained) else self.model,
                pieces,
                self.settings.context - 1,  # and the byte that it begins with
                start=self.settings.start,
                end=None,
                seed=seed,
                batch_size=PIECES,
                # With an adapter the model is another to whoever reads the folder, though it writes the same.
                store=self.folder / f"own-{purpose}{'' if self.way == 'full' else f'-{self.way}'}",
            )

    def _pieces(self, language: str, pieces: int, purpose: str, size: int = 64) -> Iterator[Tensor]:
        text = self.corpus.of(language, "train")
        return batches(text, -(-pieces // size), size, self.settings.context, self.seed, purpose)

    def guard(self, recipe: Recipe, trial: Trial) -> Guard | None:
        """Return the guard of a trial, measured unless the one before can be taken with another strength."""
        if recipe.is_fine_tuning:
            return None
        wanted = (recipe.guard, recipe.space, recipe.measured_on, recipe.text, recipe.distilled, trial.old)
        if self._guard is None or self._guard[0] != wanted:
            self._guard = None  # before another is made: they are large
            self.taught.restart()
            self._guard = wanted, self._measured(recipe, trial)
        guard = self._guard[1]
        if recipe.guard is not None:
            importance = torch.cat([omega.flatten() for omega in guard.importance.values()])
            guard.strength = trial.strength / float(importance.mean())
        return guard

    def _measured(self, recipe: Recipe, trial: Trial) -> Guard:
        holds: list[Hold] = []
        if recipe.text is not None:
            size = max(1, round(trial.old * self.settings.python_batch))
            kind = anchorhold.Distillation if recipe.distilled else anchorhold.Replay
            holds = [kind(self.pairs(recipe.text, size), share=trial.old, seed=self.seed)]
        if recipe.guard is None:
            guard = Guard(self.model, "fine-tune", strength=0.0, holds=holds)
            guard.consolidate()
            return guard
        plain = new_guard(self.taught.model, self.way, recipe.guard, self.settings)
        (measure,) = plain.measures.values()
        guard = Guard(
            self.model, measure, form=plain.options.form, options=GuardOptions(space=recipe.space), holds=holds
        )
        if recipe.measured_on == "own":
            given = [tokens for tokens, _ in self.pairs("own", 64)][: max(1, self.settings.measured // 64)]
        else:
            given = [piece[:, :-1] for piece in self._pieces("english", self.settings.measured, "measured")]
        guard.consolidate(given)
        return guard

    def train(self, guard: Guard | None) -> None:
        """Teach the lesson, every trial of a seed by the same batches."""
        settings = self.settings
        self.taught.restart()
        if guard is not None:
            guard.gradients.restart_task()
        steps, rate = settings.python_steps, settings.python_rate[self.way]
        text = self.corpus.of(settings.lesson, "train")
        given = batches(text, steps, settings.python_batch, settings.context, self.seed, "python")
        teach(self.device, self.taught.model, given, steps, rate, guard)

    def cook(self, recipe: Recipe, trial: Trial, gain: float = 0.0) -> Looked:
        """Train, and look at the network and at what it makes with the one before.

        Args:
            recipe, trial: what to do.
            gain: how much of the lesson, in bits a byte, nobody asks below: no smaller share is looked at than the
                first that has learned less.
        """
        guard = self.guard(recipe, trial)
        began = time.perf_counter()
        if recipe.is_fine_tuning and self._tuned is not None:
            trained = self._tuned
        else:
            self.train(guard)
            trained = weights_of(self.taught.model)
        if recipe.is_fine_tuning:
            self._tuned = trained
        by = None if recipe.merged_by is None else self._forms_of_both(recipe.merged_by, trained)
        after: dict[str, dict[str, list[float]]] = {}
        for share in reversed(SHARES):
            self._go_between(trained, share, by)
            after = {str(share): self.losses()} | after
            if gained(self.before, after[str(share)]) < gain:
                break
        self.device.synchronise()
        seconds = time.perf_counter() - began
        where = self.device.name, self.digest
        held = None if recipe.guard is None or guard is None else guard.held.record()
        return Looked(trial, self.seed, self.taught.network, self.before, after, seconds, *where, held)

    def _go_between(self, trained: dict[str, Tensor], share: float, by: Any) -> None:
        """Let the model be between the one before and the trained one."""
        if self.way == "lora":
            self.taught.tuned = trained
            self.taught.average(share)
        else:
            merged = anchorhold.merge(self.taught.start, trained, share, by=by)
            assert isinstance(merged, dict)
            self.model.load_state_dict(merged)

    def _forms_of_both(self, form: Form | str, trained: dict[str, Tensor]) -> list[Mapping[str, Matrix]]:
        """Return what each network weighs its weights with, on its own language."""
        found: list[Mapping[str, Matrix]] = []
        languages = "english", self.settings.lesson
        for language, weights in zip(languages, (self.taught.start, trained), strict=True):
            self.model.load_state_dict(weights)
            guard = Guard(self.model, Fisher(self.settings.measured, labels="sampled"), form=form)
            guard.consolidate([piece[:, :-1] for piece in self._pieces(language, self.settings.measured, "measured")])
            found.append(guard.held.matrices)
        return found


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return a batch of own text as tokens and those that come next, also that of a Hugging Face model."""
    if isinstance(batch, Mapping):
        return batch["input_ids"][:, :-1], batch["labels"][:, 1:]
    tokens, following = batch
    return tokens, following


def study_settings(settings: Settings) -> Settings:
    """Return the settings with networks of their own: seeds that no other study has."""
    return replace(settings, compared={"full": ()}, seeds=tuple(seed + 6 for seed in settings.seeds))


def run(
    settings: Settings,
    corpus: Corpus,
    device: Device,
    lines: Path,
    work: Path,
    seconds: float,
    recipes: Sequence[Recipe] = RECIPES,
    least: float = 0.0,
) -> bool:
    """Go on until all trials are done or the time is up, and return whether they are; a line for each.

    Args:
        settings, corpus, device: the networks, their text, and where they run.
        lines: the file with a line for every trial.
        work: a folder for the networks that have learned English.
        seconds: when to start nothing new.
        recipes: what to try, fine-tuning first.
        least: of fine-tuning's gain, the least that anything is read off at. Fine-tuning is looked at whole.
    """
    began = time.perf_counter()
    for seed in settings.seeds:
        folder = work / f"seed-{seed}"
        if not is_learned(settings, folder):
            learn_english(settings, corpus, device, seed, folder)
        kitchen = Kitchen(settings, corpus, device, seed, folder, recipes[0].way)
        done = {(found.trial, found.network) for found in read(lines)}
        for recipe, trial in [(each, trial) for each in recipes for trial in each.trials()]:
            if (trial, kitchen.taught.network) in done:
                continue
            if time.perf_counter() - began > seconds:
                return False
            free = next((each for each in read(lines) if each.is_free(kitchen.taught.network)), None)
            whole = 0.0 if free is None else gained(free.before, free.after[str(SHARES[-1])])
            found = kitchen.cook(recipe, trial, least * whole)
            add(lines, asdict(found))
            print(_told(found), flush=True)
    return True


def read(path: Path) -> list[Looked]:
    """Return the trials of a file, which may end in the middle of a line that a killed process wrote."""
    return [Looked.of(plain) for plain in read_lines(path)]


def _told(found: Looked) -> str:
    last = found.after[str(SHARES[-1])]
    changes = [f"{each.capitalize()} {last[each][0] - found.before[each][0]:+.3f}" for each in found.before]
    return (
        f"seed {found.seed} {found.trial.recipe:38} s = {found.trial.strength:<7g} old = {found.trial.old:<7g}: "
        f"{', '.join(changes)} bits a byte, {found.seconds:.1f} s"
    )
