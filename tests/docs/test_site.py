"""The site builds without a warning, needs no network to be read, and shows its formulas in a real browser."""

import os
import re
import subprocess
import sys

import pytest
from filelock import FileLock

from tests.docs.pages import DOCS
from tests.lab.report.browser import Browser

LOADED = r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)"""
DRAWN = """(() => {
  const box = element => element.getBoundingClientRect();
  const formulas = [...document.querySelectorAll('main math, article math')];
  const fractions = formulas.flatMap(formula => [...formula.querySelectorAll('mfrac')]);
  return {
    empty: formulas.filter(formula => box(formula).width < 3 || box(formula).height < 5).length,
    formulas: formulas.length,
    displayed: formulas.filter(formula => formula.getAttribute('display') === 'block').length,
    fractions: fractions.length,
    flat: fractions.filter(({children: [over, under]}) => box(over).bottom > box(under).top + 1).length,
    ink: getComputedStyle(formulas[0]).color,
    paper: getComputedStyle(document.body).backgroundColor,
    wide: document.documentElement.scrollWidth > innerWidth,
  };
})()"""


def build(source, target):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", source, target]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, built once however many processes run these tests."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(folder / "site.lock"):
        if not (folder / "site" / "index.html").exists():
            done = build(DOCS, folder / "building")
            assert done.returncode == 0, done.stderr
            (folder / "building").rename(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_every_page_is_there_and_none_needs_the_network(site):
    pages = list(site.rglob("*.html"))
    for source in DOCS.rglob("*.md"):
        assert (site / source.relative_to(DOCS).with_suffix(".html")) in pages
    for path in pages:
        loaded = [first or second for first, second in re.findall(LOADED, path.read_text(encoding="utf-8"))]
        assert loaded
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1400])
def test_formulas_are_drawn(browser, site, width, dark):
    browser.open(site / "measures" / "ewc.html", width=width, dark=dark)
    drawn = browser.evaluate(DRAWN)
    assert drawn["formulas"] >= 5 and drawn["displayed"] >= 1 and drawn["fractions"] >= 1
    assert drawn["empty"] == drawn["flat"] == 0  # and what is divided stands above what divides
    brightness = [sum(map(int, re.findall(r"\d+", drawn[what])[:3])) for what in ("ink", "paper")]
    assert (brightness[0] - brightness[1] if dark else brightness[1] - brightness[0]) > 300
    assert not drawn["wide"]
    assert_quiet(browser)


BARS = """[...document.querySelectorAll('article math mrow > mo')].filter(mo => '|‖'.includes(mo.textContent)).flatMap(
  bar => {
    const box = element => element.getBoundingClientRect();
    const [before, after] = [bar.previousElementSibling, bar.nextElementSibling].map(e => e?.localName === 'mi' && e);
    const gaps = [before && box(bar).left - box(before).right, after && box(after).left - box(bar).right];
    return gaps.filter(gap => typeof gap === 'number').map(gap => gap / parseFloat(getComputedStyle(bar).fontSize));
  }
)"""


@pytest.mark.parametrize("name", ["why-our-ewc-differs", "api/measures"])
def test_bars_stand_close_to_what_they_enclose(browser, site, name):
    browser.open(site / f"{name}.html", width=1400)
    gaps = browser.evaluate(BARS)
    assert gaps and max(gaps) < 0.1  # in em; around a relation there is more


NUMBERS = """[...document.querySelectorAll('article table')].filter(table => table.rows[0].cells.length > 6).flatMap(
  table => [...table.rows].slice(1).flatMap(row => [...row.cells].slice(3, -1)).map(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
  })
)"""


@pytest.mark.parametrize("width", [375, 1400])
def test_the_audits_numbers_are_not_broken(browser, site, width):
    browser.open(site / "why-our-ewc-differs.html", width=width)
    lines = browser.evaluate(NUMBERS)
    assert lines and max(lines) <= 3  # a correlation and a size below it, and the cell's own paragraph


@pytest.mark.daily
@pytest.mark.parametrize("name", ["index", "start", "measures/index", "guides/own-loop", "api/guard", "gotchas"])
def test_pages_fit_a_phone_and_throw_nothing(browser, site, name):
    browser.open(site / f"{name}.html", width=375)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_quiet(browser)


@pytest.mark.nightly
@pytest.mark.parametrize("formula", [r"\left( a", r"\nosuchcommand x", r"\begin{aligned} a &= b \end{aligned}"])
def test_a_formula_that_cannot_be_read_fails_the_build(tmp_path, formula):
    source = tmp_path / "docs"
    source.mkdir()
    extensions = str(DOCS / "extensions")
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {extensions!r})\nextensions = ['mathml']\nhtml_math_renderer = 'mathml'\n"
    )
    (source / "index.rst").write_text(f"Page\n====\n\n:math:`a^2` and\n\n.. math:: {formula}\n")
    done = build(source, tmp_path / "out")
    assert done.returncode != 0
    assert "formula" in done.stderr and formula.split()[0] in done.stderr.replace("\\\\", "\\")


def assert_quiet(browser):
    """Nothing went wrong, nothing was printed, and nothing but files was asked for."""
    for event in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert browser.happened(event) == []
    requests = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert [address for address in requests if not address.startswith(("file:", "data:"))] == []
