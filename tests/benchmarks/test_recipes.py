"""The study of all that keeps English while Python is learned: recipes at a tiny size, and what is read off them."""

import dataclasses
import itertools
import math

import pytest
import torch

from anchorhold import Kronecker
from anchorhold_lab.report.colours import told_apart
from benchmarks.language import corpus, plot, recipe_plot, recipe_report, recipes, small_forms
from benchmarks.language.adapter_recipes import ADAPTER_RECIPES
from benchmarks.language.lines import studies
from benchmarks.language.recipes import OLD, RECIPES, SHARES, Looked, Recipe, Trial
from benchmarks.language.settings import REHEARSAL
from benchmarks.language.small_forms import STRENGTHS
from benchmarks.language.training import Device
from tests.lab.report.test_colours import contrast, lab, linear

TINY = recipes.study_settings(
    dataclasses.replace(
        REHEARSAL, width=16, context=16, english_steps=60, english_rate=1e-2, measured=4, python_steps=12, windows=8
    )
)
ENGLISH = "The people of the island were asked what they thought of the weather. "
PYTHON = "def weather(island):\n    return [w for w in island.people() if w is not None]\n"
SOME = (
    Recipe("fine-tuning"),
    Recipe("strong", (1e-9, 1e3), guard="rotated by position"),
    Recipe("distilled", olds=(0.5,), text="own", distilled=True),
    Recipe("all", (1e-9,), olds=(OLD,), guard="EWC", measured_on="own", text="english", distilled=True),
    Recipe("replayed", olds=(0.5,), text="english"),
    Recipe("RegMean merge", merged_by=Kronecker(outputs="identity")),
)


@pytest.fixture(scope="module")
def text():
    parts = {("english", "train"): ENGLISH * 6, ("english", "validation"): ENGLISH * 4}
    parts |= {("python", "train"): PYTHON * 6, ("python", "validation"): PYTHON * 4}
    return corpus.Corpus({key: torch.tensor(list(part.encode()), dtype=torch.uint8) for key, part in parts.items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def looked(text, folder):
    given = (TINY, text, Device(torch.device("cpu")), folder / "recipes.jsonl", folder / "work")
    assert not recipes.run(*given, -1.0, SOME)  # no time at all
    assert recipes.run(*given, 1e9, SOME)
    before = (folder / "recipes.jsonl").read_bytes()
    assert recipes.run(*given, 1e9, SOME)  # nothing is run twice
    assert (folder / "recipes.jsonl").read_bytes() == before
    return recipes.read(folder / "recipes.jsonl")


def test_every_trial_is_looked_at_on_both_halves_and_at_all_shares(looked):
    assert [found.trial for found in looked] == [trial for recipe in SOME for trial in recipe.trials()]
    for found in looked:
        assert set(found.after) == {str(share) for share in SHARES}
        losses = [found.before, *found.after.values()]
        assert all(len(each[language]) == 2 for each in losses for language in ("english", "python"))
        assert all(math.isfinite(loss) for each in losses for halves in each.values() for loss in halves)


def test_shares_below_what_is_reported_need_not_be_looked_at(looked, text, folder, tmp_path):
    given = (TINY, text, Device(torch.device("cpu")), tmp_path / "lines.jsonl", folder / "work")
    assert recipes.run(*given, 1e9, SOME[:2], least=0.9)
    fewer = recipes.read(tmp_path / "lines.jsonl")
    network = looked[0].network
    whole = recipes.gained(looked[0].before, looked[0].after["1.0"])
    free, *others = fewer
    assert [found.trial for found in fewer] == [found.trial for found in looked[:3]]
    assert free.after.keys() == looked[0].after.keys()  # what the others are compared with is seen whole
    for found, full in zip(others, looked[1:], strict=False):
        shares = list(found.after)
        assert shares == [str(share) for share in SHARES][-len(shares) :] and len(shares) < len(SHARES)
        below = [recipes.gained(found.before, found.after[share]) < 0.9 * whole for share in shares]
        assert below == [True, *[False] * (len(shares) - 1)]
        assert all(found.after[share]["english"] == pytest.approx(full.after[share]["english"]) for share in shares)
    for name, gain in itertools.product(("fine-tuning", "strong"), (0.9, 0.95)):
        all_of_it = recipe_report.lost(looked, network, name, gain, averaged=True)
        assert recipe_report.lost(fewer, network, name, gain, averaged=True) == pytest.approx(all_of_it)
    assert recipe_report.lost(fewer, network, "strong", 0.5, averaged=True) is None  # not a line from the start


def test_what_keeps_keeps_and_what_is_off_does_not(looked):
    here = {(found.trial.recipe, found.trial.strength): found.after["1.0"] for found in looked}
    free, off, held = here["fine-tuning", 0.0], here["strong", 1e-9], here["strong", 1e3]
    assert off["english"] == pytest.approx(free["english"], abs=1e-3)
    assert sum(held["english"]) < sum(free["english"]) and sum(held["python"]) > sum(free["python"])
    for kept in ("distilled", "all", "replayed"):
        strength = 1e-9 if kept == "all" else 0.0
        assert sum(here[kept, strength]["english"]) < sum(free["english"]), kept
    merged = here["RegMean merge", 0.0]  # at a share of 1 the fine-tuned network, however merged
    assert all(merged[language] == pytest.approx(free[language]) for language in free)


def test_recipes_have_as_many_trials_and_names_of_their_own():
    counts = {recipe.name: len(list(recipe.trials())) for recipe in RECIPES}
    assert len(counts) == len(RECIPES) and set(counts.values()) == {1, 4}
    assert all(counts[recipe.name] == 4 for recipe in RECIPES if not recipe.is_fine_tuning)


def made(name, strength, english, python, network="network"):
    """Return a trial whose losses at a share of 1 are given for both halves; averages are straight lines."""
    before = {"english": [1.0, 1.0], "python": [3.0, 3.0]}
    after = {
        str(share): {
            "english": [1.0 + share * lost for lost in english],
            "python": [3.0 - share * gained for gained in python],
        }
        for share in SHARES
    }
    return Looked(Trial(name, strength, 0.0), 0, network, before, after, 1.0, "CPU", "abc")


def test_one_half_chooses_and_the_other_is_reported():
    looked = [
        made("fine-tuning", 0.0, [0.5, 0.5], [2.0, 2.0]),
        made("rotated", 1e-3, [0.10, 0.30], [2.0, 2.0]),  # the best by the first half
        made("rotated", 3e-3, [0.20, 0.10], [2.0, 2.0]),  # by the second
    ]
    assert recipe_report.lost(looked, "network", "fine-tuning", 0.9, averaged=True) == pytest.approx(0.45)
    assert recipe_report.lost(looked, "network", "rotated", 0.9, averaged=True) == pytest.approx(
        0.9 * (0.30 + 0.20) / 2
    )
    assert recipe_report.lost(looked, "network", "EWC", 0.9, averaged=True) is None
    assert recipe_report.lost(looked, "network", "fine-tuning", 0.9, averaged=False) is None  # a point is no line


def test_without_averaging_the_line_goes_through_the_strengths():
    looked = [
        made("fine-tuning", 0.0, [0.5, 0.5], [2.0, 2.0]),
        made("rotated", 1e-3, [0.30, 0.40], [2.0, 2.0]),
        made("rotated", 1e-2, [0.10, 0.20], [1.6, 1.6]),
    ]
    assert recipe_report.lost(looked, "network", "rotated", 0.9, averaged=False) == pytest.approx(0.25)
    assert recipe_report.lost(looked, "network", "rotated", 0.5, averaged=False) is None
    page = recipe_report.page(looked)
    assert "| rotated | 2 of 4 | 0 | 0.250 |" in page and "Not run: own text, distilled;" in page
    assert "| rotated | 0.001 | 0 | 1.000 | 0.350 | 1 |" in page
    whole = [*looked, made("rotated", 3e-3, [0.3, 0.3], [1.9, 1.9]), made("rotated", 3e-2, [0.1, 0.1], [1.0, 1.0])]
    assert "| rotated | 0.250 |" in recipe_report.page(whole)


def test_networks_of_one_seed_are_never_mixed():
    """A seed that learned English twice is two networks, whose fine-tuning and trials are not each other's."""
    first = [made("fine-tuning", 0.0, [0.5, 0.5], [2.0, 2.0], "old")]
    first += [made("rotated", s, [0.4, 0.4], [2.0, 2.0], "old") for s in (0.1, 0.2)]
    second = [made("fine-tuning", 0.0, [1.0, 1.0], [1.0, 1.0], "new")]
    second += [made("rotated", s, [0.2, 0.2], [1.0, 1.0], "new") for s in (1e-3, 3e-3)]
    some = (Recipe("fine-tuning"), Recipe("rotated", (1e-3, 3e-3), guard="rotated", earlier=(0.1, 0.2)))
    assert studies([*first, *second]) == [second, first]
    assert recipe_report.networks_of([*first, *second], "rotated", some) == ["old", "new"]
    page = recipe_report.page([*first, *second], some)
    tables = page.split("Seeds 0:")[1:]
    assert "| rotated | – | – | 0.180 | 0.190 |" in tables[0] and "| fine-tuning | – | – | 0.900 | 0.950 |" in tables[0]
    assert "| rotated | – | – | 0.360 | 0.380 |" in tables[1] and "| fine-tuning | – | – | 0.450 | 0.475 |" in tables[1]
    assert page.index("Networks new of seed 0") < page.index("Networks old of seed 0")
    assert page.count("| fine-tuning | 0 | 0 | 1.000 |") == 2


def test_networks_of_several_studies_are_put_together_where_each_has_several():
    def network(name, seed, tries, lost):
        found = [made("fine-tuning", 0.0, [0.5, 0.5], [2.0, 2.0], name)]
        found += [made("rotated", s, [lost, lost], [2.0, 2.0], name) for s in tries]
        return [dataclasses.replace(each, seed=seed) for each in found]

    some = (Recipe("fine-tuning"), Recipe("rotated", (1e-3, 3e-3), guard="rotated", earlier=(0.1, 0.2)))
    first = [network(f"old{seed}", seed, (0.1, 0.2), 0.4) for seed in (0, 1)]
    second = [network(f"new{seed}", seed, (1e-3, 3e-3), 0.2) for seed in (0, 1)]
    page = recipe_report.page([each for one in [*first, *second] for each in one], some)
    together = page.partition("## All networks together")[2].partition("## Every trial")[0]
    assert "| fine-tuning | 4 | – | – | 0.450 ± 0.000 | 0.475 ± 0.000 |" in together
    assert "| rotated | 4 | – | – | 0.270 ± 0.052 | 0.285 ± 0.055 |" in together
    assert "As it was trained, fine-tuning lost 0.500 ± 0.000." in together
    few = recipe_report.page([each for one in [*first, second[0]] for each in one], some)
    assert "All networks together" not in few  # one network in a study says nothing of its tries


def test_forms_that_take_less_are_compared_once_all_of_their_strengths_were_tried():
    lines = [made("fine-tuning", 0.0, [0.5, 0.5], [2.0, 2.0])]
    for name, count in (("rotated", 4), ("Kronecker16", 3)):
        for i, strength in enumerate(STRENGTHS[:count]):
            lines.append(made(name, strength, [0.4 - 0.1 * i] * 2, [2.0 - 0.1 * i] * 2))
    page = small_forms.page(lines)
    assert "| rotated | 0.300 | 0.360 | 0 |" in page and "| Kronecker16 " not in page


def test_pictures_of_the_study_have_a_colour_for_each_method_that_no_other_is_near():
    shades = told_apart(["EWC", "SOS", "MAS", "rotated", "fine-tuning"]) | plot.SHADES
    drawn = {label: shade for label, shade, _ in recipe_plot.SHOWN.values() if shade.startswith("#")}
    shades |= {label: shade for label, shade in drawn.items() if shade not in plot.SHADES.values()}
    assert len(shades) == 13
    for a, b in itertools.combinations(shades, 2):
        assert math.dist(lab(linear(shades[a])), lab(linear(shades[b]))) > 18, (a, b)
    assert all(contrast(shade, "white") > 2.5 for shade in shades.values())


def test_recipes_are_drawn(looked, tmp_path):
    recipe_plot.draw(looked, tmp_path / "recipes.png")
    assert (tmp_path / "recipes.png").read_bytes().startswith(b"\x89PNG")


def test_an_adapter_is_held_by_its_merged_weights_and_by_its_factors(text, tmp_path):
    some = (
        Recipe("fine-tuning", way="lora"),
        Recipe("EWC, merged weights", (1e-9, 1e3), guard="EWC", way="lora", space="merged"),
        Recipe("Kronecker, merged weights", (1e-9, 1e3), guard="Kronecker", way="lora", space="merged"),
        Recipe("EWC, factors", (1e3,), guard="EWC", way="lora"),
    )
    settings = dataclasses.replace(TINY, python_rate={"full": 1e-2, "lora": 3e-2})
    given = (settings, text, Device(torch.device("cpu")), tmp_path / "adapter.jsonl", tmp_path / "work")
    assert recipes.run(*given, 1e9, some)
    looked = recipes.read(tmp_path / "adapter.jsonl")
    here = {(found.trial.recipe, found.trial.strength): found.after["1.0"] for found in looked}
    free = here["fine-tuning", 0.0]
    for name in ("EWC, merged weights", "Kronecker, merged weights"):
        assert here[name, 1e-9]["english"] == pytest.approx(free["english"], abs=1e-3)
        assert abs(sum(here[name, 1e3]["english"]) - sum(looked[0].before["english"])) < abs(
            sum(free["english"]) - sum(looked[0].before["english"])
        )
    page = recipe_report.page(looked, some)
    assert "recipes --adapter CORPUS" in page and "| fine-tuning |" in page


def test_the_adapters_recipes_are_of_one_way_with_names_of_their_own():
    assert {recipe.way for recipe in ADAPTER_RECIPES} == {"lora"}
    assert len({recipe.name for recipe in ADAPTER_RECIPES}) == len(ADAPTER_RECIPES)
    assert {len(list(recipe.trials())) for recipe in ADAPTER_RECIPES[1:]} == {4}
