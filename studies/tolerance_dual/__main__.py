"""Two controllers of a strength and two strengths to begin with, on the four settings of the study of tolerances.

    python -m studies.tolerance_dual toy
    python -m studies.tolerance_dual choose ROWS
    python -m studies.tolerance_dual digits ROWS
    python -m studies.tolerance_dual pack DATA FOLDER --corpus CORPUS
    python -m studies.tolerance_dual run ROWS --data FOLDER --size small --part 1/2
    python -m studies.tolerance_dual card FOLDER OUT
    python -m studies.tolerance_dual report ROWS...

``toy`` runs both controllers on plants whose answer is known. ``choose`` tries multiples and clips of dual ascent on
permuted digits, on seeds that nothing else is reported of, and ``digits`` makes the comparison there. ``pack`` writes
the pieces of data of the other three settings, ``run`` makes their trials (several processes may share ROWS), and
``card`` makes those of the large networks, all processes side by side. ``report`` adds ROWS to what is in
results/tolerance-dual.json, and writes the page, and with ``--readme`` the answer and the cost. What is in ROWS is not
run again.
"""

import argparse
import functools
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import anchorhold
from benchmarks.language import lines
from benchmarks.language.training import machine
from studies.tolerance import digits
from studies.tolerance_dual import packing, report, toy, trials
from studies.tolerance_dual.controllers import Follower, followers
from studies.tolerance_dual.trials import Networks, Trial

Part = tuple[int, int]
"""The k-th of n processes side by side."""
LEARNED = Path("build/tolerance-dual")
"""Where networks lie that have learned their first task."""
NAMES = tuple(setting.name for setting in trials.SIZES["large"])
TEXT = "english-python"


def make(
    rows: Path, size: str, wanted: Iterable[Trial], one: Callable[[Trial], dict[str, Any]], device: torch.device
) -> None:
    """Make the trials that there are no lines of."""
    known = {str(row["trial"]) for row in lines.read(rows) if row["size"] == size}
    for trial in wanted:
        if trial.key in known:
            continue
        found = one(trial)
        lines.add(rows, {"trial": asdict(trial), "size": size, **found, "machine": machine(device)})
        told = found.get("back", found)
        print(*asdict(trial).values(), told, f"{found.get('seconds', 0.0):.1f} s", flush=True)


def on_digits(rows: Path, seeds: range, chosen: Iterable[Follower], part: Part) -> None:
    """Make the trials on permuted digits of one of several processes."""
    first = functools.cache(digits.first_task)
    wanted = list(trials.digit_trials(seeds, list(chosen)))[part[0] - 1 :: part[1]]
    make(rows, "full", wanted, lambda trial: trials.run_digits(trial, first(trial.seed)), torch.device("cpu"))


def run(rows: Path, data: Path, size: str, names: Sequence[str], part: Part) -> None:
    """Make the trials of one of several processes with pictures and text."""
    settings = {setting.name: setting for setting in trials.SIZES[size] if setting.name in names}
    networks = Networks(data, LEARNED / size)
    wanted = [trial for setting in settings.values() for trial in trials.trials(setting)]
    k, n = part
    make(rows, size, wanted[k - 1 :: n], lambda trial: networks.run(trial, settings[trial.setting]), networks.device)


def learn(data: Path, size: str, names: Sequence[str], part: Part) -> None:
    """Have the networks of one of several processes learn their first tasks."""
    wanted = [(each, seed) for each in trials.SIZES[size] if each.name in names for seed in each.seeds]
    k, n = part
    networks = Networks(data, LEARNED / size)
    for setting, seed in wanted[k - 1 :: n]:
        networks.first(setting, seed)


def card(data: Path, out: Path, size: str, names: Sequence[str], processes: int) -> None:
    """Make the trials of some settings: of pictures by so many processes, of text by 2 and then 4, digits by 6."""
    began = time.perf_counter()
    rows = out / "rows.jsonl"
    text = [TEXT] if TEXT in names else []
    pictures = [name for name in NAMES if name in names and name != TEXT]
    teaching = _side_by_side("learn", rows, 2, _about(data, size, text)) if text else []
    running = []
    if trials.DIGITS in names and size == "large":  # digits have one size, which takes minutes of several processors
        running += _side_by_side("choose", rows, 2) + _side_by_side("digits", rows, 4)
    if pictures:
        _finish(_side_by_side("learn", rows, processes, _about(data, size, pictures)))
        running += _side_by_side("run", rows, processes, _about(data, size, pictures))
    _finish(teaching)
    print(f"first tasks after {time.perf_counter() - began:.0f} s", flush=True)
    if text:
        running += _side_by_side("run", rows, 4, _about(data, size, text))
    _finish(running)
    print(f"{len(lines.read(rows))} rows after {time.perf_counter() - began:.0f} s", flush=True)


def _about(data: Path, size: str, names: Sequence[str]) -> list[str]:
    return ["--data", str(data), "--size", size, "--settings", *names]


def _side_by_side(what: str, rows: Path, processes: int, given: Sequence[str] = ()) -> "list[subprocess.Popen[bytes]]":
    own = [sys.executable, "-m", "studies.tolerance_dual", what, str(rows), *given]
    parts = [f"{k}/{processes}" for k in range(1, processes + 1)]
    return [subprocess.Popen([*own, "--part", part]) for part in parts]  # noqa: S603 (this program itself)


def _finish(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("A process has failed; what it says stands above. The same command goes on.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is asked for."""
    options = _options(arguments)
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # what guards tell of is what is compared
    torch.set_num_threads(1)
    if options.what == "toy":
        print("\n".join(toy.table()))
    elif options.what == "choose":
        on_digits(options.rows, trials.CHOOSING, trials.candidates(), options.part)
    elif options.what == "digits":
        on_digits(options.rows, trials.SEEDS, followers(), options.part)
    elif options.what == "pack":
        if TEXT in options.settings and options.corpus is None:
            raise SystemExit(f"The setting {TEXT} needs --corpus, or leave it out: --settings split-cifar …")
        packing.pack(options.data, options.corpus, options.folder, options.one_in, options.settings)
    elif options.what == "card":
        card(options.folder, options.out, options.size, options.settings, options.processes)
    elif options.what == "report":
        new = [row for path in options.rows for row in lines.read(path)]
        print(report.write(options.results, report.known(options.results) + new, options.readme))
    elif options.what == "learn":
        learn(options.data, options.size, options.settings, options.part)
    else:
        run(options.rows, options.data, options.size, options.settings, options.part)


def _part(given: str) -> Part:
    k, n = map(int, given.split("/"))
    return k, n


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=report.COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("toy")
    for name in ("choose", "digits", "learn", "run"):
        command = commands.add_parser(name)
        command.add_argument("rows", type=Path, help="a file of lines, one for each trial")
        command.add_argument("--part", type=_part, default=(1, 1), help="k/n: the k-th of n processes side by side")
        if name in ("learn", "run"):
            command.add_argument("--data", type=Path, required=True, help="what pack wrote")
            command.add_argument("--size", choices=list(trials.SIZES), default="small")
            command.add_argument("--settings", nargs="+", choices=NAMES, default=NAMES, help="only these")
    packed = commands.add_parser("pack")
    packed.add_argument("data", type=Path, help="the folder that holds MNIST and CIFAR")
    packed.add_argument("folder", type=Path, help="where the pieces go")
    packed.add_argument("--corpus", type=Path, help="what python -m benchmarks.language prepare made")
    packed.add_argument("--settings", nargs="+", choices=NAMES, default=NAMES, help="only these")
    packed.add_argument("--one-in", type=int, default=1, help="take so much less, for a rehearsal")
    card = commands.add_parser("card")
    card.add_argument("folder", type=Path, help="what pack wrote")
    card.add_argument("out", type=Path, help="a folder for rows.jsonl")
    card.add_argument("--size", choices=list(trials.SIZES), default="large")
    every = (*NAMES, trials.DIGITS)
    card.add_argument("--settings", nargs="+", choices=every, default=every, help="only these")
    card.add_argument("--processes", type=int, default=6, help="of pictures, side by side (default: %(default)s)")
    told = commands.add_parser("report")
    told.add_argument("rows", type=Path, nargs="*", help="files of lines, added to those that the page is made of")
    told.add_argument("--results", type=Path, default=Path("results"), help="(default: %(default)s)")
    told.add_argument("--readme", type=Path, help="the study's, to write the answer and the cost into")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
