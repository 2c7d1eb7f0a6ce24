"""Tolerances against ten searched strengths: Permuted MNIST, Split CIFAR, and English with Python after it.

Commands, of which ``learn`` and ``run`` may run in several processes side by side, all with the same STORE:

    python -m studies.tolerance.at_scale learn STORE --data-dir DATA --corpus CORPUS --part 1/12
    python -m studies.tolerance.at_scale run STORE --data-dir DATA --corpus CORPUS --part 1/12 --seconds 500
    python -m studies.tolerance.at_scale watching STORE --data-dir DATA --corpus CORPUS
    python -m studies.tolerance.at_scale report STORE

``learn`` teaches networks their first tasks, ``run`` makes the trials (and learns first what is missing), with
``--candidates`` those that damping and start are chosen by, ``watching`` measures what looking costs, alone on its
device, and ``report`` writes results/tolerance-at-scale.md and .json from the lines in STORE. What is in STORE is not
run again. With ``--rehearse`` all is of a size for a CPU, and pictures are noise. ``digits STORE`` tries the same
candidates on permuted digits, on a CPU.

Estimated for one H200, at 3 ms a held step of a small network and 45 ms of the GPT: 15 first tasks of together 7
minutes, and 472 trials of together 47 (180 of Permuted MNIST, 240 of Split CIFAR, 52 of text). Small networks wait for
the host, so that twelve processes side by side are 4 to 6 times as fast: 12 to 15 minutes in all.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import anchorhold
from anchorhold_lab.data.locations import Datasets
from benchmarks.language import corpus, lines
from benchmarks.language.training import Device
from studies.tolerance.at_scale import choosing, held, images, report, store, text
from studies.tolerance.at_scale.trials import SETTINGS, Setting, Study, Trial

LINES, COSTS = "trials.jsonl", "watching.jsonl"


@dataclass
class Laboratory:
    """Makes networks of each seed; the latest is kept, since trials of one follow each other."""

    options: argparse.Namespace
    latest: tuple[tuple[str, int], held.Subject] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    _make_text: Callable[[Setting, int], held.Subject] | None = None
    _make_pictures: Callable[[Setting, int], held.Subject] | None = None

    def subject(self, setting: Setting, seed: int) -> held.Subject:
        """Return a network of a seed, with its tasks."""
        key = setting.name, seed
        if self.latest is None or self.latest[0] != key:
            self.latest = None  # before another is made: both may be large
            self.latest = key, self._maker(setting)(setting, seed)
        return self.latest[1]

    def first(self, setting: Setting, seed: int) -> Path:
        """Return where the network lies that has learned the first task; it learns it now if there is none."""
        path: Path = self.options.store / f"{setting.name}-{seed}.safetensors"
        if not path.exists():
            began = time.perf_counter()
            self.latest = None  # a network that has learned something since is no new one
            self.subject(setting, seed).learn_first(path)
            print(f"{setting.name}, seed {seed}: first task in {time.perf_counter() - began:.1f} s", flush=True)
        return path

    def _maker(self, setting: Setting) -> Callable[[Setting, int], held.Subject]:
        if setting.language is not None:
            if self._make_text is None:
                device = Device(self.device)
                loaded = corpus.load(self.options.corpus).to(self.device)
                self._make_text = lambda setting, seed: text.Text(setting, seed, loaded, device)
            return self._make_text
        if self._make_pictures is None:
            datasets = images.random_datasets() if self.options.rehearse else Datasets(self.options.data_dir)
            self._make_pictures = lambda setting, seed: images.Pictures(setting, seed, datasets, self.device)
        return self._make_pictures


def learn(study: Study, laboratory: Laboratory, options: argparse.Namespace) -> bool:
    """Teach first tasks until all of this part are learned, or the time is up."""
    began = time.perf_counter()
    for setting, seed in store.part_of(list(study.networks()), options.part):
        if time.perf_counter() - began > options.seconds:
            return False
        laboratory.first(setting, seed)
    return True


def run(study: Study, laboratory: Laboratory, options: argparse.Namespace) -> bool:
    """Make the trials of this part that have not been made, until all are or the time is up."""
    settings = {setting.name: setting for setting in study.settings}

    def one(trial: Trial) -> dict[str, Any]:
        setting = settings[trial.setting]
        first = laboratory.first(setting, trial.seed)
        return held.run(trial, laboratory.subject(setting, trial.seed), first)

    return _make([trial for _, trial in _wanted(study, options)], one, options)


def _make(trials: list[Trial], one: Callable[[Trial], dict[str, Any]], options: argparse.Namespace) -> bool:
    """Make those of this part's trials that there are no lines of, until all are made or the time is up."""
    began = time.perf_counter()
    path = options.store / LINES
    known = store.read(path)
    for trial in store.part_of(trials, options.part):
        if trial.key in known:
            continue
        if time.perf_counter() - began > options.seconds:
            return False
        found = one(trial)
        store.add(path, trial, found)
        ends = found.get("back") or found.get("end") or "diverged"
        print(f"{' '.join(map(str, trial.key))}: {ends}, {found.get('seconds', 0.0):.1f} s", flush=True)
    return True


def watching(study: Study, laboratory: Laboratory, options: argparse.Namespace) -> bool:
    """Measure what looking costs: runs with a tolerance and with a strength, turn by turn on one network."""
    for setting in study.settings:
        seed, form, optimiser = setting.seeds[-1], "diagonal", setting.optimisers[0]
        middle = setting.strengths[form][len(setting.strengths[form]) // 2]
        about = (setting.name, seed, form, optimiser)
        pair = (Trial(*about, "strength", middle), Trial(*about, "tolerance", setting.tolerances[0]))
        first = laboratory.first(setting, seed)
        taken: dict[str, list[float]] = {trial.kind: [] for trial in pair}
        for turn in range(1 + options.turns):
            for trial in pair if turn % 2 else reversed(pair):
                found = held.run(trial, laboratory.subject(setting, seed), first)
                if turn:  # before the first, all is loaded
                    taken[trial.kind].append(found["seconds"])
        lines.add(options.store / COSTS, {"setting": setting.name, **taken})
        print(setting.name, taken, flush=True)
    return True


def _wanted(study: Study, options: argparse.Namespace) -> list[tuple[Setting, Trial]]:
    """Return the trials that were asked for."""
    if options.candidates:
        return list(study.candidates())
    return [
        (setting, trial)
        for setting, trial in study.trials()
        if options.kind in (None, trial.kind) and options.form in (None, trial.form)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is asked for."""
    options = _options(arguments)
    study = Study.of(tuple(options.settings), rehearse=options.rehearse)
    if options.what == "report":
        rows = list(store.read(options.store / LINES).values())
        if not rows:
            raise SystemExit(f"There is nothing in {options.store / LINES}. First: {report.COMMAND} run ...")
        costs = lines.read(options.store / COSTS)
        print(f"{len(rows)} trials; {report.write(options.results, study, rows, costs)}")
        return
    needs_text = options.what != "digits" and any(setting.language is not None for setting in study.settings)
    if options.corpus is None and needs_text:
        raise SystemExit("The setting english-python needs --corpus, or leave it out: --settings permuted-mnist …")
    warnings.simplefilter(
        "ignore", anchorhold.AnchorholdWarning
    )  # strengths that are too much are among what is searched
    options.store.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if options.what == "digits":
        done = _make(list(choosing.digit_trials()), choosing.run_on_digits, options)
    else:
        done = {"learn": learn, "run": run, "watching": watching}[options.what](study, Laboratory(options), options)
    print("done" if done else "time is up: the same command goes on", flush=True)


def _part(given: str) -> tuple[int, int]:
    """Return k and n of "k/n"."""
    try:
        k, n = map(int, given.split("/"))
    except ValueError:
        k, n = 0, 0
    if not 1 <= k <= n:
        raise argparse.ArgumentTypeError(f"{given!r}: expected k/n with 1 ≤ k ≤ n, such as 3/12")
    return k, n


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=report.COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("learn", "run", "watching", "digits", "report"):
        command = commands.add_parser(name)
        command.add_argument("store", type=Path, help="a folder for networks and lines")
        command.add_argument("--rehearse", action="store_true", help="at a size for a CPU; its numbers mean nothing")
        names = [setting.name for setting in SETTINGS]
        command.add_argument("--settings", nargs="+", choices=names, default=names, help="only these")
        if name == "report":
            command.add_argument("--results", type=Path, default=Path("results"), help="(default: %(default)s)")
            continue
        command.add_argument("--data-dir", type=Path, help="the folder that holds MNIST and CIFAR")
        command.add_argument("--corpus", type=Path, help="what python -m benchmarks.language prepare made")
        command.add_argument("--part", type=_part, default=(1, 1), help="k/n: the k-th of n processes side by side")
        command.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after so many")
        if name == "watching":
            command.add_argument("--turns", type=int, default=3, help="how often each is run (default: %(default)s)")
        if name == "run":
            command.add_argument("--kind", choices=("tolerance", "strength"), help="only these")
            command.add_argument("--form", choices=("diagonal", "rotated"), help="only these")
            command.add_argument("--candidates", action="store_true", help="dampings and starts, on seeds to choose by")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
