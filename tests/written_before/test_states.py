"""States of 0.1.0, of every kind: they are read as they are, and guards go on from them as that version did."""

import pytest
import torch
from safetensors.torch import load_file

import anchorhold
from tests.data.written_by_0_1_0 import make
from tests.written_before.numbers import FILES, assert_same, recorded

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:A task has been going on for", "ignore:.*is too much for"),
]
SIXTEEN = {"rotated16", "kronecker16", "SI-bfloat16", "SI-float32-end"}
"""The states that are rounded, whose numbers are not those of double precision."""


def test_there_is_a_file_of_every_case():
    files = {path.name.removesuffix(".safetensors") for path in (FILES / "states").iterdir()}
    assert {name for name in files if "." not in name} == {*make.STATES, "numbers"}


@pytest.mark.parametrize("name", make.STATES)
def test_a_guard_goes_on_as_the_version_that_wrote_its_state(name):
    expected = recorded("states", name)
    run = make.load(anchorhold, name, FILES / "states", expected.pop("weights"))
    assert_same(run.numbers(), expected, rtol=1e-4 if name in SIXTEEN else 1e-9)


@pytest.mark.parametrize("name", make.STATES)
def test_what_is_written_again_holds_the_same_tensors(name, tmp_path):
    run = make.load(anchorhold, name, FILES / "states", recorded("states", name)["weights"])
    run.guard.save(tmp_path / "again")
    old, new = load_file(FILES / "states" / f"{name}.safetensors"), load_file(tmp_path / "again")
    assert old.keys() == new.keys()
    assert all(torch.equal(tensor, new[key]) and tensor.dtype == new[key].dtype for key, tensor in old.items())
