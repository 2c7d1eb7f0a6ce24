"""Fetch the models and the texts, run recipes side by side, and write the page of what was found."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.language.lines import add, claim, claims_of
from benchmarks.language.lines import read as read_lines
from studies.pretrained import models, recipes, report, texts, tokens, training
from studies.pretrained.losses import evaluate
from studies.pretrained.models import MODELS
from studies.pretrained.recipes import Recipe

OWN_ROWS = 512
"""How many rows a model writes itself."""
CHECKED = 4
"""Documents of a text that ``check`` reads."""


def main(arguments: list[str] | None = None) -> None:
    """Do what the command line asks for."""
    options = _options(arguments)
    commands = {
        "fetch": _fetch,
        "tokens": _tokens,
        "check": _check,
        "unpack": _unpack,
        "write": _write,
        "train": _train,
        "work": _work,
        "again": _again,
        "pack": _pack,
        "report": _report,
    }
    commands[options.command](options)


def _fetch(options: argparse.Namespace) -> None:
    for name in options.models:
        path = models.fetch(MODELS[name], options.cache)
        print(f"{path}: {path.stat().st_size} bytes, sha256 {MODELS[name].sha256}")


def _unpack(options: argparse.Namespace) -> None:
    for name in options.models:
        path = models.unpack(MODELS[name], options.cache / f"{name}.gguf", options.cache)
        print(f"{path}: digest of the weights {models.weights_digest(path)}", flush=True)


def _tokens(options: argparse.Namespace) -> None:
    path = options.cache / "texts.jsonl"
    if not path.is_file():
        texts.prepare(options.cache)
    documents = texts.read(path)
    for name in options.models:
        to = _tokens_path(options, name)
        tokens.encode(documents, models.tokenizer_of(MODELS[name], options.cache), MODELS[name].begin, to)
        found = tokens.load(to)
        sizes = {lesson: len(stream) for lesson, stream in found.train.items()}
        print(f"{to}: digest {found.digest}, tokens to train on {sizes}", flush=True)


def _tokens_path(options: argparse.Namespace, name: str) -> Path:
    path: Path = options.cache / f"{name}-tokens.npz"
    return path


def _own_path(options: argparse.Namespace, name: str) -> Path:
    path: Path = options.cache / f"{name}-own.npz"
    return path


def _check(options: argparse.Namespace) -> None:
    """Print the losses on a few documents of each kept text, and how the model goes on with a sentence."""
    for name in options.models:
        learner = _learner(options, name)
        few = {
            text: tokens.Rows(rows.tokens[:CHECKED].to(learner.device), rows.sizes[:CHECKED])
            for text, rows in learner.tokens.chosen("test", texts.KEPT).items()
        }
        for text, losses in evaluate(learner.model, few).items():
            (nats, _), (bits, _) = losses.per_token(), losses.per_byte()
            print(f"{name} {text}: {nats:.3f} nats a token, {bits:.3f} bits a byte", flush=True)
        tokenizer = models.tokenizer_of(MODELS[name], options.cache)
        start = tokenizer.encode("The capital of Germany is", add_special_tokens=False)
        given = torch.tensor([[MODELS[name].begin, *start]], device=learner.device)
        said = learner.model.generate(given, max_new_tokens=24, do_sample=False, use_cache=True)  # type: ignore[operator]
        print(repr(tokenizer.decode(said[0])), flush=True)


def _learner(options: argparse.Namespace, name: str) -> training.Learner:
    path = models.unpack(MODELS[name], options.cache / f"{name}.gguf", options.cache)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    own = _own_path(options, name)
    written = torch.from_numpy(np.load(own)["rows"]) if own.is_file() else None
    model = models.load(MODELS[name], path, device)
    return training.Learner(
        model,
        tokens.load(_tokens_path(options, name)),
        models.weights_digest(path),
        written,
        MODELS[name].rows_together,
    )


def _write(options: argparse.Namespace) -> None:
    for name in options.models:
        if not _own_path(options, name).is_file():
            learner = _learner(options, name)
            rows = training.write_own_text(learner.model, MODELS[name].begin, OWN_ROWS, seed=0)
            training.save_rows(rows, _own_path(options, name))
        print(_own_path(options, name), flush=True)


def _plan(options: argparse.Namespace, name: str) -> list[Recipe]:
    lessons = options.lessons or texts.LESSONS
    plans = {
        "screening": partial(recipes.screening, name, lessons, options.regimes, options.seeds),
        "rates": partial(recipes.rates, name, lessons),
        "own-text": partial(recipes.own_text, name, lessons),
        "guards": partial(
            recipes.guards, name, lessons, options.regimes, options.seeds, options.exchange_rates, options.forms
        ),
    }
    return [recipe for plan in options.plans for recipe in plans[plan]()]


def _done(rows: Path) -> set[str]:
    return {line["run"] for line in read_lines(rows) if line.get("end")}


def _train(options: argparse.Namespace) -> None:
    """Run workers side by side until the plan is done or the time is up."""
    asked = {recipe.name for name in options.models for recipe in _plan(options, name)}
    for run in asked - _done(options.rows):
        (claims_of(options.rows) / run).unlink(missing_ok=True)  # of a worker that was killed
    command = [sys.executable, "-m", "studies.pretrained", "work", *options.given]
    workers = [subprocess.Popen(command) for _ in range(options.workers)]  # noqa: S603
    failed = [worker.wait() for worker in workers]
    left = asked - _done(options.rows)
    print(f"{len(asked) - len(left)} of {len(asked)} runs done; workers ended with {failed}", flush=True)


def _work(options: argparse.Namespace) -> None:
    """Run what no other worker has begun."""
    began = time.perf_counter()
    for name in options.models:
        learner = None
        for recipe in _plan(options, name):
            if time.perf_counter() - began > options.seconds:
                return
            if recipe.name in _done(options.rows) or not claim(options.rows, recipe.name):
                continue
            learner = learner or _learner(options, name)
            training.run(learner, recipe, partial(add, options.rows))
            took = time.perf_counter() - began
            print(f"{took:6.0f} s {recipe.name} {json.dumps(asdict(recipe))}", flush=True)


def _again(options: argparse.Namespace) -> None:
    """Run what a line of the rows says again, and keep the trained weights."""
    found = [line["recipe"] for line in report.read(options.rows) if line["run"] == options.run]
    if not found:
        raise SystemExit(f"There is no run {options.run} in {options.rows}; expected one of its runs' names.")
    recipe = Recipe.of(found[0])
    training.run(
        _learner(options, recipe.model), recipe, partial(add, options.to), options.to.with_suffix(".safetensors")
    )


def _pack(options: argparse.Namespace) -> None:
    path = report.pack([*options.given_rows, *([options.rows] if options.rows.is_file() else [])], options.rows)
    print(f"{path}: {path.stat().st_size} bytes, {len(report.at_end(report.read(path)))} runs")


def _report(options: argparse.Namespace) -> None:
    print(report.write(options.page, report.read(options.rows)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.pretrained", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    about = {
        "fetch": "download the models' weights and check their digests",
        "unpack": "dequantise them to bfloat16",
        "tokens": "make the texts, and put them into the models' tokens",
        "check": "print losses and a sample of each model",
        "write": "have the models write own text",
        "train": "run recipes, several side by side",
        "work": "one of the processes that train starts",
    }
    for name, said in about.items():
        command = commands.add_parser(name, help=said)
        command.add_argument("models", nargs="+", choices=list(MODELS), metavar="model", help=", ".join(MODELS))
        _cache(command)
        if name in {"train", "work"}:
            command.add_argument(
                "--plans", nargs="+", choices=["screening", "rates", "own-text", "guards"], default=["screening"]
            )
            command.add_argument("--lessons", nargs="+", choices=texts.LESSONS, help="(default: all)")
            command.add_argument("--regimes", nargs="+", choices=list(recipes.REGIMES), default=list(recipes.REGIMES))
            command.add_argument("--seeds", type=int, nargs="+", default=[0], help="of screening, guards (default: 0)")
            command.add_argument("--exchange-rates", type=float, nargs="+", default=list(recipes.EXCHANGE_RATES))
            command.add_argument("--forms", choices=recipes.GUARDS, nargs="+", default=list(recipes.GUARDS))
            command.add_argument("--rows", type=Path, default=Path("build/pretrained/rows.jsonl"))
            command.add_argument("--workers", type=int, default=4, help="(default: %(default)s)")
            command.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so many")
    again = commands.add_parser("again", help="run one recipe of the rows again, and keep the trained weights")
    again.add_argument("run", help="the run's name in the rows")
    again.add_argument("to", type=Path, help="the file for its lines; the weights go beside it")
    _cache(again)
    page = commands.add_parser("report", help="write the page")
    page.add_argument("--page", type=Path, default=Path("results/pretrained.md"), help="(default: %(default)s)")
    pack = commands.add_parser("pack", help="add finished runs to the packed rows")
    pack.add_argument("given_rows", type=Path, nargs="+", help="files of rows")
    for command in (again, page, pack):
        command.add_argument("--rows", type=Path, default=report.ROWS, help="(default: %(default)s)")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(arguments)
    options.given = arguments[1:]
    return options


def _cache(command: argparse.ArgumentParser) -> None:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "anchorhold-pretrained"
    command.add_argument("--cache", type=Path, default=default, help="(default: %(default)s)")


if __name__ == "__main__":
    main()
