"""Every number of a page stands in the data that the page links to, or has a reason why it stands nowhere."""

import random
from collections import Counter

import pytest

from scripts import check_numbers
from scripts.check_numbers import Entry, numbers, problems, prose, read, record, recorded, stands_in, text_of, write

LEDGER = read(check_numbers.LEDGER.read_text(encoding="utf-8"))
PAGES = check_numbers.pages()


@pytest.mark.daily
@pytest.mark.parametrize("page", PAGES)
def test_its_numbers_are_those_of_its_data(page):
    """``python scripts/check_numbers.py --record`` looks up what is new."""
    assert problems(page, text_of(page), LEDGER) == []


def test_a_changed_digit_is_found():
    """In 95 of 100 trials; where code or a link has the same digits, these may be changed and not the number."""
    draw, found, tried = random.Random(0), 0, 0
    for page in PAGES:
        text = text_of(page)
        for number in numbers(text):
            if len(number.replace(".", "").strip("0")) < 3 or draw.random() > 0.2:
                continue
            at = draw.choice([at for at, digit in enumerate(number) if digit.isdigit()])
            other = draw.choice([digit for digit in "123456789" if digit != number[at]])
            changed = number[:at] + other + number[at + 1 :]
            written = number if number in text else f"{int(number):,}"
            new = changed if number in text else f"{int(changed):,}"
            tried += 1
            found += problems(page, text.replace(written, new), LEDGER) != []
    assert tried > 200
    assert found >= 0.95 * tried, (found, tried)


def test_few_numbers_have_no_data():
    with_reason = sum((sum(one.values()) for entry in LEDGER.values() for one in entry.reasons.values()), 0)
    every = sum((sum(entry.all().values()) for entry in LEDGER.values()), 0)
    assert every > 3000
    assert with_reason < 0.08 * every
    assert all(len(reason) > 5 for entry in LEDGER.values() for reason in entry.reasons)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return a folder with a page of results and two pages that take numbers from it."""
    for name, text in {
        "results/speed.md": "| Adam | 1.234 s | 98.15 % |\n",
        "docs/fast.md": "It takes 1.23 s ([speed](../results/speed.md)), and 0.5 of it is copying.\n",
        "README.md": "It takes 1.2 s ([how](docs/fast.md)).\n",
        "lab/README.md": "Nothing.\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "studies").mkdir()
    monkeypatch.setattr(check_numbers, "ROOT", tmp_path)
    for cached in (check_numbers.values, check_numbers.rounded):
        cached.cache_clear()
    yield tmp_path
    for cached in (check_numbers.values, check_numbers.rounded):
        cached.cache_clear()


def test_numbers_are_looked_up_in_what_a_page_links_to_and_others_need_a_reason(tree):
    ledger, nowhere = record({})
    assert nowhere == ["docs/fast.md: 0.5 stands in nothing that it links to"]
    assert ledger["docs/fast.md"].sources == {"results/speed.md": Counter({"1.23": 1})}
    assert ledger["README.md"].sources == {"docs/fast.md": Counter({"1.2": 1})}
    check_numbers.allow(ledger, "a guess", "docs/fast.md", ["0.5"])
    ledger, nowhere = record(ledger)
    assert nowhere == []
    assert read(write(ledger))["docs/fast.md"] == ledger["docs/fast.md"]
    assert [problems(page, text_of(page), ledger) for page in ("README.md", "docs/fast.md")] == [[], []]


def test_data_that_have_changed_make_a_page_old(tree):
    ledger, _ = record({})
    (tree / "results" / "speed.md").write_text("| Adam | 1.334 s | 98.15 % |\n", encoding="utf-8")
    for cached in (check_numbers.values, check_numbers.rounded):
        cached.cache_clear()
    assert problems("docs/fast.md", text_of("docs/fast.md"), ledger)[-1] == (
        "docs/fast.md: 1.23 does not stand in results/speed.md any more"
    )
    (tree / "results" / "speed.md").unlink()
    assert "docs/fast.md: results/speed.md is gone" in problems("docs/fast.md", text_of("docs/fast.md"), ledger)


def test_two_pages_do_not_vouch_for_each_other(tree):
    (tree / "README.md").write_text("It takes 7.77 s ([how](docs/fast.md)).\n", encoding="utf-8")
    (tree / "docs" / "fast.md").write_text("It takes 7.77 s ([why](../README.md)).\n", encoding="utf-8")
    assert len(record({})[1]) == 2


def test_a_number_that_nobody_asked_about_has_no_reason(tree):
    with pytest.raises(SystemExit, match=r"README.md has no number 3\.14"):
        check_numbers.allow({}, "a guess", "README.md", ["3.14"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("97.3 of 12,345 in 5 s, and 3 of 17", {"97.3": 1, "12345": 1, "5": 1}),
        ("`0.5` $0.25$ [a](x-0.1.md) 1706.02677 2026-11-19 Python 3.11 version 0.1.0 784-2000-10", {}),
        ("```\n0.125\n```\nin 16 bits, 0.125", {"0.125": 1}),
        ("in 2019, 2017 samples", {"2017": 1}),
    ],
)
def test_which_numbers_are_checked(text, found):
    assert numbers(text) == Counter(found), prose(text)


def test_rounding_and_per_cent(tree):
    (tree / "results" / "speed.md").write_text("0.98149 12,345 1e-10 0.5\n", encoding="utf-8")
    right = ("0.98", "98.1", "98.15", "12300", "12345", "0.5")
    assert [number for number in right if not stands_in(number, "results/speed.md")] == []
    assert not any(stands_in(number, "results/speed.md") for number in ("0.99", "98.2", "12400", "0.98149012"))


def test_what_stands_nearest_is_taken(tree):
    for name in ("a", "b"):
        (tree / "results" / f"{name}.md").write_text("4.56 and 7.89\n", encoding="utf-8")
    text = "# One\n\n[b](../results/b.md) 4.56\n\n# Two\n\n[a](../results/a.md)\n\nand 7.89\n"
    entry, nowhere = recorded("docs/page.md", text, {}, {})
    assert nowhere == []
    assert entry == Entry({"results/b.md": Counter({"4.56": 1}), "results/a.md": Counter({"7.89": 1})})


def test_a_row_that_links_to_a_page_of_results_has_its_numbers_there(tree):
    (tree / "results" / "other.md").write_text("9.87\n", encoding="utf-8")
    table = "| [speed](../results/speed.md) | 1.23 | 9.87 |\n|---|---|---|\n| none | 9.87 |\n"
    text = f"[other](../results/other.md)\n\n{table}"
    entry, nowhere = recorded("docs/page.md", text, {}, {})
    assert nowhere == ["9.87"]
    assert entry.sources == {"results/speed.md": Counter({"1.23": 1}), "results/other.md": Counter({"9.87": 1})}
