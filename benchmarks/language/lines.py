"""What studies have found, a line each in one file that processes may share: what is there is not run again."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar


class OfANetwork(Protocol):
    """What was found of one network."""

    @property
    def seed(self) -> int: ...
    @property
    def network(self) -> str: ...


Found = TypeVar("Found", bound=OfANetwork)


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


def studies(found: Sequence[Found]) -> list[list[Found]]:
    """Return what was found of each seed's latest network, then of those before: one that had to be trained again is
    another, though it has the same seed."""
    networks: dict[int, list[str]] = {}
    for each in found:
        if each.network not in networks.setdefault(each.seed, []):
            networks[each.seed].append(each.network)
    most = max(map(len, networks.values()), default=0)
    latest = [{names[-1 - back] for names in networks.values() if back < len(names)} for back in range(most)]
    return [[each for each in found if each.network in chosen] for chosen in latest]


def named_networks(found: Sequence[Found]) -> str:
    """Name the networks of a study, each with its seed."""
    named = {each.seed: each.network.rpartition("-")[2] for each in found}
    return ", ".join(f"{network} of seed {seed}" for seed, network in sorted(named.items()))


def add(path: Path, found: Mapping[str, Any]) -> None:
    """Write a line, at once: processes side by side do not cut into each other's, and one that was cut ends here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(found) + "\n"
    with path.open("ab") as file:
        whole = not file.tell() or path.read_bytes()[-1:] == b"\n"
        os.write(file.fileno(), (line if whole else "\n" + line).encode())


def claims_of(rows: Path) -> Path:
    """Return the folder of the claims that processes side by side lay to what they add to the rows."""
    return rows.with_suffix(".claims")


def claim(rows: Path, name: str) -> bool:
    """Claim what is to be run for the rows. Return False if another process has claimed it."""
    folder = claims_of(rows)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
