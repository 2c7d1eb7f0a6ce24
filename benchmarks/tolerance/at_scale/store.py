"""Lines of one file, of which many processes each write their own: what is there is not run again."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.tolerance.at_scale.trials import Trial

T = TypeVar("T")


def read(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return what was found so far, by the key of its trial; what a killed process left of a line is left out."""
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            found[Trial(**row["trial"]).key] = row
        except (json.JSONDecodeError, KeyError, TypeError):
            print(f"{path}: left out what is no whole line: {line[:60]!r}", flush=True)
    return found


def add(path: Path, trial: Trial, found: dict[str, Any]) -> None:
    """Write a line, at once: processes side by side do not cut into each other's, and one that was cut ends here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"trial": asdict(trial), **found}) + "\n"
    with path.open("ab") as file:
        end = file.tell()
        whole = not end or path.read_bytes()[-1:] == b"\n"
        os.write(file.fileno(), (line if whole else "\n" + line).encode())


def part_of(every: list[T], part: tuple[int, int]) -> list[T]:
    """Return what one of several processes does: the k-th, (k + n)-th, … of all, k counting from 1."""
    k, n = part
    return every[k - 1 :: n]
