"""What studies have found, a line each in one file that processes may share: what is there is not run again."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """Return what was found so far; what a killed process has left of a line is left out, and told of."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: left out what is no whole line: {line[:60]!r}", flush=True)
    return found


def add(path: Path, found: Mapping[str, Any]) -> None:
    """Write a line, at once: processes side by side do not cut into each other's, and one that was cut ends here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(found) + "\n"
    with path.open("ab") as file:
        whole = not file.tell() or path.read_bytes()[-1:] == b"\n"
        os.write(file.fileno(), (line if whole else "\n" + line).encode())
