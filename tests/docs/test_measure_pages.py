"""Each measure has its page; code, names, strengths and sizes on them are right."""

import re

import pytest

import anchorhold
from anchorhold_lab.experiments import paper_spec
from tests.docs.pages import DOCS, page, run_page
from tests.docs.sizes import held

PAGES = sorted(path.stem for path in (DOCS / "measures").glob("*.md") if path.stem != "index")
NAMES = {"Permuted MNIST": "permuted-mnist", "Split CIFAR": "split-cifar"}


def row(name, title):
    """Return what stands beside a title in the table at the head of a measure's page."""
    (found,) = re.findall(rf"^\| {title} \| (.*) \|$", page(f"measures/{name}.md"), flags=re.MULTILINE)
    return found


def measures_of(name):
    return re.findall(r"`([\w-]+)`", row(name, "names"))


def bytes_of(measure):
    """Return the bytes that a measure's state holds for each parameter in the middle of a task."""
    state, _buffers = held(measure)
    return state


def test_every_measure_has_its_page():
    named = [measure for name in PAGES for measure in measures_of(name)]
    assert sorted(named) == sorted(anchorhold.measures.default_measures())
    overview = page("measures/index.md")
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", overview)) == set(PAGES)


def test_the_table_names_every_measure_and_its_class():
    overview = page("measures/index.md")
    table = overview[overview.index("## Side by side") : overview.index("## What they cost")]
    for name, measure in anchorhold.measures.default_measures().items():
        if name not in ("MASX-logits", "posterior-scaled"):  # variants of a row
            assert re.search(rf"\b{re.escape(name)}\b", table), name
        assert f"{type(measure).__name__}(" in table


@pytest.mark.daily
@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_all_there_is_to_say(name):
    text = page(f"measures/{name}.md")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE)[0] == "Formula"
    for heading in ("## When to use", "## Example", "## Gotchas"):
        assert heading in text
    for made in re.findall(r"`(anchorhold\..*?)`", row(name, "class")):
        assert eval(made, {"anchorhold": anchorhold}).name in measures_of(name)


@pytest.mark.daily
@pytest.mark.parametrize("name", [*PAGES, "index"])
def test_its_code_runs(name):
    run_page(f"measures/{name}.md")


@pytest.mark.daily
@pytest.mark.parametrize("name", PAGES)
def test_its_state_has_the_size_that_it_says(name):
    (said,) = re.findall(r"^(\d+) bytes a parameter", row(name, "state"))
    for measure in measures_of(name):
        assert bytes_of(measure) == int(said)


def test_the_overview_has_the_same_sizes():
    overview = page("measures/index.md")
    costs = overview[overview.index("## What they cost") :]
    rows = re.findall(r"^\| ([\w, -]+) \| .* \| (\d+) \|$", costs, flags=re.MULTILINE)
    said = {measure: int(size) for measures, size in rows for measure in measures.split(", ")}
    assert len(said) == 17
    for measure, size in said.items():
        assert bytes_of(measure) == size


@pytest.mark.daily
@pytest.mark.parametrize("name", PAGES)
def test_strengths_are_the_papers(name):
    strength = row(name, "strength")
    usual = measures_of(name)[0]
    found = re.findall(r"([\d.]+) \((Permuted MNIST|Split CIFAR)\)", strength)
    assert found or "the paper has no" in strength or "the paper gives none" in strength
    for said, benchmark in found:
        assert paper_spec(NAMES[benchmark], usual).strength == float(said)
    for changed, changes in (("at batch 2048", {"batch_size": 2048}), ("on logits", {})):
        for pair in re.findall(rf"{changed}: ([\d.]+), ([\d.]+)", strength):
            measure = "MAS-logits" if changed == "on logits" else usual
            specs = [paper_spec(benchmark, measure, **changes) for benchmark in NAMES.values()]
            assert [spec.strength for spec in specs] == [float(said) for said in pair]
