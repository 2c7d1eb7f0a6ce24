"""Which cases of a parametrised test run by day, and which only by night.

``make test`` runs what a change has to pass, in minutes; ``make test-all`` runs everything. A test marked ``nightly``
runs by night alone, one marked ``daily`` with all its cases by day too; both marks also go to a single
``pytest.param``. Of any other parametrised test the day runs a few cases.
"""

import pytest

CASES = 3
"""How many cases of a test the day runs."""


def mark_nights(items):
    """Mark the cases of each parametrised test that the day leaves out as nightly."""
    tests = {}
    for item in items:
        if hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        daily = [values(case) for case in cases if case.get_closest_marker("daily")]
        others = [case for case in cases if not has_mark(case)]
        chosen = set(few(list(map(values, others)), CASES, daily))
        for number, case in enumerate(others):
            if number not in chosen:
                case.add_marker(pytest.mark.nightly)


def has_mark(case):
    """Return whether a test says itself when it runs."""
    return any(case.get_closest_marker(name) for name in ("daily", "nightly"))


def values(case):
    """Return a case's parameters by name and value, which need not be hashable."""
    return {(name, id(value)) for name, value in case.callspec.params.items()}


def few(cases, count, shown=()):
    """Return the numbers of so many cases, each of which shows as many new values of parameters as can be.

    A case is a set of values; some cases may be shown already. Of equals the first comes.
    """
    seen = set().union(*shown)
    left, chosen = list(range(len(cases))), []
    while left and len(shown) + len(chosen) < count:
        best = max(left, key=lambda number: len(cases[number] - seen))
        seen |= cases[best]
        left.remove(best)
        chosen.append(best)
    return chosen
