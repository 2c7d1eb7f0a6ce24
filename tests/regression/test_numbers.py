"""Short trainings in every configuration end where they did when they were recorded.

Each case of ``cases.py`` is trained for two or three tasks of four steps in double precision. ``records.json`` has, of
the weights, the importances, the penalty and the state that would be saved, what is compared:

- **always** three projections on fixed directions and the norm, which may differ by 1e-9 of the norm. Other processors
  and versions of torch add up in another order, so that the last bits are theirs; a change of a formula is seen. The
  low-rank form, which draws directions in single precision, may differ by 1e-6, and what is kept in 16 bits by 2e-2,
  since a last bit may be rounded to the other side. Bases of eigenvectors, whose signs are each machine's own, are not
  compared.
- **with ANCHORHOLD_REGRESSION=bits** a digest of all bits, bases of eigenvectors included. It is for a change of the
  code that should change no number, on the machine and with the torch that made the records. On another, record the
  commit before the change, ``python -m tests.regression.records --file /tmp/before.json``, and compare with that:
  ``ANCHORHOLD_REGRESSION=/tmp/before.json``.

A run that is stopped in the middle of its second task, and goes on in new objects that have loaded what was saved,
ends with the same bits on every machine.

``python -m tests.regression.records`` records cases that are new, and names all that are not as they were recorded; it
takes the place of none unless it is told to.
"""

import os
from pathlib import Path

import pytest
import torch

from tests.regression.cases import CASES
from tests.regression.playing import Play
from tests.regression.records import FILE, differences, fingerprint, read

ASKED = os.environ.get("ANCHORHOLD_REGRESSION")
RECORDS = read(FILE if ASKED in (None, "", "bits") else Path(ASKED))
NAMES = list(CASES)
RESUMED = [name for name, case in CASES.items() if case.resumes]
BY_DAY = set(RESUMED[::4])
"""The interrupted runs that are tried at each change; the others by night, as seven of eight that are not."""

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # what is told has a test of its own
]


def test_every_case_is_recorded_and_nothing_else():
    assert RECORDS.keys() == CASES.keys()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.daily) if number % 8 == 0 else name for number, name in enumerate(NAMES)],
)
def test_a_training_ends_where_it_did(name):
    found = fingerprint(Play(CASES[name]).run())
    assert not differences(found, RECORDS[name], CASES[name].apart, bits=bool(ASKED))


@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly) for name in RESUMED]
)
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(name):
    whole, resumed = Play(CASES[name]).run(), Play(CASES[name]).run(interrupted=True)
    assert [group for group in whole if not torch.equal(whole[group], resumed[group])] == []
