"""Protect SmolLM2 with no option and by settings tried by hand, and write the page of what was found."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.language.lines import add
from benchmarks.language.lines import read as read_lines
from studies.pretrained import models, tokens
from studies.pretrained.models import MODELS
from studies.pretrained.training import Learner
from studies.protect_search import report
from studies.protect_search.settings import EPOCHS, REGIME_OF, runs
from studies.protect_search.training import Subject, documents, save_folder, search, write_text

MODEL = "SmolLM2-135M-Instruct"
KEPT = ("english", "python", "french")
"""Of which the report on forgetting reads some documents."""
MEASURED = (("cuda", "float32"), ("cpu", "float32"), ("cuda", "bfloat16"))
DOCUMENTS = 16


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for."""
    options = _options(arguments)
    torch.set_float32_matmul_precision("high")
    commands = {
        "write": _write,
        "train": _train,
        "folder": _folder,
        "forgetting": _forgetting,
        "pack": _pack,
        "report": _report,
    }
    commands[options.command](options)


def subject_of(cache: Path, device: torch.device, less: Mapping[str, int]) -> Subject:
    """Return the model with its tokenizer, which name the token that texts begin and end with."""
    about = MODELS[MODEL]
    path = models.unpack(about, cache / f"{MODEL}.gguf", cache)
    model: Any = models.load(about, path, device)
    tokenizer = models.tokenizer_of(about, cache)
    mark = tokenizer.convert_ids_to_tokens(about.begin)
    tokenizer.add_special_tokens(dict.fromkeys(("bos_token", "eos_token", "pad_token"), mark))
    for config in (model.config, model.generation_config):
        config.bos_token_id = config.eos_token_id = about.begin
    own = torch.from_numpy(np.load(cache / f"{MODEL}-own.npz")["rows"])
    digest = models.weights_digest(path)
    learner = Learner(model, tokens.load(cache / f"{MODEL}-tokens.npz"), digest, own, about.rows_together)
    return Subject(learner, tokenizer, cache / "own-text", less)


def _subject(options: argparse.Namespace) -> Subject:
    asked = {"tokens": options.tokens, "length": options.length}
    less = {name: value for name, value in asked.items() if value is not None}
    return subject_of(options.cache, torch.device("cuda" if torch.cuda.is_available() else "cpu"), less)


def _write(options: argparse.Namespace) -> None:
    print(f"own text: {write_text(_subject(options)):.1f} s", flush=True)


def _train(options: argparse.Namespace) -> None:
    """Run what of one search has no line yet, until the time is up."""
    began = time.perf_counter()
    done = {line["run"] for line in read_lines(options.rows)}
    left = [run for run in runs(MODEL, options.lesson, options.weights, options.seed) if run.name not in done]

    def told(line: dict[str, Any]) -> None:
        add(options.rows, line)
        print(f"{time.perf_counter() - began:6.0f} s {line['run']} {line['setting']}", flush=True)

    if left:
        search(_subject(options), left, told, lambda: time.perf_counter() - began > options.seconds, options.keep)


def _folder(options: argparse.Namespace) -> None:
    """Write the model before as a folder, and texts for the report on forgetting beside it."""
    subject = _subject(options)
    save_folder(subject, options.to / "before")
    texts = {"kept": KEPT, "new": (options.lesson,)}
    for name, kinds in texts.items():
        lines = [
            json.dumps({"text": text, "kind": kind}, ensure_ascii=False) + "\n"
            for kind in kinds
            for text in documents(subject.learner.tokens, subject.tokenizer, kind, options.documents)
        ]
        (options.to / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def _forgetting(options: argparse.Namespace) -> None:
    """Compare the folders before and after by the command, on each device and in each type."""
    for device, dtype in options.measured:
        where = options.to / f"{device}-{dtype}.json"
        command = [
            sys.executable,
            "-m",
            "anchorhold",
            "forgetting",
            str(options.to / "before"),
            str(options.to / "after"),
        ]
        command += ["--data", str(options.to / "kept.jsonl"), "--new", str(options.to / "new.jsonl")]
        command += ["--device", device, "--dtype", dtype, "--json", str(where), "--quiet"]
        began = time.perf_counter()
        subprocess.run(command, check=True)  # noqa: S603
        found = json.loads(where.read_text(encoding="utf-8"))
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        about = {"device": device, "dtype": dtype, "machine": name, "seconds": round(time.perf_counter() - began, 1)}
        add(options.rows, {**about, **found})
        print(f"{device} {dtype}: {about['seconds']} s", flush=True)


def _device(given: str) -> tuple[str, str]:
    device, _, dtype = given.partition(":")
    return device, dtype


def _pack(options: argparse.Namespace) -> None:
    path = report.pack([*options.given_rows, *([options.rows] if options.rows.is_file() else [])], options.rows)
    print(f"{path}: {path.stat().st_size} bytes, {len(report.read(path))} lines")


def _report(options: argparse.Namespace) -> None:
    print(report.write(options.page, options.readme, report.read(options.rows)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.protect_search", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="have the model write its own text, as protect() does")
    train = commands.add_parser("train", help="search one lesson and one way of training")
    folder = commands.add_parser("folder", help="write the model before, and texts, for the report on forgetting")
    compare = commands.add_parser("forgetting", help="run `anchorhold forgetting` on each device")
    for command in (write, train, folder):
        command.add_argument("--cache", type=Path, required=True, help="of the study of pretrained models")
        command.add_argument("--tokens", type=int, help="of own text; by default as protect() has it")
        command.add_argument("--length", type=int, help="of its pieces, likewise")
    for command in (train, folder):
        command.add_argument("--lesson", choices=list(EPOCHS), default="lesson-records", help="(default: %(default)s)")
    train.add_argument("--weights", choices=list(REGIME_OF), default="lora", help="(default: %(default)s)")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so many")
    train.add_argument("--keep", type=Path, help="a folder for the model that was trained with no option")
    for command in (folder, compare):
        command.add_argument("--to", type=Path, required=True, help="the folder of before, after and texts")
    folder.add_argument("--documents", type=int, default=DOCUMENTS, help="of each kind of text")
    compare.add_argument("--measured", type=_device, nargs="+", default=MEASURED, help="such as cuda:bfloat16")
    for command in (train, compare):
        command.add_argument("--rows", type=Path, default=Path("build/protect-search/rows.jsonl"))
    pack = commands.add_parser("pack", help="write lines into one packed file")
    pack.add_argument("given_rows", type=Path, nargs="+", help="files of lines")
    page = commands.add_parser("report", help="write the page, and the answer into the README")
    page.add_argument("--page", type=Path, default=Path("results/protect-search.md"), help="(default: %(default)s)")
    page.add_argument("--readme", type=Path, default=Path("studies/protect_search/README.md"), help="for the answer")
    for command in (pack, page):
        command.add_argument("--rows", type=Path, default=report.ROWS, help="(default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
