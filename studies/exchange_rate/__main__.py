"""Run ladders of exchange rates side by side, and write the page of what was found."""

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.language.corpus import load
from benchmarks.language.lines import add, claim, claims_of
from benchmarks.language.lines import read as read_lines
from studies.exchange_rate import report, texts
from studies.exchange_rate.settings import REHEARSED, STUDIED, Ladder, ladders
from studies.exchange_rate.training import Learner, Line, climb, learn_old
from studies.pretrained.report import read as read_rows

WAIT = 0.5
"""Seconds between looks for a network that another process trains."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for."""
    options = _options(arguments)
    commands = {"texts": _texts, "train": _train, "work": _work, "pack": _pack, "report": _report}
    commands[options.command](options)


def _texts(options: argparse.Namespace) -> None:
    texts.prepare(options.cache)


def _train(options: argparse.Namespace) -> None:
    """Run workers side by side until all is done or the time is up. A second call goes on where the first ended."""
    for left in claims_of(options.rows).glob("*"):  # of workers that were stopped
        left.unlink()
    command = [sys.executable, "-m", "studies.exchange_rate", "work", *options.given]
    workers = [subprocess.Popen(command) for _ in range(options.workers)]  # noqa: S603
    ended = [worker.wait() for worker in workers]
    print(f"{len(read_lines(options.rows))} rows in {options.rows}; workers ended with {ended}", flush=True)


def _work(options: argparse.Namespace) -> None:
    """Train the networks, then climb the ladders, that no other process has begun."""
    began = time.perf_counter()

    def is_over() -> bool:
        return bool(time.perf_counter() - began > options.seconds)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    corpus = load(options.corpus).to(device)
    options.networks.mkdir(parents=True, exist_ok=True)
    planned = list(ladders(REHEARSED if options.rehearsal else STUDIED))
    for base in dict.fromkeys(ladder.base for ladder in planned):
        path = options.networks / f"{base.name}.safetensors"
        if not is_over() and not path.is_file() and claim(options.rows, base.name):
            learn_old(base, corpus, device, path)
            print(f"{time.perf_counter() - began:6.0f} s learned {base.name}", flush=True)
    for ladder in planned:
        if not is_over() and claim(options.rows, ladder.name):
            path = options.networks / f"{ladder.base.name}.safetensors"
            while not path.is_file() and not is_over():
                time.sleep(WAIT)
            if path.is_file():
                try:
                    _climb(options, ladder, Learner(ladder.base, ladder.way, corpus, device, path), is_over)
                except Exception:  # noqa: BLE001 (whatever one ladder has met, the others go on)
                    traceback.print_exc()
                print(f"{time.perf_counter() - began:6.0f} s {ladder.name}", flush=True)


def _climb(options: argparse.Namespace, ladder: Ladder, learner: Learner, is_over: Callable[[], bool]) -> None:
    done: dict[float, Line] = {}
    for line in read_lines(options.rows):
        if line["network"] == learner.digest and line["run"] == ladder.run(line["of"]["kappa"]).name:
            done[line["of"]["kappa"]] = line
    climb(ladder, learner, done, partial(add, options.rows), is_over)


def _pack(options: argparse.Namespace) -> None:
    path = report.pack(options.given_rows, options.rows)
    print(f"{path}: {path.stat().st_size} bytes, {len(read_rows(path))} rows")


def _report(options: argparse.Namespace) -> None:
    print(report.write(options.page, options.readme, read_rows(options.rows), read_rows(options.pretrained)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.exchange_rate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("texts", help="make the corpus")
    prepare.add_argument("cache", type=Path, help="the folder of the study of pretrained models, where packages lie")
    for name, said in (("train", "run all that is missing, side by side"), ("work", "one process of train's")):
        command = commands.add_parser(name, help=said)
        command.add_argument("corpus", type=Path, help="what texts has made")
        command.add_argument("--rows", type=Path, default=Path("build/exchange-rate/rows.jsonl"))
        command.add_argument("--networks", type=Path, default=Path("build/exchange-rate/networks"))
        command.add_argument("--workers", type=int, default=4, help="(default: %(default)s)")
        command.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so many")
        command.add_argument("--rehearsal", action="store_true", help="tiny networks, whose numbers mean nothing")
    pack = commands.add_parser("pack", help="write rows into one packed file")
    pack.add_argument("given_rows", type=Path, nargs="+", help="files of rows")
    page = commands.add_parser("report", help="write the page")
    page.add_argument("--page", type=Path, default=Path("results/exchange-rate.md"), help="(default: %(default)s)")
    page.add_argument("--readme", type=Path, default=Path("studies/exchange_rate/README.md"), help="for the answer")
    page.add_argument("--pretrained", type=Path, default=report.PRETRAINED, help="(default: %(default)s)")
    for command in (pack, page):
        command.add_argument("--rows", type=Path, default=report.ROWS, help="(default: %(default)s)")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(arguments)
    options.given = arguments[1:]
    return options


if __name__ == "__main__":
    main()
