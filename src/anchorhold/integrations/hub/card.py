"""The card of shared importance: what it is, what it was measured from, and how it is used."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

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
