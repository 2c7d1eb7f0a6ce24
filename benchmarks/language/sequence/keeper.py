"""A recipe at work: what it remembers of each kind that has been learned, and the guard that holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anchorhold
from anchorhold import Guard, OwnText
from anchorhold.holds.of_batches.batch_hold import BatchHold
from anchorhold.holds.of_batches.batch_sources import GivenBatches
from anchorhold_lab.training.relative_guard import RelativeGuard
from benchmarks.language.english import Taught, new_guard
from benchmarks.language.recipes import PIECES, Trial
from benchmarks.language.sequence.keeping import Keeping
from benchmarks.language.sequence.kinds import Kind
from benchmarks.language.settings import Settings
from benchmarks.language.training import Device

TOGETHER = 64
"""Pieces that a guard is measured on at once."""


@dataclass
class Keeper:
    """Keeps what one network learns, by one recipe.

    Args:
        keeping, trial: the recipe, and its try.
        taught: the network.
        folder: where what it wrote after English is kept, which is the same for all recipes.
        first: the kind that it knows already.
    """

    keeping: Keeping
    trial: Trial
    taught: Taught
    settings: Settings
    device: Device
    seed: int
    folder: Path
    first: Kind
    guard: Guard | None = None
    _hold: BatchHold | None = None
    _pieces: list[Any] = field(default_factory=list)
    """Batches of old or own text, of all kinds so far."""

    def take_in(self, kind: Kind) -> None:
        """Remember a kind that has just been learned."""
        keeping = self.keeping
        if keeping.guard is None and keeping.text is None:
            return
        own = self._written(kind) if "own" in (keeping.text, keeping.measured_on) else None
        if keeping.text is not None:
            size = max(1, round(self.trial.old * self.settings.python_batch))
            self._pieces += self._old(kind, size) if own is None else own.batches(size)
        if self.guard is None:
            self.guard = self._new_guard()
        elif self._hold is not None:
            self._hold.source = GivenBatches(self._pieces, self.seed)
        if keeping.guard is None:
            self.guard.consolidate()
        else:
            self.guard.consolidate(self._measured(kind, own if keeping.measured_on == "own" else None))

    @property
    def held(self) -> dict[str, float | None] | None:
        """Return c, κ, T and tr Q; ``None`` where no importance holds."""
        return None if self.guard is None or self.keeping.guard is None else self.guard.held.record()

    def _new_guard(self) -> Guard:
        keeping = self.keeping
        if keeping.text is not None:
            way = anchorhold.Distillation if keeping.distilled else anchorhold.Replay
            self._hold = way(self._pieces, share=self.trial.old, seed=self.seed)
        holds = [] if self._hold is None else [self._hold]
        if keeping.guard is None:
            return Guard(self.taught.model, "fine-tune", strength=0.0, holds=holds)
        plain = new_guard(self.taught.model, "full", keeping.guard, self.settings)
        (measure,) = plain.measures.values()
        strength = self.trial.strength
        return RelativeGuard(
            self.taught.model, measure, form=plain.options.form, relative_strength=strength, holds=holds
        )

    def _old(self, kind: Kind, size: int) -> list[tuple[Tensor, Tensor]]:
        pieces = kind.batches(-(-self._many // size), size, self.seed, "old", kind.name)
        return [(piece[:, :-1], piece[:, 1:]) for piece in pieces]

    def _measured(self, kind: Kind, own: OwnText | None) -> Sequence[Tensor]:
        """Return what the guard looks at: text of the kind, or the network's own."""
        steps = -(-self.settings.measured // TOGETHER)
        if own is not None:
            return [tokens for tokens, _ in own.batches(TOGETHER)][:steps]
        return [piece[:, :-1] for piece in kind.batches(steps, TOGETHER, self.seed, "measured", kind.name)]

    @property
    def _many(self) -> int:
        return min(PIECES, 8 * self.settings.measured)

    def _written(self, kind: Kind) -> OwnText:
        """Return what the network writes now, as long as what it reads of the kind."""
        with torch.autocast(self.device.device.type, torch.bfloat16, enabled=self.device.on_gpu):
            return anchorhold.write_text(
                self.taught.model,
                self._many,
                kind.context - 1,  # and the byte that it begins with
                start=self.settings.start,
                end=None,
                seed=self.seed,
                batch_size=256,
                store=self.folder / "own-text" if kind is self.first else None,
            )
