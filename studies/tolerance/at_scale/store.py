"""Lines of one file, of which many processes each write their own: what is there is not run again."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.language import lines
from benchmarks.language.training import machine
from studies.tolerance.at_scale.trials import Trial

_HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

T = TypeVar("T")


def read(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return what was found so far, by the key of its trial; what a killed process left of a line is left out."""
    found = {}
    for row in lines.read(path):
        try:
            found[Trial(**row["trial"]).key] = row
        except (KeyError, TypeError):
            print(f"{path}: left out what is no trial: {str(row)[:60]!r}", flush=True)
    return found


def add(path: Path, trial: Trial, found: dict[str, Any]) -> None:
    """Write what came of a trial."""
    lines.add(path, {"trial": asdict(trial), **found, "machine": machine(_HERE)})


def part_of(every: list[T], part: tuple[int, int]) -> list[T]:
    """Return what one of several processes does: the k-th, (k + n)-th, … of all, k counting from 1."""
    k, n = part
    return every[k - 1 :: n]
