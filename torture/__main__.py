"""``make torture SECONDS=600``: all that can be tried on what anchorhold keeps and is asked, for as long as given.

Each kind of trial gets its share of the time, in a process of its own. All outcomes are printed as one table, each
defect with the command that makes it again, and written to a folder where that is asked for.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from torture.outcome import RIGHT, Outcome, table

SHARES = {"kills": 0.4, "bit_flips": 0.2, "mutated_files": 0.15, "command_lines": 0.15, "hostile_server": 0.1}
"""What part of the time each kind of trial gets; a kill takes longest, and is what crash safety is about."""


def outcomes_of(kind: str, seconds: float, seed: int) -> list[Outcome]:
    """Run one kind of trial for some seconds, and return what became of each."""
    told = [sys.executable, "-m", f"torture.{kind}", "--seconds", str(seconds), "--seed", str(seed), "--json"]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(told, stdout=subprocess.PIPE, text=True, check=False, env=environment)  # noqa: S603 (itself)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return [Outcome(f"{kind}, as a whole", seed, "TRACEBACK", f"it ended with {done.returncode}, and told nothing")]
    return [Outcome(**json.loads(line)) for line in lines]


def page(found: dict[str, list[Outcome]], seed: int, seconds: float) -> str:
    """Return all outcomes as a page."""
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    defects = Counter(outcome.verdict for outcome in every if outcome.is_defect)
    kills = sum("killed" in outcome.kind for outcome in every)
    faults = sum("a call fails" in outcome.kind for outcome in every)
    said = ", ".join(f"{count} {verdict}" for verdict, count in defects.items()) or "none"
    lines = [
        "# Torture",
        "",
        (
            f"`make torture SECONDS={seconds:g} SEED={seed}`, torch {torch.__version__}: {len(every):,} trials, of "
            f"them {kills:,} kills, {faults:,} calls to the file system that fail and "
            f"{len(every) - kills - faults:,} hostile inputs. Defects: {said}."
        ),
        "",
        f"Right are: {', '.join(RIGHT)}. `python -m torture.KIND --seed S --trials 1` makes one trial again.",
    ]
    for kind, outcomes in found.items():
        lines += ["", f"## {kind}", "", "```", table(outcomes), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all kinds of trials one after the other."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial of each kind (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="a folder to write torture.md to")
    given = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    for kind, share in SHARES.items():
        print(f"{kind}, for {share * given.seconds:.0f} s", flush=True)
        begun = time.monotonic()
        found[kind] = outcomes_of(kind, share * given.seconds, given.seed)
        print(table(found[kind]), f"\nin {time.monotonic() - begun:.0f} s\n", flush=True)
        for outcome in [outcome for outcome in found[kind] if outcome.is_defect][:20]:
            print(f"python -m torture.{kind} --seed {outcome.seed} --trials 1  # {outcome.verdict}: {outcome.detail}")
    text = page(found, given.seed, given.seconds)
    print(text)
    if given.results is not None:
        (given.results / "torture.md").write_text(text, encoding="utf-8")
    return 1 if any(outcome.is_defect for outcomes in found.values() for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
