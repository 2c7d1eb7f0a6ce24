"""Language models and tokenizers in local folders of Hugging Face's layout, adapters too; nothing is ever fetched."""

import contextlib
import importlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anchorhold.errors import ConfigurationError, MissingExtraError, ModelError
from anchorhold.merging.lora_files import CONFIG as ADAPTER_CONFIG
from anchorhold.merging.lora_files import is_adapter
from anchorhold.merging.tensor_files import as_path

_CONFIG = "config.json"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
"""Without one of them a tokenizer that is loaded from a folder may be an empty one."""


@dataclass(frozen=True)
class Loading:
    """How models are loaded.

    Args:
        device: where to.
        dtype: in which type; ``None`` for that of the files on a GPU, and float32 on a CPU.
        base: the folder of the model that adapters were trained on, where it is neither what the adapter names nor the
            model before.
    """

    device: torch.device
    dtype: torch.dtype | None = None
    base: str | os.PathLike[str] | None = None


def check_folder(given: str | os.PathLike[str], label: str) -> Path:
    """Return a folder that holds a model or an adapter, or say why it is none."""
    path = as_path(given)
    if not path.is_dir():
        kind = "is a file" if path.exists() else "is no folder here, and nothing is fetched"
        raise ConfigurationError(
            f"{label} {str(path)!r} {kind}; expected a folder that save_pretrained wrote, with {_CONFIG}, weights and "
            "tokenizer. Download the model first, and give the folder that it is in."
        )
    if not is_adapter(path) and not (path / _CONFIG).is_file():
        there = ", ".join(sorted(each.name for each in path.iterdir())[:5]) or "nothing"
        inner = next((each.name for each in sorted(path.iterdir()) if (each / _CONFIG).is_file()), None)
        what_to_do = f"Did you mean {str(path / inner)!r}?" if inner else "Give the folder of the model itself."
        raise ConfigurationError(
            f"{label} {str(path)!r} has neither {_CONFIG} nor {ADAPTER_CONFIG}; it has {there}. {what_to_do}"
        )
    return path


def load_model(path: Path, label: str, loading: Loading, before: Path | None = None) -> nn.Module:
    """Return the causal language model of a folder, in eval mode; an adapter is put on its base.

    Args:
        path: a folder that was checked.
        label: what the model is called in messages.
        loading: how.
        before: the folder of the model before, which is an adapter's base where it names no other.

    Raise ConfigurationError if an adapter's base is not there, and ModelError if the model cannot be loaded whole.
    """
    if not is_adapter(path):
        return _load_whole(path, label, loading)
    base = _base_of(path, label, loading.base, before)
    model = _load_whole(base, f"The base of {label}", loading)
    peft = _imported("peft", f"{label} {str(path)!r} is an adapter, and to load it peft is needed: pip install peft")
    try:
        adapted: nn.Module = peft.PeftModel.from_pretrained(model, str(path), local_files_only=True)
    except Exception as error:  # whatever PEFT and what it uses may raise
        raise ModelError(
            f"{label} {str(path)!r} is an adapter that cannot be put on {str(base)!r} ({_first_line(error)}). Give the "
            "base that it was trained on, --base FOLDER."
        ) from error
    return adapted.eval()


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a folder, or ``None`` if there is none in it.

    Raise ModelError if there is one that cannot be loaded.
    """
    if not any((path / name).is_file() for name in _VOCABULARIES):
        return None
    transformers = _transformers(f"{str(path)!r} holds a tokenizer of Hugging Face's")
    with _quiet(transformers):
        try:
            return transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except Exception as error:  # whatever transformers and what it uses may raise
            raise ModelError(
                f"The tokenizer in {str(path)!r} cannot be loaded ({_first_line(error)}). Copy it there again from the "
                "model that it belongs to."
            ) from error


def _load_whole(path: Path, label: str, loading: Loading) -> nn.Module:
    transformers = _transformers(f"{label} {str(path)!r} is a model of Hugging Face's")
    dtype = loading.dtype or ("auto" if loading.device.type == "cuda" else torch.float32)
    with _quiet(transformers):
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                str(path), local_files_only=True, dtype=dtype, output_loading_info=True
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever transformers and what it uses may raise
            raise ModelError(
                f"{label} {str(path)!r} cannot be loaded as a causal language model ({_first_line(error)}). Expected a "
                "whole folder that save_pretrained wrote."
            ) from error
    for key, what in (("missing_keys", "are missing"), ("mismatched_keys", "have other shapes than its config says")):
        if wrong := sorted(str(each) for each in info.get(key, ())):
            raise ModelError(
                f"{label} {str(path)!r} is not whole: {len(wrong)} of its weights {what}, such as {wrong[0]}, and "
                "would be drawn by chance. Is the config of another model, or a file of weights missing?"
            )
    found: nn.Module = model
    try:
        return found.to(loading.device).eval()
    except ValueError:  # a quantised model lies where it was loaded to
        return found.eval()


def _base_of(path: Path, label: str, given: str | os.PathLike[str] | None, before: Path | None) -> Path:
    """Return the folder of an adapter's base: what was given, what the adapter names if that is here, or before."""
    if given is not None:
        return check_folder(given, "The base")
    try:
        config = json.loads((path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        named = config.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{str(path / ADAPTER_CONFIG)!r} cannot be read ({error}). Use another copy.") from error
    if isinstance(named, str) and named and (as_path(named) / _CONFIG).is_file():
        return as_path(named)
    if before is not None and not is_adapter(before):
        return before
    raise ConfigurationError(
        f"{label} {str(path)!r} is an adapter of {named!r}, which is no folder here, and nothing is fetched. Give the "
        "folder of its base: --base FOLDER."
    )


def _transformers(what: str) -> Any:
    return _imported("transformers", f"{what}, and to load it transformers is needed: {_INSTALL}")


def _imported(package: str, message: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(message) from error


_INSTALL = "pip install 'anchorhold[huggingface]'"


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers' bars and lines off the terminal; what matters of them is refused."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
