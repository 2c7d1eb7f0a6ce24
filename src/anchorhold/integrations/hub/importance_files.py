"""A folder that tells others what a model's weights are worth: the importance, what it was measured from, and a card.

The folder has ``importance.safetensors``, in the layout that :meth:`Guard.save` writes, ``anchorhold.json``, by
which a guard for it can be made, and ``README.md``, the card. There is Q and the weights that it was measured at, and
nothing of the data: no kept inputs, no buffers of samples, no labels, no running state of a task. Of the model's own
buffers, such as batch norms' statistics, a few numbers each go along, by which others are told of.
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anchorhold.errors import ConfigurationError, OrderError, StateError, shortened, warn
from anchorhold.guard import Guard, GuardOptions
from anchorhold.guard.arguments.options import checked_options
from anchorhold.guard.arguments.strengths import USUAL
from anchorhold.guard.batch_norm.frozen_statistics import is_fresh, with_statistics
from anchorhold.guard.distributed.ranks import ALONE, Ranks
from anchorhold.guard.monitors.distances import ELSEWHERE, distance, distance_in_words
from anchorhold.guard.state import files as state_files
from anchorhold.integrations.hub.repositories import (
    card,
    downloaded,
    has_card_of_others,
    is_own,
    library,
    refusals_told,
)
from anchorhold.integrations.hub.settings_files import (
    buffer_marks,
    form_of,
    measure_of,
    other_buffers,
    read_settings,
)
from anchorhold.tensors.names import named_parameters
from anchorhold.whole_files import write_whole

TENSORS, SETTINGS, CARD = "importance.safetensors", "anchorhold.json", "README.md"
EARLIER_SETTINGS = "holdfast.json"
"""What version 0.1.0 called the file of settings."""
CARRIED = ("version", "decay", "tasks", "tokens", "parameters", "left_frozen", "averages", "frozen_norms", "layouts")
"""What goes along of a guard's state, beside its importance and its anchor."""


def save_pretrained(
    guard: Guard, folder: str | os.PathLike[str], *, measured_from: str, base_model: str | None = None
) -> None:
    """Write a guard's importance into a folder, with a card, for others who train the same model.

    >>> save_pretrained(guard, "importance", measured_from="4,000 pages of Wikipedia", base_model="org/model")

    Args:
        guard: one that has consolidated. Of several processes, each calls this, and the first writes.
        folder: where to; it is made where there is none. A README.md that is there and no card of importance stays.
        measured_from: in words, what data the importance was measured from, for the card. No data goes along.
        base_model: the name of the model that it is of, on the hub.
    """
    _write(guard, Path(folder), measured_from, base_model, repo="user/name")


def _write(guard: Guard, place: Path, measured_from: str, base_model: str | None, repo: str) -> None:
    """Write a folder, its card with the repository that it is for."""
    state, settings = _taken(guard, measured_from, base_model)
    ranks = _ranks(guard)
    ranks.together(lambda: _make_folder(place) if ranks.rank == 0 else None)
    state_files.write(place / TENSORS, state, ranks)
    if ranks.rank == 0:
        write_whole(place / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n")
        if (place / CARD).exists() and not is_own((place / CARD).read_text(encoding="utf-8", errors="replace")):
            _tell_of_card_of_others(str(place))
        else:
            write_whole(place / CARD, card(settings, repo).encode())


def push_to_hub(
    guard: Guard,
    repo: str,
    *,
    measured_from: str,
    base_model: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Put what :func:`save_pretrained` writes into a repository of Hugging Face's hub, and return its address.

    Args:
        guard: as there; of several processes, the first one pushes.
        repo: ``"user/name"``; it is made where there is none. One that has a model's card keeps that.
        measured_from: as there.
        base_model: as there.
        private: whether a new repository is for its owner alone.
        token: by default the one that is logged in.
        revision: a branch.
        endpoint: the address of another hub.
    """
    api = library().HfApi(endpoint=endpoint, token=token)
    with tempfile.TemporaryDirectory() as place:
        _write(guard, Path(place), measured_from, base_model, repo)
        ranks = _ranks(guard)
        kept = ranks.together(lambda: _opened(api, repo, revision, private=private) if ranks.rank == 0 else [])
        if ranks.rank != 0:
            return repo
        message = f"Importance of {base_model or type(guard.model).__name__}, by anchorhold"
        given = {"revision": revision, "commit_message": message, "ignore_patterns": kept}
        with refusals_told(f"Nothing could be pushed to {repo!r}", _PUSHED):
            return str(api.upload_folder(repo_id=repo, folder_path=place, **given))


def from_pretrained(
    source: str | os.PathLike[str],
    model: nn.Module,
    *,
    strength: float | Mapping[str, float] | None = None,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    options: GuardOptions | None = None,
    **arguments: Any,
) -> Guard:
    """Return a guard of a model that holds it by importance that others have measured.

    >>> guard = from_pretrained("user/importance-of-model", model, strength=100.0)
    >>> guard.attach(optimizer)

    Args:
        source: a folder that :func:`save_pretrained` wrote, or the name of a repository.
        model: the same model, with the weights that it was measured at; others are told of.
        strength: as for :class:`~anchorhold.Guard`; or ``exchange_rate=``, which is 1 by default for importance in
            nats, or ``tolerance=``. Files of version 0.1.0 do not say how many tokens a sample has: they take a
            strength.
        revision: a branch, tag or commit.
        token: by default the one that is logged in.
        endpoint: the address of another hub.
        options: as for :class:`~anchorhold.Guard`; its space is that of the model's own weights.
        arguments: any of the Guard's other arguments, such as ``tolerance``.
    """
    place = Path(source)
    if not place.is_dir():
        known = {TENSORS: None, SETTINGS: EARLIER_SETTINGS}
        place = downloaded(str(source), known, revision=revision, token=token, endpoint=endpoint)
    # A folder that version 0.1.0 wrote, and none since.
    is_earlier = (place / EARLIER_SETTINGS).is_file() and not (place / SETTINGS).exists()
    written = place / (EARLIER_SETTINGS if is_earlier else SETTINGS)
    settings = read_settings(written)
    own: dict[str, Any] = {key: settings[key] for key in ("anchor", "decay")}
    own["form"] = form_of(written, settings["form"])
    if taken := sorted(arguments.keys() & {*own, "measure", "protect"}):
        raise ConfigurationError(f"{taken[0]}= is part of what was measured, and was given too. Leave it out.")
    measure, names = measure_of(written, settings["measure"]), set(settings["parameters"])
    _refuse_another_model(source, names, model)
    arguments["batch_norm"] = _batch_norm(settings.get("batch_norm"), **arguments)
    options = _of_own_weights(options)
    protect = lambda name, _: name in names  # noqa: E731
    guard = Guard(model, measure, strength=strength, protect=protect, options=options, **own, **arguments)
    state = state_files.read(place / TENSORS)
    _refuse_others(state, place / TENSORS)
    whole = guard.state_dict()
    whole |= {key: state[key] for key in CARRIED if key in state}
    if guard.exchange_rate is not None and len(state.get("tokens", ())) < state["tasks"]:
        if (rate := arguments.get("exchange_rate")) is not None:
            raise ConfigurationError(
                f"exchange_rate={rate!r} for importance in {str(source)!r} that does not say how many tokens were "
                "scored in a sample, as that of version 0.1.0. For T of them give strength=exchange_rate / (2 * T); T "
                "is 1 for a classifier."
            )
        del whole["exchange_rate"]
        whole["strength"] = USUAL
    if guard.options.batch_norm == "freeze":
        whole["frozen_norms"] = sorted({*whole.get("frozen_norms", ()), *_norms_with_statistics(guard)})
    whole["tensors"] = {**whole["tensors"], **state["tensors"]}
    whole["tensor_count"] = len(whole["tensors"])
    guard.load_state_dict(whole)
    _tell_of_another_place(guard, source, settings.get("buffers"))
    return guard


def _taken(guard: Guard, measured_from: str, base_model: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a guard's state with its importance and anchor alone, and by what settings a guard for it is made."""
    if not isinstance(guard, Guard):
        raise ConfigurationError(
            f"guard={type(guard).__name__}: expected a Guard that has consolidated, whose importance is shared. "
            "A model has a save_pretrained() of its own."
        )
    if base_model is not None and not (isinstance(base_model, str) and base_model.strip() and base_model.isprintable()):
        raise ConfigurationError(
            f"base_model={shortened(base_model)}: expected the name of a model in one line, such as 'org/model'."
        )
    if not isinstance(measured_from, str) or not measured_from.strip():
        raise ConfigurationError(
            f"measured_from={measured_from!r}: expected a few words on the data that importance was measured from, "
            "such as '4,000 pages of Wikipedia'. Nobody can tell by the numbers."
        )
    if not guard.tasks:
        raise OrderError("There is no importance to be shared yet. Call guard.consolidate(batches) first.")
    if guard.options.space == "merged" or guard.held.has_linear_term or guard.options.batch_norm == "fold":
        raise ConfigurationError(
            "Shared importance is that of a model's own weights around one anchor: with space='weights', and without "
            "batch_norm='fold', anchor='mean' in other forms than the diagonal, or gradient_term. guard.save(path) "
            "writes a file of such a guard."
        )
    full = guard.state_dict()
    driver = next(iter(guard.measures))
    state = {key: full[key] for key in CARRIED if key in full}
    state |= {"strength": 1.0, "steps": {}, "driver": driver, "measures": {driver: full["measures"][driver]}}
    state |= {key: full[key] for key in ("form", "anchor") if key in full}
    kinds = ("anchor/", f"total/{driver}/")
    state["tensors"] = {key: tensor for key, tensor in full["tensors"].items() if key.startswith(kinds)}
    state["tensor_count"] = len(state["tensors"])
    weights = {name: guard.anchor[name].numel() for name in sorted(guard.anchor)}
    return state, {
        "measured_from": measured_from.strip(),
        "base_model": base_model,
        "model": type(guard.model).__name__,
        "measure": full["measures"][driver],
        "measure_name": driver,
        "form": guard.options.form.settings(),
        "anchor": full.get("anchor", "last"),
        "batch_norm": guard.options.batch_norm,
        "decay": full["decay"],
        "tasks": guard.tasks,
        "parameters": full["parameters"],
        "weights": sum(weights.values()),
        "torch": torch.__version__,
    } | _buffers(guard)


def _buffers(guard: Guard) -> dict[str, Any]:
    """Return by what the buffers are known again, unless the model was trained since, and has others by now."""
    marks = buffer_marks(guard.model) if distance(guard.parameters, guard.anchor) <= ELSEWHERE else {}
    return {"buffers": marks} if marks else {}


_PUSHED = "Give a repository that is yours, 'user/name', a token that may write, and a connection."


def _ranks(guard: Guard) -> Ranks:
    return Ranks(guard.options.group) if guard.options.group is not None else ALONE


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{str(place)!r} can be no folder ({error}), so nothing was written. Give the path of a folder, or of one "
            "that can be made."
        ) from error


def _opened(api: Any, repo: str, revision: str | None, *, private: bool | None) -> list[str]:
    """Make a repository where there is none, and return which of its files are not to be replaced."""
    with refusals_told(f"Nothing was pushed to {repo!r}", _PUSHED):
        api.create_repo(repo, private=private, exist_ok=True)
        if not has_card_of_others(api, repo, CARD, revision):
            return []
    _tell_of_card_of_others(repo)
    return [CARD]


def _tell_of_card_of_others(where: str) -> None:
    warn(
        f"{where!r} has a {CARD} that is no card of importance: it was left as it is, and says nothing of the "
        "importance beside it. For a card, give a folder or a repository of its own."
    )


def _refuse_another_model(source: object, names: Collection[str], model: object) -> None:
    """Refuse a model that lacks what was measured, with some names of which it has and of which it has not."""
    if not isinstance(model, nn.Module):
        return  # which the Guard refuses
    here = [name for name, _ in named_parameters(model, remove_duplicate=False)]
    if not (missing := sorted(set(names).difference(here))):
        return
    strange = [name for name in here if name not in names] or here
    there, listed = (", ".join(map(repr, few[:2])) + " …" * (len(few) > 2) for few in (missing, strange))
    raise StateError(
        f"{str(source)!r} was measured for another model: its importance is of parameters called {there}, which this "
        f"model does not have; it has {listed or 'none'}. Give the model that it was measured for."
    )


def _batch_norm(measured: str | None, *, batch_norm: str | None = "as measured", **_: Any) -> str | None:
    """Return what becomes of batch norms' statistics: what did where it was measured, or freezing them from now on."""
    if batch_norm == "as measured":
        return measured
    if batch_norm not in (measured, "freeze"):
        raise ConfigurationError(
            f"batch_norm={batch_norm!r} for importance that was measured with batch_norm={measured!r}: expected "
            f"{'that, or ' * (measured != 'freeze')}'freeze'. Leave it out."
        )
    return batch_norm


def _of_own_weights(options: GuardOptions | None) -> GuardOptions:
    """Return the options with adapters held by their own parameters, whose importance is all that is shared."""
    options = checked_options(options)
    if options.space not in (None, "weights"):
        raise ConfigurationError(
            f"space={options.space!r} for importance of a model's own parameters, which is all that is shared: "
            "expected 'weights'. Leave it out."
        )
    return dataclasses.replace(options, space="weights")


def _norms_with_statistics(guard: Guard) -> set[str]:
    """Return the batch norms among what is protected that have statistics of some data."""
    own = {id(parameter) for parameter in guard.parameters.values()}
    trained = {name: norm for name, norm in with_statistics(guard.model).items() if not is_fresh(norm)}
    return {name for name, norm in trained.items() if not norm.affine or any(id(p) in own for p in norm.parameters())}


def _refuse_others(state: Mapping[str, Any], path: Path) -> None:
    """Refuse a file with more in it than importance and weights: whoever shares one may not know what else it holds."""
    kinds = ("anchor/", f"total/{state.get('driver')}/")
    if others := [key for key in state["tensors"] if not key.startswith(kinds)]:
        raise StateError(
            f"{str(path)!r} holds {others[0]!r}, which is no importance; expected what save_pretrained() writes. A "
            "guard's own file is read by guard.load(path)."
        )


def _tell_of_another_place(guard: Guard, source: object, marks: object) -> None:
    """Say so if a model is not where its importance was measured: its weights, or its buffers."""
    away = distance(guard.parameters, guard.anchor)
    if not away <= ELSEWHERE:
        warn(
            f"The model's weights are {distance_in_words(away)} from those that {str(source)!r} was measured at: it "
            "was trained since, or is another one. They are held to the weights of then, which the file has. Load the "
            "weights that it was measured at before training."
        )
    elif others := other_buffers(guard.model, marks):
        warn(
            f"The model's buffer {others[0]!r}, one of {len(others)} such as batch norms' statistics, is not what it "
            f"was where {str(source)!r} was measured, so the importance is that of another network. Load the whole "
            "state_dict() that it was measured with, buffers and all."
        )
