"""Prepare the text, run the study, or draw what it found."""

import argparse
import dataclasses
from functools import partial
from pathlib import Path

import torch

from benchmarks.language import corpus, recipe_report, recipes, report, small_forms, sources, study
from benchmarks.language.adapter_recipes import ADAPTER_RECIPES
from benchmarks.language.english import new_model
from benchmarks.language.formats import report as format_report
from benchmarks.language.formats import study as formats
from benchmarks.language.frontier import points
from benchmarks.language.large_recipes import HUGE_RECIPES, LARGE_ADAPTER_RECIPES, LARGE_RECIPES
from benchmarks.language.pretrained import line_end, tokenizer_of, unpack
from benchmarks.language.sequence import report as sequence_report
from benchmarks.language.sequence import study as sequence
from benchmarks.language.sequence.keeping import FREE, KEEPINGS, Keeping
from benchmarks.language.settings import HUGE, LARGE, PRETRAINED, REHEARSAL, SHORT, TINY, Settings
from benchmarks.language.small_forms import SMALL_RECIPES
from benchmarks.language.training import Device

LINES = "language.jsonl"
RECIPE_LINES = "recipes.jsonl"
SMALL_LINES = "small-forms.jsonl"
SIZES = {"tiny": TINY, "small": Settings(), "large": LARGE, "huge": HUGE}
RECIPES = {"tiny": SMALL_RECIPES, "small": recipes.RECIPES, "large": LARGE_RECIPES, "huge": HUGE_RECIPES}


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    commands = {"prepare": _prepare, "run": _run, "recipes": _recipes, "plot": _plot}
    others = {"tokens": _tokens, "unpack": _unpack, "sequence": _sequence, "formats": _formats}
    {**commands, **others}[options.what](options)


def _prepare(options: argparse.Namespace) -> None:
    corpus.prepare(options.corpus, options.packages, sources.SEQUENCE if options.sequence else None)


def _tokens(options: argparse.Namespace) -> None:
    from benchmarks.language import tokens  # noqa: PLC0415 (what makes them, the machine that runs need not have)

    given = corpus.load(options.corpus)
    if options.pretrained:
        found = tokens.encoded_for(given, tokenizer_of(options.pretrained))
    else:
        found = tokens.encoded(given, options.vocabulary)
    corpus.write(options.to, found)
    counts = {"_".join(key): f"{len(given.of(*key)) / len(text):.2f}" for key, text in found.texts.items()}
    print(f"{options.to}: {found.vocabulary} tokens, sha256 {found.digest()}; bytes a token {counts}")


def _unpack(options: argparse.Namespace) -> None:
    unpack(options.gguf, options.to)
    print(options.to)


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
    text = corpus.load(options.corpus)
    if text.vocabulary != settings.vocabulary:
        raise SystemExit(
            f"{options.corpus} has {text.vocabulary} kinds of tokens, and networks of this size read "
            f"{settings.vocabulary}. `python -m benchmarks.language tokens` makes tokens of bytes, for --size huge."
        )
    return settings, Device(torch.device("cuda" if torch.cuda.is_available() else "cpu")), text


def _recipes(options: argparse.Namespace) -> None:
    settings, device, text = _begun(options, _of_recipes(options))
    study = "adapter-recipes" if options.adapter else "recipes-forms" if options.forms else "recipes"
    lines = _lines(options, study)
    if options.size == "tiny":
        lines = options.results / SMALL_LINES
    known = _known(options)
    first, *others = known
    asked = [first, *(recipe for recipe in others if not options.only or recipe.name in options.only)]
    drawn = lines.name == RECIPE_LINES  # the picture begins at less
    given = (settings, text.to(device.device), device, lines, _work(options), options.seconds)
    done = recipes.run(*given, asked, 0.0 if drawn else min(recipe_report.GAINS))
    looked = recipes.read(lines)
    if looked:
        usual = partial(recipe_report.write, lines.with_suffix(".md"), recipes=known, flags=_flags(options))
        write = partial(small_forms.write, options.results) if options.size == "tiny" else usual
        print(write(looked))
    print(f"{len(looked)} trials; " + ("done" if done else "time is up: the same command goes on"), flush=True)


def _of_size(options: argparse.Namespace, rehearsal: Settings = REHEARSAL) -> Settings:
    """Return the settings of a study with networks of its own."""
    if options.rehearse:
        vocabulary = SIZES[options.size].vocabulary
        return recipes.study_settings(dataclasses.replace(rehearsal, vocabulary=vocabulary))
    return recipes.study_settings(SIZES[options.size])


def _known(options: argparse.Namespace) -> tuple[recipes.Recipe, ...]:
    """Return all recipes of a study."""
    if options.adapter:
        return LARGE_ADAPTER_RECIPES if options.pretrained else ADAPTER_RECIPES
    if options.forms:
        return recipes.FORM_RECIPES
    return LARGE_RECIPES if options.pretrained else RECIPES[options.size]


def _flags(options: argparse.Namespace) -> str:
    """Return what the command was given besides the corpus and the adapter."""
    if options.pretrained:
        return f"--pretrained {Path(options.pretrained).name} " + ("--short " if options.short else "")
    return ("--forms " if options.forms else "") + ("" if options.size == "small" else f"--size {options.size} ")


def _of_recipes(options: argparse.Namespace) -> Settings:
    """Return the settings of recipes: of networks of one size, or of another's, which learns what it knows least."""
    if not options.pretrained:
        if options.short:
            raise SystemExit("--short is a lesson of another's model; give --pretrained FOLDER with it.")
        return _of_size(options)
    settings, folder = SHORT if options.short else PRETRAINED, options.pretrained
    settings = REHEARSAL if options.rehearse else settings
    vocabulary = tokenizer_of(folder).get_vocab_size()
    own = dataclasses.replace(settings, pretrained=folder, vocabulary=vocabulary, start=line_end(folder))
    return recipes.study_settings(dataclasses.replace(own, lesson=PRETRAINED.lesson, read=PRETRAINED.read))


def _which(options: argparse.Namespace) -> str:
    """Return which networks are not the usual ones: others', or those of another size."""
    if getattr(options, "pretrained", None):
        return Path(options.pretrained).name + ("-short" if options.short else "")
    return "" if options.size == "small" else str(options.size)


def _lines(options: argparse.Namespace, study: str) -> Path:
    """Return the file of a study with networks of one kind; its page lies beside it."""
    folder: Path = options.results
    return folder / f"{'-'.join(filter(None, (study, _which(options))))}.jsonl"


def _work(options: argparse.Namespace) -> Path:
    """Return the folder of the networks, so that those of one kind do not take the place of another's."""
    folder: Path = options.work
    return folder / _which(options)


def _asked(options: argparse.Namespace) -> list[Keeping]:
    return [keeping for keeping in KEEPINGS if not options.only or keeping.name in (FREE, *options.only)]


def _sequence(options: argparse.Namespace) -> None:
    settings, device, text = _begun(options, _of_size(options))
    lines, given = _lines(options, "sequence"), (settings, text.to(device.device), device)
    done = sequence.run(*given, lines, _work(options), options.seconds, options.gain, _asked(options))
    went = sequence.read(lines)
    if went:
        print(sequence_report.write(lines.with_suffix(".md"), went, options.gain))
    print(f"{len(went)} courses; " + ("done" if done else "time is up: the same command goes on"), flush=True)


def _formats(options: argparse.Namespace) -> None:
    settings, device, text = _begun(options, _of_size(options, formats.SMALLEST))
    lessons = formats.REHEARSAL if options.rehearse else formats.Lessons()
    lines, given = _lines(options, "formats"), (settings, lessons, text.to(device.device), device)
    done = formats.run(*given, lines, _work(options), options.seconds, _asked(options))
    went = sequence.read(lines)
    if went:
        print(format_report.write(lines.with_suffix(".md"), went))
    print(f"{len(went)} courses; " + ("done" if done else "time is up: the same command goes on"), flush=True)


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
    prepare.add_argument("--sequence", action="store_true", help="with German and C after Python, for sequence")
    pairs = commands.add_parser("tokens", help="make a corpus of tokens from one of bytes, for --size huge")
    pairs.add_argument("corpus", type=Path)
    pairs.add_argument("to", type=Path, help="the file to write")
    pairs.add_argument("--pretrained", metavar="folder", help="the tokens of another's model, which lies there")
    pairs.add_argument("--vocabulary", type=int, default=HUGE.vocabulary, help="(default: %(default)s)")
    packed = commands.add_parser("unpack", help="make such a folder from a GGUF file (needs the package gguf)")
    packed.add_argument("gguf", type=Path)
    packed.add_argument("to", type=Path, help="the folder to write")
    run = commands.add_parser("run", help="learn and teach; what is finished is not run again")
    cook = commands.add_parser("recipes", help="guards, old and own text, merging, and all of them together")
    cook.add_argument("--adapter", action="store_true", help="by an adapter, held by its factors and by merged weights")
    cook.add_argument("--pretrained", metavar="folder", help="another's model, which learns German, held by the best")
    cook.add_argument("--short", action="store_true", help="with --pretrained: a lesson that a processor gets through")
    cook.add_argument("--forms", action="store_true", help="forms that take less than the rotated one")
    course = commands.add_parser("sequence", help="English, then Python, German and C: what is left of each")
    course.add_argument("--gain", type=float, default=0.9, help="what averaging leaves of a lesson (default: 0.9)")
    record = commands.add_parser("formats", help="an invented format of records, then another: exact match of both")
    for command in (course, record):
        command.add_argument("--only", nargs="+", metavar="recipe", choices=[each.name for each in KEEPINGS])
    for command in (course, record):
        command.add_argument("--size", choices=["small", "large"], default="small", help="(default: small)")
    sizes = "tiny: forms that take less, on a CPU; huge: a network of tokens (default: small)"
    cook.add_argument("--size", choices=SIZES, default="small", help=sizes)
    for command in (run, cook, course, record):
        command.add_argument("corpus", type=Path)
        command.add_argument("--results", type=Path, default=Path("results"), help="(default: %(default)s)")
        command.add_argument("--work", type=Path, default=Path("build/language"), help="(default: %(default)s)")
        command.add_argument("--seeds", type=int, nargs="+", help="only these seeds")
        command.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after so many")
        command.add_argument("--rehearse", action="store_true", help="at a size for a CPU; give --results of its own")
    known = (*recipes.RECIPES, *recipes.FORM_RECIPES, *ADAPTER_RECIPES, *SMALL_RECIPES)
    names = [recipe.name for recipe in known]
    cook.add_argument(
        "--only", nargs="+", metavar="recipe", choices=names, help="and fine-tuning, beside which they are"
    )
    draw = commands.add_parser("plot", help="draw what was found")
    draw.add_argument("--results", type=Path, default=Path("results"), help="where the lines are")
    draw.add_argument("--pictures", type=Path, default=Path("docs/_static"), help="the folder (default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
