"""Check that each number of a page stands in what the page links to: ``python scripts/check_numbers.py [--record]``.

``docs/numbers.txt`` says for each page where each of its numbers is taken from: a page of ``results/``, its data, or
another page that has the number from there; or, by hand, a reason why it is in no data. A number that is changed in a
page, and one that its data no longer have, is told of. ``--record`` looks new numbers up in what the page links to, and
writes the file; those that it does not find there need a reason:

    python scripts/check_numbers.py --reason "a setting" docs/guides/forms.md 0.95 128
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "docs" / "numbers.txt"
HEAD = f"# {(__doc__ or '').splitlines()[0]}\n# Lines of ! are reasons, by hand; all others are written by --record.\n"
UNITS = r"%|s|ms|µs|seconds|minutes|hours|MB|GB|KB|MiB|GiB|KiB|points?|times|nats?|bits?|GFLOP"
NUMBER = re.compile(rf"(?<![\w.,^/-])(\d{{1,3}}(?:,\d{{3}})+|\d+)(\.\d+)?(?![\w.]*\w)(?:\s(?:{UNITS})(?!\w))?")
PLAIN = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
NOT_MEASURED = (
    r"```.*?```",  # code, formulas, links, versions, preprints, years, widths of numbers in bits
    r"`[^`]*`",
    r"\$[^$]*\$",
    r"\]\([^)]*\)",
    r"<!--.*?-->",
    r"\b\d+(?:-\d+){2,}\b",  # dates, and networks by the widths of their layers
    r"\b\d{4}\.\d{4,5}\b",
    r"\b(?:19|20)\d\d\b(?!\s(?:%|s\b|samples|steps))",
    r"\b\d+\.\d+\.\d+\b",
    r"(?:[Pp]ython|torch|PyTorch|version) \d+\.\d+",
    r"\b(?:4|8|16|32|64)[ -]bits?\b",
)


@dataclass
class Entry:
    """Where the numbers of one page are taken from."""

    sources: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)

    def all(self) -> Counter[str]:
        """Return all numbers, with how often the page has each."""
        return sum([*self.sources.values(), *self.reasons.values()], Counter())


Ledger = dict[str, Entry]


def pages() -> list[str]:
    """Return the pages that are checked, by their paths."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("README.md")]
    found += [*(ROOT / "studies").rglob("README.md"), ROOT / "lab" / "README.md"]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def text_of(page: str) -> str:
    """Return a page's Markdown."""
    return (ROOT / page).read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Return a page without what is no measured number."""
    for pattern in NOT_MEASURED:
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n") + " ", text, flags=re.DOTALL)
    return text


def numbers(text: str) -> Counter[str]:
    """Return the numbers of a page that are checked: those with decimals, a unit, or three digits and more."""
    found = Counter[str]()
    for match in NUMBER.finditer(prose(text)):
        number = (match[1] + (match[2] or "")).replace(",", "")
        has_unit = len(match[0]) > len(match[1] + (match[2] or ""))
        if match[2] or has_unit or len(number.rstrip("0")) >= 3:
            found[number] += 1
    return found


def linked(page: str, text: str) -> list[str]:
    """Return the files that a part of a page links to or names, below ``results/`` first."""
    found = dict[str, None]()
    links = [os.path.normpath(Path(page).parent / link) for link in re.findall(r"\]\(([^)#\s]+)", text)]
    named = [name.rstrip(".") for name in re.findall(r"results/[\w./-]+", text)]
    named += [f"results/{name}" for name in re.findall(r"`([\w-]+\.(?:md|jsonl?))`", text)]
    for name in [*links, *named]:
        path = ROOT / name
        if path.is_dir() and name.startswith("results/"):
            found |= dict.fromkeys(str(one.relative_to(ROOT)) for one in sorted(path.rglob("*.csv")))
            found |= dict.fromkeys(str(one.relative_to(ROOT)) for one in sorted(path.rglob("*.md")))
        elif path.suffix in (".md", ".csv", ".json", ".jsonl", ".zst") and path.is_file():
            beside = [path.with_name(f"{path.name.partition('.')[0]}{end}") for end in (".md", ".json")]
            of_both = beside if name.startswith("results/") and "/paper/" not in name else []
            found |= dict.fromkeys(str(one.relative_to(ROOT)) for one in (path, *of_both) if one.is_file())
    of_runs = ("runs.csv", "provenance.csv", "runs-without-result.csv")
    usable = [name for name in found if name != page and not name.endswith(of_runs) and _has_numbers(name)]
    return sorted(usable, key=lambda name: (not name.startswith("results/"), name.endswith(".json")))


def _has_numbers(name: str) -> bool:
    return name.endswith((".md", ".csv", ".json"))


@cache
def values(source: str) -> frozenset[str]:
    """Return the numbers that stand in a page of results or in data, as they are written there."""
    if source.endswith(".json"):
        return frozenset(_of_json(json.loads(text_of(source))))
    return frozenset(number.replace(",", "") for number in PLAIN.findall(text_of(source)))


def _of_json(document: Any) -> Iterator[str]:
    if isinstance(document, dict | list):
        for one in document.values() if isinstance(document, dict) else document:
            yield from _of_json(one)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield repr(abs(document))


@cache
def rounded(source: str, decimals: int) -> frozenset[str]:
    """Return all numbers of a source that are given to so many decimals or more, rounded to as many."""
    found, step = set(), Decimal(1).scaleb(-decimals)
    for written in values(source):
        value = Decimal(written)
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int) or value >= 10**15:  # infinity and NaN
            continue
        for one, known in ((value, -exponent), (100 * value, -exponent - 2)):  # a share may be written in per cent
            if known >= decimals:
                found |= {str(one.quantize(step, mode)) for mode in (ROUND_HALF_UP, ROUND_HALF_EVEN)}
    return frozenset(found)


def stands_in(number: str, source: str) -> bool:
    """Whether a source has a number, to the decimals that are printed."""
    decimals = len(number.partition(".")[2])
    if number in rounded(source, decimals):
        return True
    if "." in number and number.endswith("0"):  # pages print three digits, and 1.20 as 1.2
        return len(number) > 3 and number.rstrip("0").rstrip(".") in values(source)
    # 12,300 may be printed of 12,345: as many digits as are not zeros at the end.
    zeros = len(number) - len(number.rstrip("0")) if "." not in number else 0
    return zeros > 0 and any(_shortened(value, zeros) == number for value in rounded(source, 0))


def _shortened(value: str, zeros: int) -> str:
    return str(int((Decimal(value) / 10**zeros).quantize(Decimal(1), ROUND_HALF_UP)) * 10**zeros)


def usable(number: str, source: str, direct: Ledger | None) -> bool:
    """Whether a page may take a number from a source; from another page only what that has from data or a reason."""
    if direct is None or source not in direct:
        return stands_in(number, source)
    decimals = len(number.partition(".")[2])
    return any(
        number == str(Decimal(one).quantize(Decimal(1).scaleb(-decimals), mode))
        for one in direct[source].all()
        if len(one.partition(".")[2]) >= decimals
        for mode in (ROUND_HALF_UP, ROUND_HALF_EVEN)
    )


def problems(page: str, text: str, ledger: Ledger) -> list[str]:
    """Say what is wrong with the numbers of a page."""
    entry, found = ledger.get(page, Entry()), numbers(text)
    known = entry.all()
    said = [f"{page}: {number} is new, or there once more than before" for number in found - known]
    said += [f"{page}: {number} is no longer there, or once less" for number in known - found]
    for source, taken in entry.sources.items():
        if not (ROOT / source).is_file():
            said.append(f"{page}: {source} is gone")
            continue
        said += [
            f"{page}: {number} does not stand in {source} any more" for number in taken if not stands_in(number, source)
        ]
    return said


def recorded(page: str, text: str, reasons: dict[str, Counter[str]], direct: Ledger) -> tuple[Entry, list[str]]:
    """Return where the numbers of a page are taken from, and those that stand nowhere.

    What is linked to in the same paragraph comes before what is in the section, and that before what is on the page;
    of several, the one that has most of the numbers. A row of a table that links to pages of results has them there.
    """
    left, entry = numbers(text), Entry()
    for reason, listed in reasons.items():
        if kept := Counter({number: left[number] for number in listed if left[number]}):
            entry.reasons[reason] = kept
            left -= kept
    rows = [line for line in text.splitlines() if line.startswith("|") and _result_pages(page, line)]
    nowhere: list[str] = []
    for row in rows:
        pages_of_row, here = _result_pages(page, row), numbers(row) & left
        for number in here:
            source = next((name for name in pages_of_row if stands_in(number, name)), None)
            if source is None:
                nowhere.append(number)
            else:
                entry.sources.setdefault(source, Counter())[number] += here[number]
        left -= here
    links = {row: " ".join(re.findall(r"\]\([^)]*\)|`[^`]*`", row)) for row in rows}
    text = "\n".join(links.get(line, line) for line in text.splitlines())
    sections = re.split(r"\n(?=#+ )", text)
    paragraphs = [part for section in sections for part in re.split(r"\n\s*\n|\n(?=\||[-*] |\d+\. )", section)]
    for part, source in (
        *((paragraph, paragraph) for paragraph in paragraphs),
        *((section, section) for section in sections),
        *((section, text) for section in sections),
    ):
        here = numbers(part) & left
        for taken_from, taken in _taken(page, source, here, direct):
            entry.sources[taken_from] = entry.sources.get(taken_from, Counter()) + taken
            left -= taken
    return entry, [*nowhere, *left]


def _result_pages(page: str, row: str) -> list[str]:
    found = linked(page, row)
    return [name for name in found if name.startswith("results/") and (name.endswith(".md") or len(found) == 1)]


def _taken(page: str, text: str, wanted: Counter[str], direct: Ledger) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the sources that a part of a page links to, with the numbers that are taken from each."""
    left = Counter(wanted)
    sources = linked(page, text) if left else []
    for level in (".md", ".csv", ".json"):
        for of_results in (True, False):
            chosen = [name for name in sources if name.endswith(level) and name.startswith("results/") is of_results]
            while chosen and left:
                found = {name: [number for number in left if usable(number, name, direct)] for name in chosen}
                best = max(chosen, key=lambda name: len(found[name]))
                if not found[best]:
                    break
                taken = Counter({number: left[number] for number in found[best]})
                yield best, taken
                left -= taken
                chosen.remove(best)


def record(ledger: Ledger) -> tuple[Ledger, list[str]]:
    """Return the ledger of the pages as they are, and what stands nowhere."""
    texts = {page: text_of(page) for page in pages()}
    known = {page: ledger.get(page, Entry()).reasons for page in texts}
    direct = {page: recorded(page, text, known[page], dict.fromkeys(texts, Entry()))[0] for page, text in texts.items()}
    found = {page: recorded(page, text, known[page], direct) for page, text in texts.items()}
    nowhere = [f"{page}: {number} stands in nothing that it links to" for page in found for number in found[page][1]]
    return {page: entry for page, (entry, _) in found.items()}, nowhere


def read(text: str) -> Ledger:
    """Return a ledger as it is written."""
    ledger: Ledger = {}
    for line in text.splitlines():
        if line.startswith("["):
            ledger[line[1:-1]] = entry = Entry()
        elif line and not line.startswith("#"):
            name, _, listed = line.rpartition(" = ")
            counts = Counter(
                {one: int(often or 1) for one, _, often in (each.partition("×") for each in listed.split())}
            )
            (entry.reasons if name.startswith("! ") else entry.sources)[name.removeprefix("! ")] = counts
    return ledger


def write(ledger: Ledger) -> str:
    """Return a ledger as text."""
    parts = [HEAD]
    for page, entry in sorted(ledger.items()):
        lines = [f"{source} = {_listed(found)}" for source, found in sorted(entry.sources.items())]
        lines += [f"! {reason} = {_listed(found)}" for reason, found in sorted(entry.reasons.items())]
        if lines:
            parts.append("\n".join([f"[{page}]", *lines, ""]))
    return "\n".join(parts)


def _listed(found: Counter[str]) -> str:
    ordered = sorted(found.items(), key=lambda one: (Decimal(one[0]), one[0]))
    return " ".join(number if often == 1 else f"{number}×{often}" for number, often in ordered)


def allow(ledger: Ledger, reason: str, page: str, listed: Iterable[str]) -> None:
    """Give numbers of a page a reason."""
    entry, found = ledger.setdefault(page, Entry()), numbers(text_of(page))
    for number in listed:
        if number not in found:
            raise SystemExit(f"{page} has no number {number} that is checked.")
        for given in (*entry.sources.values(), *entry.reasons.values()):
            given.pop(number, None)
        entry.reasons.setdefault(reason, Counter())[number] = found[number]


def main() -> int:
    """Check all pages, or write the ledger."""
    parser = argparse.ArgumentParser(
        prog="python scripts/check_numbers.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help="look new numbers up, and write the file")
    parser.add_argument("--reason", metavar="TEXT", help="record, and give this reason for the numbers of a page")
    parser.add_argument("numbers", nargs="*", metavar="PAGE NUMBER", help="with --reason")
    options = parser.parse_args()
    ledger = read(LEDGER.read_text(encoding="utf-8")) if LEDGER.is_file() else {}
    if bool(options.reason) != bool(options.numbers):
        parser.error("--reason needs a page and its numbers, and these need a reason")
    if options.reason:
        allow(ledger, options.reason, options.numbers[0], options.numbers[1:])
    if options.record or options.reason:
        ledger, said = record(ledger)
        LEDGER.write_text(write(ledger), encoding="utf-8")
    else:
        known = {page: ledger.get(page, Entry()) for page in pages()}
        said = [line for page in known for line in problems(page, text_of(page), known)]
        said += [f"{page} is gone" for page in set(ledger) - set(known)]
    print("\n".join(said))
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
