"""A folder that tells others what a model's weights are worth: the importance, what it was measured from, and a card.

The folder has ``importance.safetensors``, in the layout that :meth:`Consolidator.save` writes, ``holdfast.json``, by
which a guard for it can be made, and ``README.md``, the card. There is Q and the weights that it was measured at, and
nothing of the data: no kept inputs, no buffers of samples, no labels, no running state of a task.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import ConfigurationError, MissingExtraError, OrderError, StateError
from holdfast.forms import form as form_by_name
from holdfast.guard import Consolidator
from holdfast.guard.distributed.ranks import ALONE, Ranks
from holdfast.guard.noticing.telling import tell
from holdfast.guard.saving import state_files
from holdfast.integrations.hub.card import card
from holdfast.measures import MEASURES, Measure
from holdfast.tensors.sharding import like_parameter, local
from holdfast.whole_files import write_whole

TENSORS, SETTINGS, CARD = "importance.safetensors", "holdfast.json", "README.md"
CARRIED = ("version", "decay", "tasks", "parameters", "left_frozen", "averages", "frozen_norms", "layouts")
"""What goes along of a guard's state, beside its importance and its anchor."""
ELSEWHERE = 0.01
"""How far from its anchor, by the length of both, a model may be before it is taken for another one."""


def save_pretrained(
    guard: Consolidator, folder: str | os.PathLike[str], *, measured_from: str, base_model: str | None = None
) -> None:
    """Write a guard's importance into a folder, with a card, for others who train the same model.

    >>> save_pretrained(guard, "importance", measured_from="4,000 pages of Wikipedia", base_model="org/model")

    Args:
        guard: one that has consolidated. Of several processes, each calls this, and the first writes.
        folder: where to; it is made where there is none.
        measured_from: in words, what data the importance was measured from, for the card. No data goes along.
        base_model: the name of the model that it is of, on the hub.
    """
    state, settings = _taken(guard, measured_from, base_model)
    place = Path(folder)
    ranks = Ranks(guard.group) if guard.group is not None else ALONE
    if ranks.rank == 0:
        place.mkdir(parents=True, exist_ok=True)
    ranks.together(lambda: None)
    state_files.write(place / TENSORS, state, ranks)
    if ranks.rank == 0:
        write_whole(place / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n")
        write_whole(place / CARD, card(settings).encode())


def push_to_hub(
    guard: Consolidator,
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
        repo: ``"user/name"``; it is made where there is none.
        measured_from: as there.
        base_model: as there.
        private: whether a new repository is for its owner alone.
        token: by default the one that is logged in.
        revision: a branch.
        endpoint: the address of another hub.
    """
    hub = _hub()
    with tempfile.TemporaryDirectory() as place:
        save_pretrained(guard, place, measured_from=measured_from, base_model=base_model)
        if guard.group is not None and guard.group.rank() != 0:
            return repo
        api = hub.HfApi(endpoint=endpoint, token=token)
        api.create_repo(repo, private=private, exist_ok=True)
        said = f"Importance of {base_model or type(guard.model).__name__}, by holdfast"
        return str(api.upload_folder(repo_id=repo, folder_path=place, revision=revision, commit_message=said))


def from_pretrained(
    source: str | os.PathLike[str],
    model: nn.Module,
    *,
    strength: float | Mapping[str, float] | None = None,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> Consolidator:
    """Return a guard of a model that holds it by importance that others have measured.

    >>> guard = from_pretrained("user/importance-of-model", model, strength=100.0)
    >>> guard.attach(optimizer)

    Args:
        source: a folder that :func:`save_pretrained` wrote, or the name of a repository.
        model: the same model, with the weights that it was measured at; others are told of.
        strength: as for :class:`~holdfast.Consolidator`.
        revision: a branch, tag or commit.
        token: by default the one that is logged in.
        endpoint: the address of another hub.
        options: any of the Consolidator's other arguments, such as ``tolerance`` or ``state_dtype``.
    """
    place = Path(source)
    if not place.is_dir():
        place = _downloaded(str(source), revision, token, endpoint)
    settings = _read_settings(place / SETTINGS)
    own = {"form": form_by_name(**settings["form"]), "anchor": settings["anchor"], "decay": settings["decay"]}
    if taken := sorted(options.keys() & {*own, "measure", "protect"}):
        raise ConfigurationError(f"{taken[0]}= is part of what was measured, and was given too. Leave it out.")
    names = set(settings["parameters"])
    guard = Consolidator(
        model, _measure(settings["measure"]), strength, lambda name, _: name in names, **own, **options
    )
    state = state_files.read(place / TENSORS)
    _refuse_others(state, place / TENSORS)
    whole = guard.state_dict()
    whole |= {key: state[key] for key in CARRIED if key in state}
    whole["tensors"] = {**whole["tensors"], **state["tensors"]}
    whole["tensor_count"] = len(whole["tensors"])
    guard.load_state_dict(whole)
    _tell_of_other_weights(guard, source)
    return guard


def _taken(guard: Consolidator, measured_from: str, base_model: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a guard's state with its importance and anchor alone, and by what settings a guard for it is made."""
    if not isinstance(measured_from, str) or not measured_from.strip():
        raise ConfigurationError(
            f"measured_from={measured_from!r}: expected a few words on the data that importance was measured from, "
            "such as '4,000 pages of Wikipedia'. Nobody can tell by the numbers."
        )
    if not guard.tasks:
        raise OrderError("There is no importance to be shared yet. Call guard.consolidate(batches) first.")
    if guard.space == "merged" or guard.leans or guard.batch_norm == "fold":
        raise ConfigurationError(
            "Shared importance is that of a model's own weights around one anchor: without space='merged', "
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
        "form": guard.form.settings(),
        "anchor": full.get("anchor", "last"),
        "decay": full["decay"],
        "tasks": guard.tasks,
        "parameters": full["parameters"],
        "weights": sum(weights.values()),
        "torch": torch.__version__,
    }


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"measure", "form", "anchor", "decay", "parameters"} <= found.keys():
            return dict(found)
        problem = "lacks what a guard is made by"
    except OSError as error:
        problem = f"cannot be read ({error})"
    except (ValueError, AttributeError) as error:
        problem = f"is damaged ({error})"
    raise StateError(
        f"{str(path)!r} {problem}. Give a folder or repository that save_pretrained() or push_to_hub() made."
    )


def _measure(settings: Mapping[str, Any]) -> Measure:
    """Return the measure that has these settings, of those that are registered."""
    kinds = {type(made()).__name__: type(made()) for made in MEASURES.values()}
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items() if key != "kind"}
    if settings.get("kind") not in kinds:
        raise StateError(
            f"The importance was measured by {settings.get('kind')!r}, which is no measure here; there are "
            f"{', '.join(sorted(kinds))}. Register it first, with holdfast.register_measure."
        )
    return kinds[settings["kind"]](**values)


def _refuse_others(state: Mapping[str, Any], path: Path) -> None:
    """Refuse a file with more in it than importance and weights: whoever shares one may not know what else it holds."""
    kinds = ("anchor/", f"total/{state.get('driver')}/")
    if others := [key for key in state["tensors"] if not key.startswith(kinds)]:
        raise StateError(
            f"{str(path)!r} holds {others[0]!r}, which is no importance; expected what save_pretrained() writes. A "
            "guard's own file is read by guard.load(path)."
        )


@torch.no_grad()
def _tell_of_other_weights(guard: Consolidator, source: object) -> None:
    """Say so if a model is not where its importance was measured."""
    moved = size = 0.0
    for name, parameter in guard.parameters.items():
        if name in guard.anchor:
            anchor = local(like_parameter(guard.anchor[name], parameter)).double()
            moved += float((local(parameter).double() - anchor).square().sum())
            size += float(anchor.square().sum())
    if moved > ELSEWHERE**2 * size:
        tell(
            f"The model's weights are {100 * (moved / size) ** 0.5:.2g} % away from those that {str(source)!r} was "
            "measured at: it was trained since, or is another one. They are held to the weights of then, which the "
            "file has. Load the weights that it was measured at before training."
        )


def _downloaded(repo: str, revision: str | None, token: str | None, endpoint: str | None) -> Path:
    hub = _hub()
    try:
        given = {"revision": revision, "token": token, "endpoint": endpoint}
        here = [Path(hub.hf_hub_download(repo, name, **given)).parent for name in (TENSORS, SETTINGS)]
    except (OSError, ValueError) as error:
        raise StateError(
            f"{repo!r} is no folder here, and could not be had from the hub ({type(error).__name__}: {error}). Give a "
            "folder that save_pretrained() wrote, or the name of a repository, 'user/name'."
        ) from error
    return here[0]  # that of one commit, which both are of


def _hub() -> Any:
    try:
        import huggingface_hub  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            "The hub needs huggingface_hub: pip install 'holdfast[hub]'. A folder needs nothing."
        ) from error
    return huggingface_hub
