"""A store for one report: each result is read once, and none is missed."""

import pytest

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments import Store
from anchorhold_lab.experiments.store.read_once import ReadOnce
from tests.lab.experiments.helpers import result_of, small_spec


def test_a_result_is_read_once_as_soon_as_it_is_there(tmp_path):
    spec, store = small_spec(), ReadOnce(tmp_path)
    assert store.get(spec) is None
    Store(tmp_path).claim(spec).finish(result_of(spec, 0.5))
    found = store.get(spec)
    assert found == result_of(spec, 0.5)
    assert store.get(spec.id) is store.get(spec.id[:8]) is found


def test_a_damaged_result_is_refused_until_it_is_restored(tmp_path):
    spec, store = small_spec(), ReadOnce(tmp_path)
    store.claim(spec).finish(result_of(spec, 0.5))
    path = store.run_folder(spec.id) / "result.json"
    whole = path.read_bytes()
    path.write_text("{")
    for _ in range(2):
        with pytest.raises(DamagedError):
            store.get(spec)
    path.write_bytes(whole)
    assert store.get(spec) == result_of(spec, 0.5)
