"""The guard that :func:`anchorhold.protect` returns: it averages when training has ended, and reports."""

import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from anchorhold.engine.batches import Forward
from anchorhold.errors import ConfigurationError, OrderError, StateError, StoreError
from anchorhold.forms import form as form_by_name
from anchorhold.guard import Guard
from anchorhold.guard.retention.evaluate import look
from anchorhold.guard.rollback.averaged_adapters import AveragedAdapters
from anchorhold.guard.rollback.averaging import checked_way, move_to
from anchorhold.guard.rollback.weight_average import refuse_between_averages
from anchorhold.holds import Distillation
from anchorhold.holds.of_batches.old_model import OldModel
from anchorhold.measures import Measure
from anchorhold.own_text import Kind, OwnText
from anchorhold.own_text.text_folder import pieces_of, tensors_of
from anchorhold.protection.planning import Plan, in_seconds
from anchorhold.protection.samples import MOST_ASIDE, Samples
from anchorhold.protection.settings import Protection
from anchorhold.protection.weighing import Look, NewBatches, Weighed, best_share
from anchorhold.retention import SetRetention
from anchorhold.retention.controller import checked_nats
from anchorhold.settings import checked_share, written
from anchorhold.tensors.summaries import checksum, in_bytes
from anchorhold.whole_files import read_tensors, sealed, unsealed, write_tensors

ASIDE = "old samples"
"""The name of the set that is kept aside."""
_PLANNED = ("weights", "kept", "measuring", "seconds_measuring", "seconds_writing", "exchange_rate", "share", "source")
GUARD_FILE = "anchorhold.safetensors"
PROTECTION_FILE = "anchorhold-protection.safetensors"
_KEY, _FORMAT = "anchorhold_protection", 1


@dataclasses.dataclass(frozen=True)
class Report:
    """What protecting a model came to; ``print(report)`` tells it."""

    form: str
    exchange_rate: float
    strength: float
    """c, by which the hold is multiplied: κ/(2T)."""
    scored: float
    """T, the scored tokens of a sample."""
    per: str
    """What nats are counted by: ``"token"`` or ``"sample"``."""
    seconds_foretold: float
    seconds_taken: float
    """What writing and measuring took."""
    bytes_kept: int
    share: float | None = None
    """How much of what training moved the weights have kept; ``None`` before :meth:`ProtectedGuard.finish`."""
    lost_before: SetRetention | None = None
    """What was lost of the kept set that lost most, when training ended: of the samples that were kept aside, unless
    others were kept too."""
    lost: SetRetention | None = None
    """What is lost of it now."""
    predicted: float | None = None
    """What the importance predicts to second order for the end of training, in nats a token or sample."""
    weighed: Weighed | None = None
    """What averaging gives back against what it costs of the new, where new batches were given."""

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        unit = f" with {self.scored:,.1f} scored tokens a sample" if self.per == "token" else ""
        took, foretold = in_seconds(self.seconds_taken), in_seconds(self.seconds_foretold)
        lines = [
            f"form {self.form}, c = {self.strength:.3g}: an exchange rate of {self.exchange_rate:g}{unit}",
            f"writing and measuring took {took}, foretold {foretold}; {in_bytes(self.bytes_kept)} kept",
        ]
        if self.lost_before is not None and self.lost is not None:
            predicted = "" if self.predicted is None else f" (by the importance {self.predicted:.3g})"
            same = f"{self.lost.agreement:.1%} of predictions as before"
            lines.append(f"training lost {_nats(self.lost_before)}{predicted}")
            left = "not averaged" if self.share == 1 else f"averaged, {self.share:.3g} of what was learned is left"
            lines.append(f"{left}: {_nats(self.lost)} lost, {same}")
            if self.weighed is not None:
                lines.append(str(self.weighed))
            elif self.share == 1:
                lines[-1] += "; finish(new_batches) weighs what averaging gives back against what it costs of the new"
        return "\n".join(lines)


def _nats(found: SetRetention) -> str:
    error = "" if found.error is None else f" ± {found.error:.2g}"
    return f"{found.kl:.4g}{error} nats a {found.per}"


class ProtectedGuard(Guard):
    """A guard that is made, measured and consolidated already, and ends training by :meth:`finish`.

    :func:`anchorhold.protect` makes it. Attach it to the optimizer, train, and finish.

    >>> guard = anchorhold.protect(model, tokenizer)
    >>> guard.attach(optimizer)
    >>> train(model, optimizer)
    >>> print(guard.finish(held_out))  # some batches of the new
    """

    plan: Plan
    """What was foretold."""
    report: Report
    """What it came to so far."""
    samples: Samples
    """The old samples: measured on, distilled, and kept aside."""
    forward: Forward | None = None
    """How the model is called with old samples, where that was said."""
    _ended_at: int | None = None

    def finish(
        self,
        new: Any = None,
        *,
        share: float | None = None,
        tolerance: float | None = None,
        forward: Forward | None = None,
    ) -> Report:
        """End training: average the weights with those from before as far as that pays, stop holding, and report.

        With batches of the new, the share of what was learned is the one at which new loss + κ·KL is least: the loss of
        these batches, and what is lost of the samples that were kept aside, at the guard's exchange rate κ; 1 where it
        has a plain strength. Three to nine shares are measured. Where all of what was learned is worth most, no
        weight moves. Without batches, a share or a tolerance nothing is averaged, since what that costs is not known.

        Args:
            new: batches of what was newly learned, with labels, as for :meth:`anchorhold.Guard.consolidate`; held-out
                ones are best. A language model takes rows of tokens too. The first 500 samples are read.
            share: how much of what was learned is left, in the place of that: 1 averages nothing.
            tolerance: the most that may be lost, in nats a token or sample, in the place of both.
            forward: how the model is called with new batches; by default as :func:`anchorhold.protect` was told.

        Returns:
            The report, which is :attr:`report` too.

        Raise :class:`~anchorhold.errors.OrderError` if no weight has moved since the model was protected, and
        :class:`~anchorhold.errors.ConfigurationError` for two of batches, a share and a tolerance. If anything goes
        wrong, the weights are where they were. A finish that averaged nothing may be followed by one that weighs.
        """
        given, allowed = self.check_finish(share, tolerance, new)
        says_how = not (new is share is tolerance is None)
        if not (self.has_moved or (says_how and self.report.share == 1 and self._is_away)):
            raise OrderError(
                "finish() was called, and no weight has moved since the model was protected, since the last finish() "
                "or since guard.consolidate(). Call it when training has ended, once; guard.attach(optimizer) comes "
                "before training."
            )
        weighed = None if new is None else self._weighed(new, forward or self.forward)
        found = self.retention()
        lost = found.worst  # of the samples kept aside, and of what else guard.keep() was given
        if weighed is not None:
            given = weighed.best.share
        if allowed is not None and lost.kl > allowed:
            given = self.pull_back(allowed).share
        elif given is not None and given < 1:
            self.average(given)
        left = self.retention()[lost.name]
        self.detach()
        self.report = dataclasses.replace(
            self.report,
            share=1.0 if given is None else given,
            lost_before=lost,
            lost=left,
            predicted=found.second_order_prediction,
            weighed=weighed,
        )
        self._ended_at = self._marks()
        return self.report

    @staticmethod
    def check_finish(share: object, tolerance: object, new: object = None) -> tuple[float | None, float | None]:
        """Return what :meth:`finish` is given as numbers, or say what is expected of them."""
        if share is not None and tolerance is not None:
            raise ConfigurationError(f"share={share!r} and tolerance={tolerance!r} at the end: give one of both.")
        if new is not None and not share is tolerance is None:
            named = f"share={share!r}" if tolerance is None else f"tolerance={tolerance!r}"
            raise ConfigurationError(
                f"New batches of type {type(new).__name__} and {named} at the end: give one of both. The share that is "
                "worth most is found by the batches."
            )
        expected = "a number from 0 (all is undone) to 1 (nothing is), or None to average nothing or to weigh"
        return (
            None if share is None else checked_share("share", share, expected),
            None if tolerance is None else checked_nats(tolerance),
        )

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def _weighed(self, new: Any, forward: Forward | None) -> Weighed:
        """Measure what some shares of what was learned are worth; the weights stay where they are."""
        rate = self.exchange_rate or 1.0
        core = self._core
        refuse_between_averages(self._attachment.attached())
        held = checked_way(core, "finish()")
        batches = NewBatches(core.runtime.model, new, forward)
        own: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in held.items()}
        adapters = AveragedAdapters(core, held)

        def look_at(share: float) -> Look:
            if share < 1:
                move_to(core.state, held, own, share, adapters.between(own, share))
            loss, kl = batches.loss(), look(core).kl
            return Look(share, loss, kl, loss + rate * kl)

        try:
            with self._attachment.set_aside():
                looks = best_share(look_at)
        finally:
            for name, parameter in held.items():
                parameter.copy_(own[name])
        return Weighed(rate, bool(self.exchange_rate), batches.samples, batches.per, looks)

    @property
    def has_moved(self) -> bool:
        """Whether a weight has moved since the model was protected, or since the last :meth:`finish`."""
        if self._ended_at is not None:
            return self._marks() != self._ended_at
        return self._is_away

    @property
    def _is_away(self) -> bool:
        """Whether a weight is elsewhere than before training."""
        now, before = self.parameters, self.anchor
        return any(not torch.equal(now[name].detach().to(old), old) for name, old in before.items() if name in now)

    def checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Write all that going on needs into a folder, for ``protect(model, tokenizer, resume=folder)``.

        Own text goes along, and the tokens that were kept aside. Real old data does not: give it again.
        """
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{str(folder)!r} cannot be made a folder ({error}). Name another one.") from error
        self.save(Path(folder) / GUARD_FILE)
        write_protection(self, Path(folder) / PROTECTION_FILE)

    def note_measured(self, seconds: float) -> None:
        """Report what measuring has found: the strength, the scored tokens of a sample, and the seconds it took."""
        found = self.held.record() if self.report.exchange_rate else {}
        self.report = dataclasses.replace(
            self.report,
            strength=found.get("strength") or 0.0,
            scored=found.get("tokens") or self.report.scored,
            seconds_taken=seconds,
        )

    def _marks(self) -> int:
        return checksum(parameter.detach() for _, parameter in sorted(self.parameters.items()))


def made(model: nn.Module, measure: Measure, plan: Plan, samples: Samples, settings: Protection) -> ProtectedGuard:
    """Return a guard by a plan, which nothing was measured for yet."""
    told = partial(Distillation, samples.distilled, forward=settings.forward, seed=settings.seed)
    holds = [told(share=plan.share)] if plan.share else []
    # Without a rate nothing is measured, and the distillation is all that holds.
    given: dict[str, Any] = {"exchange_rate": plan.exchange_rate, "form": plan.form} if plan.exchange_rate else {}
    norms = "freeze" if any(isinstance(module, _BatchNorm) for module in model.modules()) else None
    guard = ProtectedGuard(model, measure, protect=settings.protect, holds=holds, batch_norm=norms, **given)
    guard.plan, guard.samples, guard.forward = plan, samples, settings.forward
    guard.report = Report(
        plan.form.name if plan.exchange_rate else "none",
        plan.exchange_rate,
        0.0,
        samples.scored,
        samples.per,
        plan.seconds,
        0.0,
        plan.kept,
    )
    return guard


def write_protection(guard: ProtectedGuard, path: Path) -> None:
    """Write what a guard's own file does not have: how it is made, and its own text."""
    form = guard.plan.form
    about = {
        "format": _FORMAT,
        "form": {"name": form.name, **written(form)},
        "plan": {name: getattr(guard.plan, name) for name in _PLANNED},
        "seconds_taken": guard.report.seconds_taken,
        "text": None,
    }
    tensors = {"form": torch.zeros(0)}  # a file of no tensors cannot be told from one that was cut short
    text = guard.samples.text
    if text is not None:
        about["text"] = {"ends": list(text.kind.ends), "padding": text.kind.padding, "named": text.kind.named}
        tensors |= tensors_of(text.pieces)
    write_tensors(path, tensors, {_KEY: sealed(about, tensors)})


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a file of a protection says."""

    plan: Plan
    seconds_taken: float
    text: OwnText | None

    @property
    def exchange_rate(self) -> float:
        """κ, of the hold that goes on."""
        return self.plan.exchange_rate

    @property
    def share(self) -> float:
        """The part of each step that distils."""
        return self.plan.share


def read_protection(path: Path, tokenizer: Any = None) -> Saved:
    """Read what :func:`write_protection` wrote, or say why that is not possible."""
    if not path.is_file():
        raise StateError(
            f"There is no protection at {str(path)!r}: expected the folder that guard.checkpoint(folder) wrote, or a "
            "checkpoint of a Trainer with a ProtectCallback."
        )
    found, texts = read_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in found.items()}
    about, is_own = unsealed(texts.get(_KEY, "{}"), tensors, path)
    if not is_own or about.get("format") != _FORMAT:
        raise StateError(f"{str(path)!r} is no protection of this version. Give one that guard.checkpoint() wrote.")
    text = None
    if about["text"] is not None:
        kind = Kind(tuple(about["text"]["ends"]), about["text"]["padding"], about["text"]["named"])
        text = OwnText(pieces_of(tensors), kind, tokenizer)
    plan = Plan(form_by_name(**about["form"]), ("as in the checkpoint",), within=None, memory=None, **about["plan"])
    return Saved(plan, about["seconds_taken"], text)


def resumed(guard: ProtectedGuard, state: Mapping[str, Any]) -> ProtectedGuard:
    """Take over a guard's state, and keep the old samples by what the model of then says of them.

    The weights of then are in the state: the anchor's, and those of the old model that is distilled.
    """
    guard.load_state_dict(state)
    old = OldModel()
    old.weights = dict(guard.anchor)
    for hold in guard.options.holds:
        if isinstance(hold, Distillation):
            old.weights |= hold.before
    if ASIDE in guard.kept.expected:
        guard.kept.drop(ASIDE)
    with old.in_place(guard.model):
        guard.keep(guard.samples.aside, ASIDE, forward=guard.forward, samples=MOST_ASIDE)
    guard.load_state_dict(state)
    return guard
