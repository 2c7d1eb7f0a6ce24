"""Repositories of Hugging Face's hub: what is asked of them, with every refusal in our own words, and their cards.

A card says what shared importance is, what it was measured from, and how it is used.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anchorhold.errors import MissingExtraError, StateError

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""The name of a repository, ``user/name``."""


def downloaded(source: str, names: Mapping[str, str | None], **given: Any) -> Path:
    """Return the folder that files of a repository were downloaded into, or were already.

    Args:
        source: the repository.
        names: of the files, each with what version 0.1.0 called it, which serves where there is none of that name.
        given: as for ``hf_hub_download``.

    What can be no repository's name is refused before the hub is asked, which takes its time where there is none.
    """
    what = "is a file" if Path(source).exists() else "is no folder here"
    expected = "Give a folder that save_pretrained() wrote, or the name of a repository, 'user/name'."
    if Path(source).exists() or not _NAME.fullmatch(source):
        raise StateError(f"{source!r} {what}, and no name of a repository. {expected}")
    hub = library()
    with refusals_told(f"{source!r} {what}, and could not be had from the hub", expected):
        here = [_download(hub, source, *of_file, **given).parent for of_file in names.items()]
    return here[0]  # that of one commit, which all are of


def _download(hub: Any, source: str, name: str, earlier: str | None, **given: Any) -> Path:
    """Return where a file of a repository lies, or the one of its earlier name."""
    try:
        return Path(hub.hf_hub_download(source, name, **given))
    except hub.errors.EntryNotFoundError:
        if earlier is None:
            raise
        with contextlib.suppress(hub.errors.EntryNotFoundError):
            return Path(hub.hf_hub_download(source, earlier, **given))
        raise


def has_card_of_others(api: Any, repo: str, card: str, revision: str | None) -> bool:
    """Whether a repository has a card already, and one that is not of shared importance."""
    if not api.file_exists(repo, card, revision=revision):
        return False
    return not is_own(Path(api.hf_hub_download(repo, card, revision=revision)).read_text("utf-8", "replace"))


@contextlib.contextmanager
def refusals_told(failed: str, advice: str) -> Iterator[None]:
    """Say what failed, and what to do, where the hub or its library refuse something or there is no connection."""
    # Refused connections are errors of the library that it speaks HTTP by, from which its own derive.
    kinds = (OSError, ValueError, *library().errors.HfHubHTTPError.__bases__)
    try:
        yield
    except kinds as error:
        raise StateError(f"{failed} ({type(error).__name__}: {error}). {advice}") from error


def library() -> Any:
    """Return Hugging Face's own library."""
    try:
        import huggingface_hub  # noqa: PLC0415
        import huggingface_hub.errors  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            "The hub needs huggingface_hub: pip install 'anchorhold[hub]'. A folder needs nothing."
        ) from error
    return huggingface_hub


# Cards

_CARD = """---
{front}
---

# Importance of {whose}

What each of {weights:,} weights of `{whose}` is worth for what the model knows, measured by anchorhold. A guard made of
it holds the model while it learns something else.

| | |
|---|---|
| measured from | {measured_from} |
| measure | `{measure_name}`: `{measure}` |
| form | `{form}` |
| tasks | {tasks} |
| parameters | {parameters} |

```python
from anchorhold.integrations.hub import from_pretrained

guard = from_pretrained("{repo}", model, strength=...)
guard.attach(optimizer)
```

The files hold importance and the weights that it was measured at. They hold none of the data.
"""


_OURS = "library_name: anchorhold"
"""The line of a card's front matter by which it is known."""
_EARLIER = "library_name: holdfast"
"""That line as version 0.1.0 wrote it."""


def is_own(text: str) -> bool:
    """Whether a text is a card of shared importance, and not that of a model, say."""
    first, *lines = text.splitlines() or [""]
    front = list(itertools.takewhile(lambda line: line.strip() != "---", lines))
    return first.strip() == "---" and (_OURS in front or _EARLIER in front)


def card(settings: Mapping[str, Any], repo: str) -> str:
    """Return a card, given what a guard is made by, and the name of the repository that others get it from."""
    base = settings["base_model"]
    front = [_OURS, "tags:", "- importance", "- continual-learning"]
    front += [f"base_model: {json.dumps(base)}"] if base else []
    names = settings["parameters"]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return _CARD.format(
        front="\n".join(front),
        whose=base or settings["model"],
        weights=settings["weights"],
        measured_from=" ".join(settings["measured_from"].replace("|", "\\|").split()),
        measure_name=settings["measure_name"],
        measure=json.dumps(settings["measure"]),
        form=json.dumps(settings["form"]),
        tasks=settings["tasks"],
        parameters=", ".join(f"`{name}`" for name in names[:3]) + more,
        repo=repo,
    )
