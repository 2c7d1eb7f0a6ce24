"""Make the pages of ``results/`` from the data beside them: ``python -m scripts.result_pages [--check] [NAME ...]``.

Nothing is measured. A page whose program has changed its words gets the new ones; its numbers are those of the data.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anchorhold_lab.analysis.repetitions import Estimate
from benchmarks.audit import table as audit
from benchmarks.families import table as families
from benchmarks.harness import page_of_report
from benchmarks.language import __main__ as language_commands
from benchmarks.language import recipe_report, recipes, report, small_forms, study
from benchmarks.language.adapter_recipes import ADAPTER_RECIPES
from benchmarks.language.english import new_model
from benchmarks.language.formats import report as formats
from benchmarks.language.large_recipes import LARGE_ADAPTER_RECIPES
from benchmarks.language.sequence import report as sequence
from benchmarks.language.sequence import study as courses
from benchmarks.language.settings import Settings
from benchmarks.language.training import Device
from studies.benzing2020 import claims_page, searches_page
from studies.exchange_rate import report as exchange_rate
from studies.pretrained import report as pretrained
from studies.protect_search import report as protect_search

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
NO_DATA = {
    "relatives-digits": "written by hand from the tables that its command prints",
    "torture": "counts of an hour of trials, which leave no data but these",
}
"""Pages that cannot be made again, and why."""
Data = dict[str, Any]


def pages() -> dict[str, Callable[[], str]]:
    """Return how each page is made, by its path below ``results/`` without the ending."""
    found = {path.stem: partial(_of_report, path) for path in RESULTS.glob("*.json") if "ratios" in _read(path)}
    found |= {name: partial(_of_rows, name, module) for name, module in OF_ROWS.items()}
    found |= {name: partial(_of_document, name, make) for name, make in OF_DOCUMENTS.items()}
    found |= {name: partial(_of_recipes, name, *given) for name, given in OF_RECIPES.items()}
    return found | {
        "small-forms": lambda: small_forms.page(recipes.read(RESULTS / "small-forms.jsonl")),
        "sequence": lambda: sequence.page(courses.read(RESULTS / "sequence.jsonl"), gain=0.9),
        "formats": lambda: formats.page(courses.read(RESULTS / "formats.jsonl")),
        "language": _language,
        "exchange-rate": lambda: exchange_rate.text(*_packed_rows()),
        "pretrained": lambda: pretrained.text(pretrained.read(ROOT / pretrained.ROWS)),
        "protect-search": lambda: protect_search.text(protect_search.read(ROOT / protect_search.ROWS)),
        "paper/claims": lambda: claims_page.page(claims_page.known_results(ROOT / claims_page.STORE)),
        "paper/searches": lambda: searches_page.page(claims_page.known_results(ROOT / claims_page.STORE)),
    }


OF_ROWS = {
    "conjugate-steps": "studies.conjugate_steps.study",
    "kept-optimiser": "studies.kept_optimiser.study",
    "merging": "studies.merging.study",
    "ten-tasks": "studies.ten_tasks.study",
    "tolerance-dual": "studies.tolerance_dual.report",
    "tolerance-kept-twice": "studies.tolerance.kept_twice",
    "tolerance-starts": "studies.tolerance.starts",
    "tolerance-ten-tasks": "studies.tolerance.ten_tasks",
    "tolerance-weaker-starts": "studies.tolerance.weaker_starts",
    "tolerance-without-old-inputs": "studies.tolerance.without_old_inputs",
}
"""Pages of ``{**surroundings, "rows": rows}``, by the module whose ``page`` takes the two."""


def _study(name: str) -> Any:
    return importlib.import_module(f"studies.{name}")


def _where(document: Data) -> dict[str, str]:
    """Return what a document begins with: where and when it was measured."""
    known = ("command", "date", "versions", "cpu", "threads", "gpu", "corpus", "note", "machines")
    return {key: document[key] for key in known if key in document}


def _batch_norm(rows: list[Data]) -> str:
    read = [{key: Estimate(**one) if isinstance(one, dict) else one for key, one in row.items()} for row in rows]
    return str(_study("batch_norm.study").table(read, {}))


def _merged_space(kept: Data) -> str:
    made = _study("merged_space.study")
    sizes = {key: tuple(one) if isinstance(one, list) else one for key, one in kept["sizes"].items()}
    return str(made.page([made.Found(**each) for each in kept["found"]], kept["steps"], made.Sizes(**sizes)))


def _tiny_memory(rows: list[Data]) -> str:
    made = _study("tiny_memory.study")
    return str(made.table([made.Row(**row) for row in rows]))


def _at_scale(kept: Data) -> str:
    names = tuple(setting.name for setting in _study("tolerance.at_scale.trials").SETTINGS)
    whole = _study("tolerance.at_scale.trials").Study.of(names, rehearse=False)
    return str(_study("tolerance.at_scale.report").page(whole, kept["rows"], _where(kept), kept["watching"]))


OF_DOCUMENTS: dict[str, Callable[[Any], str]] = {
    "audit": audit.page,
    "batch-norm": _batch_norm,
    "class-incremental": lambda rows: _study("class_incremental.study").table(rows),
    "dead-units": lambda kept: _study("dead_units.study").page(kept["first task"], kept["rows"], _where(kept)),
    "exchange-rate-classifiers": lambda kept: _study("exchange_rate_classifiers.study").page(kept) + "\n",
    "fewer-pulls": lambda rows: _study("fewer_pulls.report").page(rows),
    "families": lambda kept: families.page(families.read(kept), _where(kept)),
    "implicit": lambda found: _study("implicit.study").table(found, "permuted-digits"),
    "implicit-permuted-mnist": lambda found: _study("implicit.study").table(found, "permuted-mnist"),
    "implicit-split-cifar": lambda found: _study("implicit.study").table(found, "split-cifar"),
    "lca": lambda kept: _study("lca.study").page(kept["rows"], _where(kept)),
    "merged-space": _merged_space,
    "own-text": lambda kept: _study("own_text.study").table(kept["model"], kept["rows"], _where(kept)),
    "projection": lambda found: _study("projection.study").page(found),
    "relative-strength": lambda found: _study("relative_strength.study").page(found),
    "rotated-path": lambda rows: _study("rotated_path.study").table(rows),
    "tiny-memory": _tiny_memory,
    "tolerance": lambda found: _study("tolerance.digits").report(found),
    "tolerance-at-scale": _at_scale,
    "without-data": lambda kept: _study("without_data.study").table(kept["rows"], _where(kept)),
}
"""Pages that are made of a whole JSON."""

OF_RECIPES: dict[str, tuple[tuple[recipes.Recipe, ...], str]] = {
    "recipes": (language_commands.RECIPES["small"], ""),
    "recipes-forms": (recipes.FORM_RECIPES, "--forms "),
    "recipes-large": (language_commands.RECIPES["large"], "--size large "),
    "recipes-huge": (language_commands.RECIPES["huge"], "--size huge "),
    "adapter-recipes": (ADAPTER_RECIPES, ""),
    "adapter-recipes-huge": (ADAPTER_RECIPES, "--size huge "),
    "adapter-recipes-SmolLM2-135M": (LARGE_ADAPTER_RECIPES, "--pretrained SmolLM2-135M "),
    "adapter-recipes-SmolLM2-135M-short": (LARGE_ADAPTER_RECIPES, "--pretrained SmolLM2-135M --short "),
}
"""Pages of recipes, by what was tried and what the command was given."""


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _of_report(path: Path) -> str:
    return page_of_report(_read(path))


def _of_rows(name: str, module: str) -> str:
    kept = _read(RESULTS / f"{name}.json")
    return str(importlib.import_module(module).page(kept["rows"], _where(kept)))


def _of_document(name: str, make: Callable[[Any], str]) -> str:
    return str(make(_read(RESULTS / f"{name}.json")))


def _of_recipes(name: str, known: tuple[recipes.Recipe, ...], flags: str) -> str:
    return recipe_report.page(recipes.read(RESULTS / f"{name}.jsonl"), known, flags)


def _language() -> str:
    kept = _read(RESULTS / "language.json")
    given: Data = {key: tuple(one) if isinstance(one, list) else one for key, one in kept["settings"].items()}
    settings = Settings(**given)
    model = new_model(settings, Device(torch.device("cpu")), seed=0)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return report.page(study.read(RESULTS / "language.jsonl"), settings, weights, _where(kept))


def _packed_rows() -> tuple[list[Data], list[Data]]:
    return pretrained.read(ROOT / exchange_rate.ROWS), pretrained.read(ROOT / exchange_rate.PRETRAINED)


def same(one: str, other: str) -> bool:
    """Whether two pages are the same but for the torch that pages without surroundings name."""
    return _without_torch(one) == _without_torch(other)


def _without_torch(page: str) -> str:
    return re.sub(r"torch \d+\.\d+\.\d+(\+\w+)?", "torch", page)


def main() -> int:
    """Write the pages, or say which differ from what their data make."""
    parser = argparse.ArgumentParser(prog="python -m scripts.result_pages", description=__doc__)
    known = pages()
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these pages, by default all")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page differs")
    options = parser.parse_args()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no page is made as {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    differing = [name for name in options.names or sorted(known) if not _is_up_to_date(name, known[name]())]
    for name in differing:
        print(f"{RESULTS / name}.md differs from its data")
        if not options.check:
            (RESULTS / f"{name}.md").write_text(known[name](), encoding="utf-8")
    return int(options.check and bool(differing))


def _is_up_to_date(name: str, made: str) -> bool:
    return same((RESULTS / f"{name}.md").read_text(encoding="utf-8"), made)


if __name__ == "__main__":
    sys.exit(main())
