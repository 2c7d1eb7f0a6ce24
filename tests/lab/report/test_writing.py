import re
from html.parser import HTMLParser

import pytest

from anchorhold_lab.report import Figure, Report, Section, Table, Text, Verdict, write_report


def draw(canvas):
    canvas.subplots().plot([1, 2, 3])


def report(word="Rhabarber"):
    data = Table("data", f"{word} data", (f"{word} x",), [(word,)])
    items = (
        Text(f"{word} text"),
        Table("table", f"{word} caption", (f"{word} column",), [(f"{word} cell",)]),
        Verdict(f"{word}", f"{word} claim", "does not hold", f"{word} statistic", f"{word} threshold", f"{word} note"),
        Figure("figure", f"{word} figure", draw, data=data, alt=f"{word} alt", size=(2, 2)),
    )
    sections = (Section(f"{word} title", items),)
    files = (("runs.csv", f"{word} runs"), ("more/a table #1.csv", f"{word} table"))
    return Report(f"{word} report", Text(f"{word} lead"), sections, Table("runs", word, ("run",), [(1,)]), files)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self.links += [value for name, value in attributes if name in ("href", "src", "srcset")]

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("report") / "not" / "there yet"
    assert write_report(report(), root) == root / "index.html"
    return root


def test_our_own_claims_are_counted_apart(tmp_path):
    answers = {"a": "holds", "b": "holds", "c": "holds", "d": "does not hold", "e": "undecided", "f": "not run"}
    verdicts = [Verdict(name, "It is so.", answers[name], "2", "> 1", "Why.", own=name == "c") for name in answers]
    section = Section("Claims", tuple(verdicts))
    page = write_report(Report("R", Text("Lead."), (section,), Table("runs", "", ("run",), ())), tmp_path)
    tally = re.findall(r"<strong>(\d+)</strong> <span class=\"answer\">([^<]+)", page.read_text(encoding="utf-8"))
    assert tally == [
        ("2", "hold"),
        ("1", "do not hold"),
        ("1", "undecided"),
        ("1", "not run"),
        ("1", "hold (of our own)"),
    ]


def test_everything_lies_where_it_should(folder):
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == [
        "data/data.csv",
        "data/runs.csv",
        "data/table.csv",
        "data/verdicts.csv",
        "figures/figure.pdf",
        "figures/figure.png",
        "figures/figure.svg",
        "index.html",
    ]


def test_every_link_leads_somewhere_and_nothing_leads_away(folder):
    text = (folder / "index.html").read_text(encoding="utf-8")
    links = Page(text).links
    inside = [link[1:] for link in links if link.startswith("#")]
    beside = [link for link in links if not link.startswith(("#", "data:"))]
    assert inside and all(f'id="{name}"' in text for name in inside)
    ours = [link for link in beside if link.startswith(("data/", "figures/"))]
    assert len(ours) == 7 and all((folder / link).is_file() for link in ours)
    # What others write is linked to as it is called, whatever its name means in an address.
    assert [link for link in beside if link not in ours] == ["runs.csv", "more/a%20table%20%231.csv"]


def test_files_are_listed_only_where_there_are_any(folder, tmp_path):
    with_files = Page((folder / "index.html").read_text(encoding="utf-8")).words
    assert re.search(r"Files\s+runs\.csv Rhabarber runs\s+more/a table #1\.csv Rhabarber table", with_files)
    without = Report("Title", Text(""), (), Table("runs", "", ("run",), [(1,)]))
    assert "Files" not in Page(write_report(without, tmp_path).read_text(encoding="utf-8")).words


def test_the_same_report_is_the_same_files(folder, tmp_path):
    write_report(report(), tmp_path)
    for path in folder.rglob("*.*"):
        assert (tmp_path / path.relative_to(folder)).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("evil", ["</style><script>x()</script>", "\"'><!-- onload='x'", "{{ 7*7 }}{% &amp; &lt"])
def test_whatever_the_words_are_they_stay_words(folder, tmp_path, evil):
    page = Page(write_report(report(evil), tmp_path).read_text(encoding="utf-8"))
    plain = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert page.tags == plain.tags
    assert re.sub(r"\s+", " ", page.words) == re.sub(r"\s+", " ", plain.words.replace("Rhabarber", evil))


def test_a_figure_that_cannot_be_drawn_leaves_the_old_report(folder, tmp_path):
    def fail(canvas):
        raise ZeroDivisionError

    index = write_report(report(), tmp_path)
    broken = Report("Broken", Text(""), (Section("", (Figure("figure", "", fail),)),), Table("runs", "", (), ()))
    with pytest.raises(ZeroDivisionError):
        write_report(broken, tmp_path, {"runs.csv": b"new"})
    assert not (tmp_path / "runs.csv").exists()
    assert index.read_bytes() == (folder / "index.html").read_bytes()
    assert (tmp_path / "figures" / "figure.svg").read_bytes() == (folder / "figures" / "figure.svg").read_bytes()


def test_what_an_earlier_report_had_goes_and_what_others_put_there_stays(tmp_path):
    write_report(report(), tmp_path)
    (tmp_path / "data" / "mine.csv").write_text("1")
    whole = report()
    section = Section("Title", tuple(item for item in whole.sections[0].items if not isinstance(item, Table | Figure)))
    write_report(Report(whole.title, whole.lead, (section,), whole.provenance, whole.files), tmp_path)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["mine.csv", "runs.csv", "verdicts.csv"]
    assert not any((tmp_path / "figures").iterdir())
    (tmp_path / "index.html").write_bytes(b'\xff href="data/mine.csv"')  # no page of ours
    write_report(whole, tmp_path)
    assert (tmp_path / "data" / "mine.csv").exists()
