"""Nested states: exact, and a single changed byte is noticed."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorhold.errors import StateError
from anchorhold_lab.experiments.store.nested_files import Flattened, read_nested

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
states = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def digest(state):
    return Flattened.of(state).digest


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    # repr tells 0.0 from -0.0 and 1 from True, and takes NaN for equal to NaN.
    return repr(a) == repr(b)


@given(states)
def test_plain_values_come_back_as_they_were(tmp_path_factory, state):
    path = tmp_path_factory.getbasetemp() / "state"
    Flattened.of(state).write(path)
    assert same(state, read_nested(path))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_come_back_bit_for_bit(tmp_path, dtype):
    drawn = torch.randint(0, 2, (3, 4), generator=torch.Generator().manual_seed(0))
    state = {0: drawn.to(dtype), "view": drawn.to(dtype).t(), "none": torch.empty(0, 3, dtype=dtype), "one": [drawn[0]]}
    Flattened.of(state).write(tmp_path / "s")
    again = read_nested(tmp_path / "s")
    assert list(again) == list(state)
    assert all(torch.equal(again[key], state[key]) and again[key].dtype == dtype for key in (0, "view", "none"))


def test_special_numbers_and_scalars_in_tensors(tmp_path):
    state = [torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45]), torch.tensor(2.5)]
    Flattened.of(state).write(tmp_path / "s")
    again = read_nested(tmp_path / "s")
    assert torch.equal(again[0].view(torch.int32), state[0].view(torch.int32))
    assert again[1].shape == () and again[1] == 2.5


def test_no_changed_byte_goes_unnoticed(tmp_path):
    state = {"weights": torch.arange(5.0), "rows": [[0.25, math.nan]], 3: (True, "text")}
    path = tmp_path / "s"
    Flattened.of(state).write(path)
    whole = path.read_bytes()
    noticed = 0
    for i in range(len(whole)):
        changed = bytearray(whole)
        changed[i] ^= 1 << random.Random(i).randrange(8)
        path.write_bytes(bytes(changed))
        try:
            assert same(state, read_nested(path)), f"byte {i}"
        except StateError:
            noticed += 1
    # What goes unnoticed is what does not matter, such as a blank in the header.
    assert noticed > 0.9 * len(whole)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "s"
    Flattened.of({"weights": torch.arange(5.0)}).write(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError):
            read_nested(path)


def test_other_things_are_refused(tmp_path):
    for state in ({1.5: 0}, {True: 0}, {"a": {1, 2}}, [object()]):
        with pytest.raises(StateError, match="A state may hold"):
            Flattened.of(state).write(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_digest_sees_everything():
    a = {"w": torch.zeros(2), "n": [1]}
    assert digest(a) == digest({"w": torch.zeros(2), "n": [1]})
    others = [{"w": torch.tensor([0.0, -0.0]), "n": [1]}, {"w": torch.zeros(2).double(), "n": [1]}, {**a, "n": (1,)}]
    assert len({digest(each) for each in [a, *others]}) == 4
