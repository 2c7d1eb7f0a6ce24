"""A whole report in a real browser, as a reader meets it."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from anchorhold_lab.report import write_report
from tests.lab.report.browser import Browser, ChromiumEndedError
from tests.lab.report.sample import ALGORITHMS, sample_report

TABLE = "#table-table1"
ENSURE = Path(__file__).parents[3] / "scripts" / "ensure_chromium"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return write_report(sample_report(), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def column(browser, place):
    rows = f"[...document.querySelectorAll('{TABLE} tbody tr')]"
    return browser.evaluate(f"{rows}.map(row => row.cells[{place}].textContent)")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1600])
def test_everything_shows_at_every_width_in_either_scheme(browser, index, width, dark):
    browser.open(index, width=width, dark=dark)
    pictures = browser.evaluate(
        "Promise.all([...document.images].map(async image => { await image.decode(); const box ="
        " image.getBoundingClientRect(); return [image.naturalWidth, box.width, box.height, image.alt.length]; }))"
    )
    assert len(pictures) == 5
    assert all(natural > 100 and shown > 250 and height > 100 and alt for natural, shown, height, alt in pictures)
    # Boxes that scroll by themselves may hold more than fits; the page may not.
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = browser.evaluate(
        "[...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll') &&"
        " e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")
    assert browser.evaluate("document.images[0].currentSrc === document.images[0].src") is not dark
    assert_quiet(browser, index)


def test_a_figure_is_drawn_in_the_page_and_not_left_blank(browser, index):
    browser.open(index, width=1600)
    colours = browser.evaluate(
        "(async () => { const image = document.querySelector('#figure-sums img'); await image.decode();"
        " const canvas = document.createElement('canvas'); canvas.width = 700; canvas.height = 320;"
        " const pen = canvas.getContext('2d'); pen.drawImage(image, 0, 0, 700, 320);"
        " const found = new Set(new Uint32Array(pen.getImageData(0, 0, 700, 320).data.buffer)); return found.size; })()"
    )
    assert colours > 20


def test_tables_sort_by_mouse_and_keyboard(browser, index):
    browser.open(index, width=1600)
    before = column(browser, 0)
    assert len(before) == len(ALGORITHMS)
    header = f"{TABLE} th:nth-child(2)"

    browser.click(f"{header} button")
    rising = [float(text.split(" ± ")[0]) for text in column(browser, 1)]
    assert rising == sorted(rising)
    assert column(browser, 0) != before
    assert browser.evaluate(f"document.querySelector('{header}').ariaSort") == "ascending"

    browser.press_enter()  # the button has the focus since the click
    falling = [float(text.split(" ± ")[0]) for text in column(browser, 1)]
    assert falling == sorted(falling, reverse=True)
    assert browser.evaluate(f"document.querySelector('{header}').ariaSort") == "descending"

    browser.click(f"{TABLE} th:nth-child(1) button")
    names = [name for name in column(browser, 0) if name != "√Fisher"]  # where a root belongs is a matter of taste
    assert names == ["AF", "EWC", "MAS", "SI", "SI(2048)", "SIB", "SIU", "SOS", "SOS(2048)"]
    assert browser.evaluate(f"document.querySelectorAll('{TABLE} th[aria-sort]').length") == 1
    assert_quiet(browser, index)


def test_a_bound_sorts_among_numbers(browser, index):
    browser.open(index, width=1600)
    browser.click(f"{TABLE} th:nth-child(3) button")
    assert column(browser, 2)[0] == "<95"
    browser.click(f"{TABLE} th:nth-child(3) button")
    assert column(browser, 2)[-1] == "<95"
    assert browser.evaluate(f"getComputedStyle(document.querySelector('{TABLE} td:nth-child(3)')).textAlign") == "right"


@pytest.mark.parametrize("width", [390, 1600])
def test_every_arrow_stands_right_behind_its_own_heading(browser, index, width):
    browser.open(index, width=width)
    found = browser.evaluate(
        "[...document.querySelectorAll('th button')].map(button => { const words = document.createRange();"
        " button.scrollIntoView({block: 'center', inline: 'center'}); words.selectNodeContents(button);"
        " const line = [...words.getClientRects()].at(-1);"
        " return document.elementFromPoint(line.right + 6, (line.top + line.bottom) / 2) === button; })"
    )
    assert len(found) == 16 and all(found)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1600])
def test_an_edge_is_shaded_where_and_only_where_something_is_hidden(browser, index, width, dark):
    browser.open(index, width=width, dark=dark)
    paper = (22, 24, 27) if dark else (255, 255, 255)
    boxes = browser.evaluate("document.querySelectorAll('.scroll').length")
    assert boxes == 7
    scrolling = 0
    for place in range(boxes):
        hidden = browser.evaluate(f"{box(place)}.scrollWidth - {box(place)}.clientWidth")
        for scrolled in {0, hidden // 2, hidden}:
            expected = (scrolled > 8, scrolled < hidden)
            assert shades(browser, place, scrolled, paper) == expected, (place, scrolled, hidden)
        scrolling += hidden > 0
    assert scrolling == {390: 5, 800: 2, 1600: 1}[width]


def test_the_count_at_the_top_leads_to_each_claim(browser, index):
    browser.open(index, width=800)
    links = browser.evaluate(
        "[...document.querySelectorAll('.tally > li, nav')].map(part => [...part.querySelectorAll('a')].map(link =>"
        " document.getElementById(decodeURIComponent(link.hash.slice(1))) !== null))"
    )
    assert all(found and all(found) for found in links) and len(links) == 5
    counts = browser.evaluate("[...document.querySelectorAll('.tally strong')].map(count => +count.textContent)")
    assert counts == [len(found) for found in links[:4]]
    shown = "document.querySelector('.tally .fails ol').checkVisibility()"
    assert not browser.evaluate(shown)
    browser.click(".tally .fails summary")
    assert browser.evaluate(shown)


def test_the_name_of_a_row_stays_in_sight(browser, index):
    browser.open(index, width=390)
    row = browser.evaluate(
        f"(() => {{ const box = document.querySelector('{TABLE} .scroll'); box.scrollLeft = 1e6;"
        " const at = box.getBoundingClientRect(), cells = box.querySelector('tbody tr').cells;"
        " const first = cells[0].getBoundingClientRect(), last = cells[cells.length - 1].getBoundingClientRect();"
        " return [first.left - at.left, last.right - at.right, last.left - first.right]; })()"
    )
    assert row[0] == pytest.approx(0, abs=0.6) and row[1] == pytest.approx(0, abs=0.6) and row[2] > 0


def test_what_is_missing_stays_last_both_ways(browser, index):
    browser.open(index, width=1600)
    for _ in range(2):
        browser.click(f"{TABLE} th:nth-child(7) button")
        assert column(browser, 6)[-1] == "–"


def test_a_page_that_breaks_the_rules_would_be_noticed(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<script>nowhere()</script><img src='https://127.0.0.1:9/x.png'>", encoding="utf-8")
    browser.open(bad, width=375)
    assert browser.happened("Runtime.exceptionThrown")
    assert len(requests(browser)) == 2


def test_without_a_browser_the_command_that_brings_one_is_named(tmp_path):
    empty = {"PATH": str(tmp_path)}
    done = subprocess.run(["/bin/sh", ENSURE], env=empty, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "sudo apt-get install -y --no-install-recommends chromium" in done.stderr


def test_without_chromium_a_test_is_skipped_with_the_reason_but_fails_in_ci(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = "none of chromium, chromium-browser, google-chrome is installed. Install it: sh scripts/ensure_chromium"
    before = descriptors()
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=reason):
        Browser(tmp_path / "profile")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=reason):
        Browser(tmp_path / "profile")
    assert descriptors() == before


def test_a_browser_that_ends_at_once_leaves_no_pipe_open(tmp_path, monkeypatch):
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    before = descriptors()
    with pytest.raises(ChromiumEndedError):
        Browser(tmp_path / "profile")
    assert descriptors() == before


def descriptors():
    """Return how many files and pipes this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def box(place):
    return f"document.querySelectorAll('.scroll')[{place}]"


def shades(browser, place, scrolled, paper):
    """Return whether a box that was scrolled has a shadow on its left and on its right."""
    at = browser.evaluate(
        f"new Promise(done => {{ const box = {box(place)}, first = box.querySelector('td');"
        f" box.scrollLeft = {scrolled}; box.scrollIntoView({{block: 'start', behavior: 'instant'}});"
        " const {left, right, top, height} = box.getBoundingClientRect(); const page = {right, y: top + scrollY + 4,"
        " left: first ? first.getBoundingClientRect().right : left, height: Math.min(height - 12, 400)};"
        # A frame is drawn before and after, so that the scrolling has had its effects.
        " requestAnimationFrame(() => requestAnimationFrame(() => done(page))); })"
    )
    # Of a column of pixels most have the background's colour, whatever else is in it.
    strips = (at["left"] + 1, at["right"] - 3)
    backgrounds = [
        np.median(browser.pixels(x=x, y=at["y"], width=2, height=at["height"]).reshape(-1, 3), axis=0) for x in strips
    ]
    return tuple(bool(np.abs(found - paper).max() > 20) for found in backgrounds)


def requests(browser):
    addresses = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    return [address for address in addresses if not address.startswith("data:")]


def assert_quiet(browser, index):
    """Nothing went wrong, nothing was printed, and nothing was asked for but the page itself."""
    for event in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert browser.happened(event) == []
    assert requests(browser) == [index.as_uri()]
