import pytest

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.registry import Registry, find_name, is_loaded, loaded_again, loading, names_in, names_of

NAMES = ["SI", "SOS", "MAS-logits", "sqrtFisher"]


@pytest.mark.parametrize("typed", ["MAS-logits", "mas-logits", "MASLogits", "mas_logits"])
def test_capitals_and_hyphens_do_not_matter(typed):
    assert find_name("measure", typed, NAMES) == "MAS-logits"


def test_a_near_miss_is_suggested():
    with pytest.raises(ConfigurationError, match=r"No measure is called 'fisher'. Did you mean 'sqrtFisher'\?"):
        find_name("measure", "fisher", NAMES)


def test_a_name_that_is_a_word_of_what_was_given_is_suggested_first():
    with pytest.raises(ConfigurationError, match=r"'sos_fisher'. Did you mean 'SOS'\?"):
        find_name("measure", "sos_fisher", NAMES)


def test_without_a_near_name_all_are_listed():
    with pytest.raises(ConfigurationError, match=r"'xyz'. There are SI, SOS, MAS-logits, sqrtFisher\."):
        find_name("measure", "xyz", NAMES)


def forget():
    """Stands for something that is registered."""


def test_a_name_that_is_taken_is_refused_and_the_same_thing_again_is_not():
    known = Registry("toy")
    known.register("top", forget)
    known.register("Top", forget)
    assert list(known) == ["top"] and known["TOP"] is forget
    with pytest.raises(ConfigurationError, match=r"A toy is called 'top' already; expected another name than 't-op'\."):
        known.register("t-op", print)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", " a", 3])
def test_names_that_could_not_be_typed_are_refused(name):
    with pytest.raises(ConfigurationError, match=r"such as 'my-toy'"):
        Registry("toy").register(name, forget)


@pytest.fixture
def toys():
    """Two files that register the same name, the second loaded last, beside one that was there before."""
    known = Registry("toy")
    known.register("ball", "round")
    for file in ("first", "second"):
        with loading(file) as names:
            known.register("top", f"of the {file}")
        assert names == {"toy": {"top": f"of the {file}"}}
    return known


def test_of_two_files_with_a_name_the_last_one_is_meant(toys):
    assert dict(toys) == {"ball": "round", "top": "of the second"}
    loaded_again("first")
    assert toys["top"] == "of the first" and len(toys) == 2


def test_for_one_file_its_own_names_are_meant_and_no_others(toys):
    with names_of("first") as used:
        assert toys["top"] == "of the first" and toys["ball"] == "round"
    assert used == {"first"}
    with names_of("unheard-of") as used:
        assert list(toys) == ["ball"] and "top" not in toys
        with pytest.raises(ConfigurationError, match="No toy is called 'top'"):
            _ = toys["top"]
    assert used == set() and not is_loaded("unheard-of")


def test_what_was_asked_for_is_told_by_file(toys):
    with loading("third"):
        toys.register("kite", "flies")
    with names_of(None) as used:
        _ = toys["ball"], "kite" in toys, list(toys)
        assert used == set()
        _ = toys["top"], toys["kite"]
    assert used == {"second", "third"}
    assert names_in("third") == {"toy": ["kite"]}


def test_a_file_cannot_take_a_name_that_was_there_before_it(toys):
    def load():
        with loading("third"):
            toys.register("kite", "flies")
            toys.register("ball", "square")

    with pytest.raises(ConfigurationError, match="A toy is called 'ball' already"):
        load()
    assert not is_loaded("third") and "kite" not in toys
    with pytest.raises(ConfigurationError, match="A toy is called 'top' already"):
        toys.register("top", "by the program itself")


def test_while_a_file_is_loaded_it_knows_its_own_names_alone(toys):
    with loading("third"):
        assert list(toys) == ["ball"]
        toys.register("top", "of the third")
        assert toys["top"] == "of the third"
    assert toys["top"] == "of the third"


def test_a_measures_name_that_is_no_class_says_how_it_is_given():
    with pytest.raises(AttributeError, match=r"no attribute 'EWC': it is a name, Guard\(model, .EWC.\)"):
        anchorhold.EWC  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute .nothing.$"):
        anchorhold.nothing  # noqa: B018
