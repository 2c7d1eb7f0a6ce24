"""Ways to take work away from a hold's pull: on a quadratic, on digits, and at scale on a card.

    python -m studies.fewer_pulls quadratic ROWS
    python -m studies.fewer_pulls digits ROWS --part 1/2
    python -m studies.fewer_pulls core ROWS
    python -m studies.fewer_pulls costs ROWS --data FOLDER
    python -m studies.fewer_pulls run ROWS --data FOLDER --settings permuted-mnist --part 1/4
    python -m studies.fewer_pulls card ROWS --data FOLDER --seconds 200
    python -m studies.fewer_pulls report ROWS...

``core`` times steps of a network of 2,000 units on one core. FOLDER is what ``python -m studies.tolerance_dual pack``
wrote. ``card`` makes as much of ``run`` as there is time for, all processes side by side, and digits beside it.
``report`` writes results/fewer-pulls.md and .json. What is in ROWS is not run again.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import anchorhold
from benchmarks.language import lines
from benchmarks.language.training import machine
from studies.fewer_pulls import costs, digits, quadratic, report, scale
from studies.tolerance.at_scale.trials import Setting

LEARNED = Path("build/fewer-pulls")
"""Where networks lie that have learned their first task."""
PICTURES = ("permuted-mnist", "split-cifar")
TEXT = "english-python"


def make(rows: Path, kind: str, wanted: Iterable[tuple[str, Callable[[], dict[str, Any]]]], until: float) -> None:
    """Make the rows that are not there, until a moment."""
    known = {row["key"] for row in lines.read(rows) if row["kind"] == kind}
    for key, one in wanted:
        if key in known:
            continue
        if time.time() > until:
            print("No time is left.", flush=True)
            return
        lines.add(rows, {"kind": kind, "key": key, **one()})
        print(kind, key, flush=True)


def on_digits(options: argparse.Namespace, until: float) -> None:
    """Make the runs on permuted digits of one of several processes."""
    k, n = options.part
    wanted = [(str(trial), trial.run) for trial in digits.trials()][k - 1 :: n]
    make(options.rows, "digits", wanted, until)


def at_scale(options: argparse.Namespace, until: float) -> None:
    """Make the runs with pictures and text of one of several processes; as many as can be have the same seed."""
    k, n = options.part
    settings = [setting for setting in scale.SIZES[options.size] if setting.name in options.settings]
    networks = scale.Networks(options.data, LEARNED / options.size)
    device = machine(networks.device)
    for setting in settings:
        seed = (k - 1) % len(setting.seeds)
        mates = [other for other in range(n) if other % len(setting.seeds) == seed]
        own = [trial for trial in scale.trials(setting) if trial.seed == setting.seeds[seed]]
        mine = own[mates.index(k - 1) :: len(mates)]
        wanted = [(trial.key, partial(_row, networks, setting, trial, device)) for trial in mine]
        make(options.rows, options.size, wanted, until)


def _row(networks: scale.Networks, setting: Setting, trial: scale.Trial, device: str) -> dict[str, Any]:
    found = scale.run(trial, networks.subject(setting, trial.seed))
    return {**asdict(trial), "way": trial.way._asdict(), **found, "machine": device}


def costs_of(options: argparse.Namespace) -> None:
    """Time steps of every setting."""
    networks = scale.Networks(options.data, LEARNED / options.size)
    by_name = {setting.name: setting for setting in scale.SIZES[options.size]}
    for name in options.settings:
        for row in costs.ratios(by_name[name], networks, options.steps):
            lines.add(options.rows, {"kind": "costs", "key": "", **row, "machine": machine(networks.device)})
            print(row, flush=True)


def card(options: argparse.Namespace) -> None:
    """Make as many runs as there is time for: text by four processes, pictures by nine, digits by three."""
    about = ["--data", str(options.data), "--size", options.size, "--seconds", str(options.seconds)]
    running = [_started("run", options.rows, (k, 4), "--settings", TEXT, *about) for k in range(1, 5)]
    running += [_started("run", options.rows, (k, 6), "--settings", PICTURES[0], *about) for k in range(1, 7)]
    running += [_started("run", options.rows, (k, 3), "--settings", PICTURES[1], *about) for k in range(1, 4)]
    running += [_started("digits", options.rows, (k, 3), *about) for k in range(1, 4)]
    codes = [process.wait() for process in running]
    print(f"{len(lines.read(options.rows))} rows, {codes}", flush=True)


def _started(what: str, rows: Path, part: tuple[int, int], *given: str) -> "subprocess.Popen[bytes]":
    own = [what, str(rows), "--part", f"{part[0]}/{part[1]}", *given]
    return subprocess.Popen([sys.executable, "-m", "studies.fewer_pulls", *own])  # noqa: S603 (this program itself)


def _part(given: str) -> tuple[int, int]:
    k, n = map(int, given.split("/"))
    return k, n


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.fewer_pulls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("quadratic", "digits", "core", "costs", "run", "card", "report"))
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows; all but report take one")
    parser.add_argument("--data", type=Path, help="the folder of pictures and text")
    parser.add_argument("--part", type=_part, default=(1, 1), help="k/n: the k-th of n processes side by side")
    parser.add_argument("--settings", nargs="+", default=[*PICTURES, TEXT], help="(default: all)")
    parser.add_argument("--size", choices=tuple(scale.SIZES), default="card", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after so many")
    parser.add_argument("--width", type=int, default=2000, help="of the network of core (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=32, help="of each case in a round of costs (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    until = time.time() + options.seconds
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # of steps that nothing holds: they are pulled here
    torch.set_num_threads(1)
    if options.what == "report":
        print(report.write(options.results, [row for path in options.rows for row in lines.read(path)]))
        return
    (options.rows,) = options.rows
    if options.what == "quadratic":
        make(options.rows, "quadratic", quadratic.wanted(), until)
    elif options.what == "digits":
        on_digits(options, until)
    elif options.what == "core":
        for row in costs.on_a_processor(options.width):
            lines.add(options.rows, {"kind": "costs", "key": "", **row, "machine": machine(torch.device("cpu"))})
    elif options.what == "costs":
        costs_of(options)
    elif options.what == "run":
        at_scale(options, until)
    else:
        card(options)


if __name__ == "__main__":
    main()
