import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.report import Figure, Measured, Report, Section, Table, Text, Verdict


def table(name="runs", columns=("a", "b"), rows=((1, 2),)):
    return Table(name, "Some numbers.", columns, rows)


def draw(canvas):
    canvas.subplots()


@pytest.mark.parametrize("name", ["", "Table 1", "../outside", "a/b", "a.b", "-a"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(ConfigurationError, match="its files take that name"):
        table(name)
    with pytest.raises(ConfigurationError, match="its files take that name"):
        Figure(name, "A figure.", draw)


def test_a_table_whose_rows_do_not_fit_is_refused():
    with pytest.raises(ConfigurationError, match=r"Row 1 of table 'runs' has 3 cells for 2 columns: \(1, 2, 3\)"):
        table(rows=[(1, 2), (1, 2, 3)])
    with pytest.raises(ConfigurationError, match="2 columns called 'a'"):
        table(columns=["a", "a"])


def test_lists_are_as_good_as_tuples():
    assert table(columns=["a", "b"], rows=[[1, 2]]) == table()
    assert hash(table(columns=["a", "b"], rows=[[1, 2]])) == hash(table())


def test_decimals_are_none_or_some():
    assert Measured(88.0, decimals=0).decimals == 0
    with pytest.raises(ConfigurationError, match="cannot be shown with -1 decimals"):
        Measured(88.0, decimals=-1)


@pytest.mark.parametrize("path", ["", "/etc/runs.csv", "../runs.csv", "a//b", "a\\b", "./a", "https://x.org/a", "C:a"])
def test_a_file_that_does_not_lie_beside_the_page_is_refused(path):
    with pytest.raises(ConfigurationError, match="give a path below the page's own folder"):
        Report("Title", Text(""), (), provenance=table(), files=((path, "All runs."),))


@pytest.mark.parametrize("answer", ["undecided", "not run"])
def test_a_verdict_that_decides_nothing_says_why(answer):
    with pytest.raises(ConfigurationError, match=f"'A1' is {answer}: say why"):
        Verdict("A1", "It holds.", answer, "", "above 1")
    assert Verdict("A1", "It holds.", answer, "", "above 1", "No runs.").answer == answer


def test_two_things_that_would_share_a_file_are_refused():
    with pytest.raises(ConfigurationError, match="2 tables of the report are called 'runs'"):
        Report("Title", Text(""), (Section("One", (table(),)),), provenance=table())
    figures = (Figure("f", "One.", draw, data=table("x")), Figure("f", "Two.", draw))
    with pytest.raises(ConfigurationError, match="2 figures of the report are called 'f'"):
        Report("Title", Text(""), (Section("One", figures),), provenance=table())
    verdict = Verdict("A1", "It holds.", "holds", "2", "above 1")
    with pytest.raises(ConfigurationError, match="2 tables of the report are called 'verdicts'"):
        Report("Title", Text(""), (Section("One", (verdict, table("verdicts"))),), provenance=table())


def test_paragraphs_have_an_empty_line_between_them():
    assert Text("One\nline.\n\n  \nAnother.\n").paragraphs == ["One line.", "Another."]
    assert Text("").paragraphs == []
