"""What the day leaves to the night."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import CASES, few

ROOT = Path(__file__).parents[1]


def test_a_few_cases_show_as_many_values_as_they_can():
    product = [{form, measure} for form, measure in itertools.product("abc", range(4))]
    chosen = [product[number] for number in few(product, 3)]
    assert chosen == [{"a", 0}, {"b", 1}, {"c", 2}]


@pytest.mark.parametrize(("cases", "chosen"), [(0, []), (1, [0]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_never_more_cases_than_asked_for_and_the_first_of_equals(cases, chosen):
    assert few([{number} for number in range(cases)], 3) == chosen


def test_cases_that_run_anyway_count():
    cases = [{number} for number in range(5)]
    assert few(cases[1:], 3, shown=cases[:1]) == [0, 1]
    assert few(cases[3:], 3, shown=cases[:3]) == []


def test_marks_come_before_the_rule(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly\n  daily\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom tests.nightly import mark_nights\n\n"
        "@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items):\n    mark_nights(items)\n"
    )
    (tmp_path / "test_some.py").write_text(
        "import pytest\nday, night = pytest.mark.daily, pytest.mark.nightly\n"
        "many = pytest.mark.parametrize('n', range(6))\n"
        "def test_one(): ...\n"
        "@night\ndef test_night(): ...\n"
        "@night\n@many\ndef test_nights(n): ...\n"
        "@day\n@many\ndef test_days(n): ...\n"
        "@many\ndef test_rule(n): ...\n"
        "@pytest.mark.parametrize('n', [0, 1, pytest.param(2, marks=night), 3, 4, pytest.param(5, marks=day)])\n"
        "def test_both(n): ...\n"
        "@pytest.fixture(params=[[], {}])\ndef made(request):\n    return request.param\n"
        "@many\n@pytest.mark.parametrize('m', 'abcd')\ndef test_product(made, m, n): ...\n"
    )
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not nightly"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    found = [line.partition("::test_")[2] for line in done.stdout.splitlines() if "::" in line]
    assert found == [
        *["one", *(f"days[{n}]" for n in range(6)), *(f"rule[{n}]" for n in range(CASES))],
        *["both[0]", "both[1]", "both[5]", "product[made0-a-0]", "product[made0-c-2]", "product[made1-b-1]"],
    ]
