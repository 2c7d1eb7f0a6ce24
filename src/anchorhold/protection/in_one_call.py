"""Protect a model in one call."""

import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anchorhold.engine.batches import Forward, check_batches
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.conventions.huggingface import text_writer
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError, OrderError
from anchorhold.guard import Guard
from anchorhold.guard.distributed.ranks import is_one_of_several
from anchorhold.guard.state import files as state_files
from anchorhold.measures import Measure
from anchorhold.own_text import OwnText
from anchorhold.protection.guard import (
    ASIDE,
    GUARD_FILE,
    PROTECTION_FILE,
    ProtectedGuard,
    made,
    read_protection,
    resumed,
)
from anchorhold.protection.language_models import (
    Bar,
    Shown,
    Writing,
    given_text,
    is_paths,
    is_tokenizer,
    read_text_files,
    refuse_model,
    refuse_other_tokenizer,
    tokens_to_try,
)
from anchorhold.protection.planning import Plan, measure_for, plan_for, refuse_what_cannot_be_measured
from anchorhold.protection.samples import ASIDE as PART_ASIDE
from anchorhold.protection.samples import MEASURED_AT_ONCE, MOST_ASIDE, Samples, of_batches, of_own_text, output_shape
from anchorhold.protection.settings import Protection
from anchorhold.tensors.sharding import is_sharded


def protect(
    model: nn.Module, given: Any = None, *, resume: str | os.PathLike[str] | None = None, **options: Any
) -> ProtectedGuard:
    """Protect what a model knows, before it is trained on something new.

    >>> guard = anchorhold.protect(model, tokenizer)  # a language model: by text that it writes itself
    >>> guard.attach(optimizer)
    >>> train(model, optimizer)
    >>> print(guard.finish(held_out))  # some batches of the new

    A language model writes its own text, an eighth of which is kept aside. The Fisher information is measured on it, in
    the best form that memory and time have room for, and held at an exchange rate of 1: a nat of the old is worth a nat
    of the new. An eighth of each step distils what the model said before. At the end
    :meth:`~anchorhold.protection.ProtectedGuard.finish` averages the weights with those from before as far as that
    pays: new loss + κ·KL is least there. Any other model is protected by old data in the place of own text, and so is a
    language model that batches are given for.

    What will be done is planned first, with its seconds and bytes, and shown. What cannot be done is refused before
    anything is written.

    Args:
        model: the network, ready to be trained, with its adapters.
        given: the tokenizer of a language model; or old batches, of inputs with or without labels.
        resume: a folder that :meth:`~anchorhold.protection.ProtectedGuard.checkpoint` wrote, or a Trainer's checkpoint:
            nothing is written or measured, and what was kept then is kept on. The model may be half trained.
        options: those of :class:`~anchorhold.protection.Protection`.

    Returns:
        The guard, which is to be attached to the optimizer.
    """
    if resume is not None:
        return resume_protection(model, given, Path(resume), **options)
    settings, tokenizer = _sorted_out(model, given, Protection.of(options))
    ready = _prepared(model, tokenizer, settings)
    if settings.progress is True:
        print(ready.plan, file=sys.stderr, flush=True)
    began = time.perf_counter()
    samples = ready.samples
    if samples is None:
        assert ready.writing is not None
        text = ready.writing.write(Bar(settings.progress, "Writing own text"))
        samples = of_own_text(text, settings.measured, settings.batch_size, f"{len(text):,} pieces of own text")
    guard = made(model, ready.measure, ready.plan, samples, settings)
    guard.keep(samples.aside, ASIDE, forward=settings.forward, samples=MOST_ASIDE)
    bar = Bar(settings.progress, f"Measuring {ready.plan.form.name}")
    of_data = Shown(samples.measured, bar) if ready.plan.exchange_rate else None
    guard.consolidate(of_data, forward=settings.forward, within=ready.plan.within)
    guard.note_measured(time.perf_counter() - began)
    return guard


def plan(model: nn.Module, given: Any = None, **options: Any) -> Plan:
    """Return what :func:`anchorhold.protect` would do, with its seconds and bytes; arguments are the same."""
    settings, tokenizer = _sorted_out(model, given, Protection.of(options))
    return _prepared(model, tokenizer, settings).plan


@dataclasses.dataclass(frozen=True)
class _Ready:
    """All that is known before anything is written or measured."""

    plan: Plan
    measure: Measure
    samples: Samples | None
    writing: Writing | None


def _sorted_out(model: nn.Module, given: Any, settings: Protection) -> tuple[Protection, Any]:
    """Return the settings, with batches that were given as old data, and the tokenizer, once both are checked."""
    refuse_model(model)
    if is_one_of_several() or any(map(is_sharded, model.parameters())):
        raise ConfigurationError(
            "protect() in one of several processes, or with a sharded model: own text is written and split by one. "
            "Write it with anchorhold.write_text in one process first, and make a Guard in each, "
            'Guard(model, Fisher(labels="sampled"), form="kronecker"), with a Distillation of the text among its holds.'
        )
    if isinstance(given, str) or is_tokenizer(given):
        refuse_other_tokenizer(model, given)
        return settings, given
    if given is not None:
        if settings.old_data is not None or settings.text is not None:
            raise ConfigurationError(
                f"protect() was given batches of type {type(given).__name__}, and old_data= or text= too. Give one."
            )
        settings = dataclasses.replace(settings, old_data=check_batches(given))
    if settings.old_data is None and settings.text is None:
        if text_writer(model) is None:
            raise BatchError(
                f"protect() without old data: {type(model).__name__} cannot write its own. Give a few hundred old "
                "inputs as batches, protect(model, batches); or, for a language model of one's own, what it wrote: "
                "text=anchorhold.write_text(model, 512, start=0)."
            )
        raise ConfigurationError(
            f"protect() without a tokenizer: {type(model).__name__} is a language model, whose own text begins and "
            "ends with its tokenizer's marks. Give it, protect(model, tokenizer), or old data in the place of own "
            "text, old_data=batches."
        )
    return settings, None


def _prepared(model: nn.Module, tokenizer: Any, settings: Protection) -> _Ready:
    """Return the plan, and the samples as far as they are there, with nothing written yet."""
    if settings.old_data is None and settings.text is None:
        return _before_writing(model, tokenizer, settings)
    samples = _samples_there(model, tokenizer, settings)
    measure = measure_for(settings, _outputs(model, samples, settings.forward))
    reader = BatchReader(torch.device("cpu"))
    batch, count = samples.measured[0], sum(reader.read(each).size for each in samples.measured)
    _try(model, measure, batch, settings)
    return _Ready(plan_for(model, settings, batch, count, measure, source=samples.origin), measure, samples, None)


def _before_writing(model: nn.Module, tokenizer: Any, settings: Protection) -> _Ready:
    writing = Writing(model, tokenizer, settings)
    measure = measure_for(settings, None)
    rows = min(MEASURED_AT_ONCE, writing.pieces)
    batch = tokens_to_try(model, writing.length + 1, rows)
    _try(model, measure, tokens_to_try(model, writing.length + 1, 2), settings)
    seconds = writing.seconds()
    count = min(settings.measured, writing.pieces - min(MOST_ASIDE, max(1, writing.pieces // PART_ASIDE)))
    told: dict[str, Any] = {"seconds_writing": seconds, "pieces": writing.missing, "length": writing.length}
    told |= {"folder": writing.folder, "source": f"all {writing.pieces:,} pieces of own text are there"}
    return _Ready(plan_for(model, settings, batch, count, measure, **told), measure, None, writing)


def _try(model: nn.Module, measure: Measure, batch: Any, settings: Protection) -> None:
    """Refuse by two samples what cannot be measured, by the cheapest form that goes layer by layer."""
    if not settings.exchange_rate:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorholdWarning)  # which measuring gives in its time
        guard = Guard(
            model, measure, strength=1.0, protect=settings.protect, form=settings.form or "kronecker", from_scratch=True
        )
    refuse_what_cannot_be_measured(guard, batch, settings)


def _samples_there(model: nn.Module, tokenizer: Any, settings: Protection) -> Samples:
    if settings.text is not None:
        text = given_text(model, tokenizer, settings.text)
        return of_own_text(text, settings.measured, settings.batch_size, f"{len(text):,} pieces of own text given")
    old = settings.old_data
    if is_paths(old):
        paths = old if isinstance(old, list | tuple) else [old]
        old = read_text_files(paths, tokenizer, settings.length, settings.samples)
    old = check_batches(old)
    return of_batches(model, old, settings.samples, settings.measured, settings.batch_size, settings.forward)


def resume_protection(
    model: nn.Module, given: Any, folder: Path, state: Mapping[str, Any] | None = None, **options: Any
) -> ProtectedGuard:
    """Return the guard of a checkpoint, for a model that may be half trained.

    Args:
        model: the network.
        given: as for :func:`anchorhold.protect`.
        folder: of the checkpoint.
        state: the guard's, where it has been read already.
        options: those of :class:`~anchorhold.protection.Protection`. The form, the exchange rate and the share are
            those of the checkpoint.
    """
    settings = Protection.of(options)
    saved = read_protection(folder / PROTECTION_FILE, given if is_tokenizer(given) else None)
    if saved.text is not None:
        refuse_model(model)
        _refuse_other_old_samples(saved.text, given, settings, folder)
        origin = f"{len(saved.text):,} pieces of own text"
        samples = of_own_text(saved.text, settings.measured, settings.batch_size, origin)
    else:
        settings, tokenizer = _sorted_out(model, given, settings)
        if settings.old_data is None:
            raise OrderError(
                f"The model of {str(folder)!r} was protected by old data, which no checkpoint has. Give the same old "
                "data again."
            )
        samples = _samples_there(model, tokenizer, settings)
    goes_on = {"exchange_rate": saved.exchange_rate, "share": saved.share, "form": saved.plan.form}
    asked = {name: getattr(settings, name) for name in goes_on if options.get(name) is not None}
    if others := [name for name, value in asked.items() if value != goes_on[name]]:
        name = others[0]
        raise ConfigurationError(
            f"{name}={options[name]!r} with resume=: the model of {str(folder)!r} was protected with "
            f"{goes_on[name]!r}, which goes on. Leave it out, or protect anew, without resume=."
        )
    settings = dataclasses.replace(settings, exchange_rate=saved.exchange_rate, share=saved.share)
    measure = measure_for(settings, _outputs(model, samples, settings.forward))
    guard = made(model, measure, saved.plan, samples, settings)
    guard = resumed(guard, state_files.read(folder / GUARD_FILE) if state is None else state)
    guard.note_measured(saved.seconds_taken)
    return guard


def _refuse_other_old_samples(saved: OwnText, given: Any, settings: Protection, folder: Path) -> None:
    """Refuse old samples in the place of the own text that a checkpoint has, which goes on."""
    old = given if given is not None and not is_tokenizer(given) else settings.old_data
    if settings.text is not None:
        text = OwnText.load(settings.text) if isinstance(settings.text, str | os.PathLike) else settings.text
        is_same = isinstance(text, OwnText) and len(text) == len(saved)
        is_same = is_same and all(map(torch.equal, _tokens(text), _tokens(saved)))
        old = old if is_same else text
    if old is not None:
        raise ConfigurationError(
            f"resume={str(folder)!r} and old samples of type {type(old).__name__}: the model was protected by "
            f"{len(saved):,} pieces of own text, which the checkpoint has and which go on; others would not be used. "
            "Give the tokenizer alone, protect(model, tokenizer, resume=folder), or protect anew, without resume=."
        )


def _tokens(text: OwnText) -> list[torch.Tensor]:
    return [piece.tokens for piece in text.pieces]


def _outputs(model: nn.Module, samples: Samples, forward: Forward | None) -> torch.Size | None:
    """Return the shape of the outputs of some samples, or ``None`` for a language model, which its labels tell of."""
    if text_writer(model) is not None:
        return None
    batch = BatchReader(next(model.parameters()).device, model).read(samples.measured[0])
    return output_shape(model, batch, forward)
