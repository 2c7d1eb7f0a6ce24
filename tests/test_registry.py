import pytest

from holdfast.errors import ConfigurationError
from holdfast.registry import find_name

NAMES = ["SI", "SOS", "MAS-logits", "sqrtFisher"]


@pytest.mark.parametrize("typed", ["MAS-logits", "mas-logits", "MASLogits", "mas_logits"])
def test_capitals_and_hyphens_do_not_matter(typed):
    assert find_name("measure", typed, NAMES) == "MAS-logits"


def test_a_near_miss_is_suggested():
    with pytest.raises(ConfigurationError, match=r"No measure is called 'fisher'. Did you mean 'sqrtFisher'\?"):
        find_name("measure", "fisher", NAMES)


def test_without_a_near_name_all_are_listed():
    with pytest.raises(ConfigurationError, match=r"'xyz'. There are SI, SOS, MAS-logits, sqrtFisher\."):
        find_name("measure", "xyz", NAMES)
