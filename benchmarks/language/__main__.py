"""Prepare the text, run the study, or draw what it found."""

import argparse
import dataclasses
from functools import partial
from pathlib import Path

import torch

from benchmarks.language import corpus, recipe_report, recipes, report, small_forms, study
from benchmarks.language.adapter_recipes import ADAPTER_RECIPES
from benchmarks.language.english import new_model
from benchmarks.language.frontier import points
from benchmarks.language.settings import REHEARSAL, SMALL, Settings
from benchmarks.language.small_forms import SMALL_RECIPES
from benchmarks.language.training import Device

LINES = "language.jsonl"
RECIPE_LINES = "recipes.jsonl"
ADAPTER_LINES = "adapter-recipes.jsonl"
SMALL_LINES = "small-forms.jsonl"


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    {"prepare": _prepare, "run": _run, "recipes": _recipes, "plot": _plot}[options.what](options)


def _prepare(options: argparse.Namespace) -> None:
    corpus.prepare(options.corpus, options.packages)


def _run(options: argparse.Namespace) -> None:
    settings, device, text = _begun(options, REHEARSAL if options.rehearse else Settings())
    lines = options.results / LINES
    done = study.run(settings, text.to(device.device), device, lines, options.work, options.seconds)
    learned = study.read(lines)
    if learned:
        model = new_model(settings, device, seed=0)
        report.write(options.results, learned, settings, text.digest(), sum(p.numel() for p in model.parameters()))
    print(f"{len(learned)} lessons; " + ("done" if done else "time is up: the same command goes on"), flush=True)


def _begun(options: argparse.Namespace, settings: Settings) -> tuple[Settings, Device, corpus.Corpus]:
    """Return the settings with the seeds that were asked for, where to run, and the text."""
    if options.seeds:
        settings = dataclasses.replace(settings, seeds=tuple(options.seeds))
    return settings, Device(torch.device("cuda" if torch.cuda.is_available() else "cpu")), corpus.load(options.corpus)


def _recipes(options: argparse.Namespace) -> None:
    settings = recipes.study_settings(REHEARSAL if options.rehearse else SMALL if options.small else Settings())
    settings, device, text = _begun(options, settings)
    lines = options.results / (SMALL_LINES if options.small else ADAPTER_LINES if options.adapter else RECIPE_LINES)
    known = SMALL_RECIPES if options.small else ADAPTER_RECIPES if options.adapter else recipes.RECIPES
    first, *others = known
    asked = [first, *(recipe for recipe in others if not options.only or recipe.name in options.only)]
    done = recipes.run(settings, text.to(device.device), device, lines, options.work, options.seconds, asked)
    looked = recipes.read(lines)
    if looked:
        writer = small_forms.write if options.small else partial(recipe_report.write, recipes=known)
        print(writer(options.results, looked, text.digest()))
    print(f"{len(looked)} trials; " + ("done" if done else "time is up: the same command goes on"), flush=True)


def _plot(options: argparse.Namespace) -> None:
    learned, looked = study.read(options.results / LINES), recipes.read(options.results / RECIPE_LINES)
    if not learned and not looked:
        raise SystemExit(f"There is nothing to draw in {options.results}. First: {report.COMMAND}")
    from benchmarks.language import plot, recipe_plot  # noqa: PLC0415 (the machine that runs them need not draw)

    if learned:
        plot.draw(points(learned), options.pictures / "english-to-python.png")
        print(options.pictures / "english-to-python.png")
    if looked:
        recipe_plot.draw(looked, options.pictures / "recipes.png")
        print(options.pictures / "recipes.png")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    prepare = commands.add_parser("prepare", help="make the corpus from Debian packages (needs apt and dpkg)")
    prepare.add_argument("corpus", type=Path, help="the file to write")
    prepare.add_argument("--packages", type=Path, default=Path("build/packages"), help="(default: %(default)s)")
    run = commands.add_parser("run", help="learn and teach; what is finished is not run again")
    cook = commands.add_parser("recipes", help="guards, old and own text, merging, and all of them together")
    cook.add_argument("--adapter", action="store_true", help="by an adapter, held by its factors and by merged weights")
    cook.add_argument("--small", action="store_true", help="forms that take less, at a size for a CPU")
    for command in (run, cook):
        command.add_argument("corpus", type=Path)
        command.add_argument("--results", type=Path, default=Path("results"), help="(default: %(default)s)")
        command.add_argument("--work", type=Path, default=Path("build/language"), help="(default: %(default)s)")
        command.add_argument("--seeds", type=int, nargs="+", help="only these seeds")
        command.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after so many")
        command.add_argument("--rehearse", action="store_true", help="at a size for a CPU; give --results of its own")
    names = [recipe.name for recipe in (*recipes.RECIPES, *ADAPTER_RECIPES, *SMALL_RECIPES)]
    cook.add_argument(
        "--only", nargs="+", metavar="recipe", choices=names, help="and fine-tuning, beside which they are"
    )
    draw = commands.add_parser("plot", help="draw what was found")
    draw.add_argument("--results", type=Path, default=Path("results"), help="where the lines are")
    draw.add_argument("--pictures", type=Path, default=Path("docs/_static"), help="the folder (default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
