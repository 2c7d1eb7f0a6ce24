"""The pages of claims and of searches are what the program makes of the published runs, and no page says otherwise."""

import re
from pathlib import Path

import pytest

from studies.benzing2020 import claims_page, searches_page
from studies.benzing2020.claims import CLAIMS, OWN_CLAIMS
from studies.benzing2020.claims.rule import AtLeast, Between, mean_of
from studies.benzing2020.claims.settling import MOST_SEEDS, Settling, minutes_together, seeds_wanted

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "studies/benzing2020/README.md", "docs/reproduce.md", "results/paper/README.md")


@pytest.fixture(scope="module")
def published():
    return claims_page.known_results(ROOT / claims_page.STORE)


@pytest.fixture(scope="module")
def made(published):
    return claims_page.page(published)


def test_the_page_of_claims_is_what_the_published_runs_make(made):
    assert (ROOT / claims_page.PAGE).read_text(encoding="utf-8") == made


def test_the_page_of_searches_is_what_the_published_runs_make(published):
    assert (ROOT / searches_page.PAGE).read_text(encoding="utf-8") == searches_page.page(published)


def test_every_page_counts_the_claims_as_the_program_does(made):
    counted = re.search(rf"Of {len(CLAIMS)} claims .*? not run\.", made)[0]
    for page in PAGES:
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert re.findall(rf"Of {len(CLAIMS)} claims .*? not run\.", text) == [counted], page


def test_the_counts_are_those_of_the_tables(made):
    papers, own = made.partition("## The paper's claims")[2].split("## Claims of our own")
    for table, claims in ((papers, CLAIMS), (own, OWN_CLAIMS)):
        answers = re.findall(r"^\| `.*?\| \*\*(.*?)\*\* \|", table, flags=re.MULTILINE)
        held, failed, undecided = (answers.count(each) for each in ("holds", "does not hold", "undecided"))
        said = f"Of {len(claims)} claims {held} hold, {failed} do not, {undecided} are undecided"
        assert len(answers) == len(claims) and said in made


def test_every_undecided_claim_says_what_would_settle_it(made):
    table = made.partition("## What would settle the undecided")[2].partition("## ")[0]
    undecided = set(re.findall(r"^\| `([a-z0-9-]+)`: .*?\| \*\*undecided\*\* ", made, flags=re.MULTILINE))
    assert set(re.findall(r"^\| ([a-z0-9-]+) \| ", table, flags=re.MULTILINE)) - {"claim", "---"} == undecided


def test_as_many_seeds_are_asked_for_as_the_interval_needs():
    values = [1.0, 2.0, 3.0]  # mean 2, scatter 1
    # Student's t: 2.776 / √5 = 1.241 and 2.571 / √6 = 1.049, 3.182 / √4 = 1.591
    assert seeds_wanted([mean_of(values)], AtLeast(0.5)) == 5
    assert seeds_wanted([mean_of(values)], AtLeast(3.5)) == 5
    assert seeds_wanted([mean_of(values)], AtLeast(0.9)) == 6
    assert seeds_wanted([mean_of(values)], Between(0.5, 9.0)) == 5
    assert seeds_wanted([mean_of(values), mean_of([5.0, 6.0, 7.0])], AtLeast(0.9)) == 6
    assert seeds_wanted([mean_of(values)], AtLeast(1.999)) is None
    assert seeds_wanted([mean_of([2.0])], AtLeast(0.0)) == 3
    assert MOST_SEEDS == 100


def test_of_several_tasks_one_that_fails_is_enough():
    good, bad = mean_of([5.0, 6.0, 7.0]), mean_of([1.0, 2.0, 3.0])
    alone, both = seeds_wanted([bad], AtLeast(3.5)), seeds_wanted([bad, good], AtLeast(3.5))
    assert (alone, both) == (5, 6)  # for two, the interval is that of 97.5 %


def test_runs_that_claims_share_are_counted_once():
    claim = next(iter(CLAIMS.values()))
    settled = [
        Settling(claim, 5, {"a": (2, 60.0), "b": (1, 30.0)}, ("card",)),
        Settling(claim, 9, {"a": (6, 60.0)}, ("card",)),
    ]
    assert [each.minutes for each in settled] == [2.5, 6.0]
    assert minutes_together(settled) == 6.5
