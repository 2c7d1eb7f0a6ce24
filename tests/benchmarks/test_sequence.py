"""One kind of text after another: courses at a tiny size, and what is read off them."""

import dataclasses

import pytest
import torch

from benchmarks.language import corpus, recipes
from benchmarks.language.recipes import Trial
from benchmarks.language.sequence import report, study
from benchmarks.language.sequence.course import Stage, Went
from benchmarks.language.sequence.keeping import FREE, KEEPINGS, Keeping
from benchmarks.language.sequence.kinds import CHOOSES
from benchmarks.language.settings import REHEARSAL
from benchmarks.language.training import Device

TINY = recipes.study_settings(
    dataclasses.replace(
        REHEARSAL,
        width=16,
        context=16,
        english_steps=60,
        english_rate=1e-2,
        measured=4,
        python_steps=16,
        python_rate={"full": 1e-2},
        windows=8,
    )
)
SAID = {
    "english": "The people of the island were asked what they thought of the weather. ",
    "python": "def weather(island):\n    return [w for w in island.people() if w is not None]\n",
    "german": "Die Leute auf der Insel wurden gefragt, was sie vom Wetter halten. ",
    "c": "int weather(const char *island)\n{\n\treturn strlen(island) ? 1 : 0;\n}\n",
}
GAIN = 0.8
SOME = (
    Keeping(FREE, averaged=False),
    Keeping("averaging"),
    Keeping("held", (1e3,), guard="rotated by position", averaged=False),
    Keeping("own", (1e-9,), (0.5,), "EWC", "own", "own", distilled=True, averaged=False),
    Keeping("old", olds=(0.5,), text="old", averaged=False),
)


@pytest.fixture(scope="module")
def text():
    parts = {
        (kind, part): said * many for kind, said in SAID.items() for part, many in (("train", 6), ("validation", 4))
    }
    return corpus.Corpus({key: torch.tensor(list(part.encode()), dtype=torch.uint8) for key, part in parts.items()})


@pytest.fixture(scope="module")
def courses(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequence")
    given = (TINY, text, Device(torch.device("cpu")), folder / "sequence.jsonl", folder / "work")
    assert not study.run(*given, -1.0, GAIN, SOME)  # no time at all
    assert study.run(*given, 1e9, GAIN, SOME)
    before = (folder / "sequence.jsonl").read_bytes()
    assert study.run(*given, 1e9, GAIN, SOME)  # nothing is run twice
    assert (folder / "sequence.jsonl").read_bytes() == before
    return {went.trial.recipe: went for went in study.read(folder / "sequence.jsonl")}


@pytest.mark.nightly
def test_an_average_goes_back_until_the_gain_that_was_asked_for_is_left(courses):
    free, averaged = courses[FREE], courses["averaging"]
    for stage in averaged.stages:
        assert 0 < stage.share < 1
        start, end = averaged.before[stage.kind][CHOOSES], free.learned[stage.kind][CHOOSES]
        left = (start - stage.wrong[stage.kind][CHOOSES]) / (start - end)
        assert GAIN <= left < GAIN + 0.05


def test_what_keeps_keeps_all_kinds_from_before(courses):
    free = courses[FREE]
    assert [stage.kind for stage in free.stages] == ["python", "german", "c"]
    for name in ("held", "own", "old"):
        kept, lost = ({kind: sum(wrong) for kind, wrong in each.left.items()} for each in (courses[name], free))
        assert kept["english"] < lost["english"], name
        if name != "held":  # which has learned hardly anything that it could lose
            assert kept["python"] < lost["python"] and kept["german"] < lost["german"], name


def went(name, strength, left, learned=(1.0, 2.0), seed=0):
    """Return a course of two lessons whose losses after all are given, for both halves of English, Python and C."""
    before = {"english": [1.0, 1.0], "python": [3.0, 3.0], "c": [4.0, 4.0]}
    python, c = learned
    first = {"english": [1.1, 1.1], "python": [python, python], "c": [4.0, 4.0]}
    last = {kind: list(halves) for kind, halves in zip(before, left, strict=True)} | {"c": [c, c]}
    stages = [Stage("python", 1.0, first), Stage("c", 1.0, last)]
    return Went(Trial(name, strength, 0.0), seed, "network", 1.0, 1, before, stages, 1.0, "CPU", "abc")


def test_one_half_chooses_the_try_and_the_other_is_reported():
    keeping = Keeping("kept", (1.0, 2.0), guard="rotated", averaged=False)
    all_of_it = [
        went(FREE, 0.0, [(1.5, 1.5), (1.6, 1.6), (2.0, 2.0)]),
        went("kept", 1.0, [(1.1, 1.4), (1.2, 1.3), (2.0, 2.0)]),  # the better one by the half that chooses
        went("kept", 2.0, [(1.2, 1.0), (1.2, 1.0), (2.0, 2.0)]),
    ]
    assert report.chosen(all_of_it, keeping)[0].trial.strength == 1.0
    assert report.chosen(all_of_it[:2], keeping) == {}  # not all tries yet
    page = report.page(all_of_it, 0.9, [Keeping(FREE, averaged=False), keeping, Keeping("averaging")])
    assert "| kept | to measure on | 0.400 | 0.300 | 0.000 | 0.350 | 0 |" in page
    assert "| kept | to measure on | 0.400 | 0.300 | 0.350 | 1.000 | 0 |" in page  # forgotten on the way
    assert "Not run to their end: averaging." in page


def test_networks_that_were_trained_again_have_tables_of_their_own():
    earlier = went(FREE, 0.0, [(1.5, 1.5), (1.6, 1.6), (2.0, 2.0)])
    later = dataclasses.replace(went(FREE, 0.0, [(1.7, 1.7), (1.8, 1.8), (2.0, 2.0)]), network="kind-another")
    page = report.page([earlier, later], 0.9, [Keeping(FREE, averaged=False)])
    latest, before = page.split("# Other networks, before these: network of seed 0\n")
    assert "| fine-tuning | no | 0.700 | 0.800 |" in latest and "| fine-tuning | no | 0.500 | 0.600 |" not in latest
    assert "| fine-tuning | no | 0.500 | 0.600 |" in before and "0.700" not in before


def test_a_guard_that_is_measured_on_old_text_does_not_go_for_one_that_needs_none():
    found = {keeping.name: report.needs(keeping) for keeping in KEEPINGS}
    assert found["own text distilled, rotated, averaged"] == found["rotated, averaged"] == "to measure on"
    assert found["own text distilled, rotated by it, averaged"] == found["averaging"] == "no"
    assert found["own text distilled, averaged"] == "no" and found["old text replayed, averaged"] == "while training"


def test_recipes_have_as_many_tries_and_names_of_their_own():
    assert len({keeping.name for keeping in KEEPINGS}) == len(KEEPINGS) and KEEPINGS[0].name == FREE
    for keeping in KEEPINGS:
        assert len(list(keeping.trials())) == (2 if keeping.guard or keeping.text else 1)


def test_a_corpus_without_a_kind_is_refused(text):
    fewer = corpus.Corpus({key: part for key, part in text.texts.items() if key[0] != "german"})
    with pytest.raises(SystemExit, match=r"has no german.*prepare --sequence"):
        study.texts(TINY, fewer)
