"""Files of guards in forms of layers from before those had a damping by default, in the middle of their second task."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import anchorhold
from anchorhold.errors import AnchorholdWarning, StateError
from anchorhold.guard.state import files as state_files
from tests.helpers import grouped

FILES = sorted((Path(__file__).parent / "saved_before_damping").glob("*.safetensors"))
FORMS = {
    "rotated": anchorhold.Rotated,
    "rotated16": anchorhold.forms.Rotated16,
    "kronecker": anchorhold.Kronecker,
    "kronecker16": anchorhold.forms.Kronecker16,
}


class Training:
    """What the files were made by, as far as the file; then the rest of the second task, and its end."""

    def __init__(self, form):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        settings = {"strength": 3.0, "decay": 0.9, "from_scratch": True}
        self.guard = anchorhold.Guard(self.model, "EWC", form=form, **grouped(**settings))
        self.guard.attach(self.optimizer)
        drawn = torch.Generator().manual_seed(1)
        self.data = [(torch.randn(8, 3, generator=drawn), torch.randint(2, (8,), generator=drawn)) for _ in range(4)]

    def train(self):
        for x, y in self.data:
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    def to_the_file(self):
        self.train()
        self.guard.consolidate(self.data)
        self.train()
        return self

    def on(self):
        self.train()
        self.guard.consolidate(self.data)
        self.train()
        return self


def test_there_is_one_of_every_form():
    assert {path.stem for path in FILES} == set(FORMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_they_go_on_as_they_were_made_whether_the_form_is_given_by_name_or_said(path, tmp_path):
    made = state_files.read(path)
    said, named = (Training(form).to_the_file() for form in (FORMS[path.stem](damping=0.0), path.stem))
    for key, tensor in said.guard.state_dict()["tensors"].items():
        if "#U" not in key:  # the signs of eigenvectors are each machine's own
            close = {"rtol": 2e-2 if "16" in path.stem else 1e-4, "atol": 1e-6}
            torch.testing.assert_close(tensor, made["tensors"][key], **close)
    said.guard.load(path)  # without a word
    with pytest.warns(
        AnchorholdWarning, match=rf"damping=0.0.*has damping=0.001.*{type(said.guard.options.form).__name__}\(dam"
    ):
        named.guard.load(path)
    assert named.guard.options.form == said.guard.options.form
    named.model.load_state_dict(said.model.state_dict())
    ends = [copy.deepcopy(each.on().guard.state_dict()) for each in (said, named)]
    assert ends[0]["tensors"].keys() == ends[1]["tensors"].keys()
    assert all(torch.equal(tensor, ends[1]["tensors"][key]) for key, tensor in ends[0]["tensors"].items())
    named.guard.save(tmp_path / "again")
    assert state_files.read(tmp_path / "again")["form"] == made["form"]


def test_what_is_made_now_says_its_damping_and_the_name_takes_either(tmp_path):
    new = Training("rotated").to_the_file()
    new.guard.save(tmp_path / "new")
    assert state_files.read(tmp_path / "new")["form"]["damping"] == 0.001
    again = Training("rotated").to_the_file()
    with pytest.warns(AnchorholdWarning, match=r"damping=0\.0"):
        again.guard.load(FILES[[path.stem for path in FILES].index("rotated")])
    again.guard.load(tmp_path / "new")  # without a word: it is what the name means
    assert again.guard.options.form == anchorhold.Rotated()


def test_a_form_that_says_its_damping_is_refused_another_with_what_to_give(tmp_path):
    path = FILES[[path.stem for path in FILES].index("rotated")]
    other = Training(anchorhold.Rotated()).to_the_file()
    before = copy.deepcopy(other.guard.state_dict())
    with pytest.raises(StateError, match=r"Make one with the same: form=Rotated\(damping=0\.0\)\."):
        other.guard.load(path)
    by_name = Training("rotated").to_the_file()
    Training(anchorhold.Rotated(damping=0.01)).to_the_file().guard.save(tmp_path / "more")
    with pytest.raises(StateError, match=r"form=Rotated\(damping=0\.01\)\."):
        by_name.guard.load(tmp_path / "more")
    broken = {**state_files.read(path), "tasks": 7, "parameters": ["of another model"]}
    with pytest.raises(StateError):
        by_name.guard.load_state_dict(broken)
    assert by_name.guard.options.form == anchorhold.Rotated()  # as it was before
    for key, tensor in other.guard.state_dict()["tensors"].items():
        assert torch.equal(tensor, before["tensors"][key])
    assert "with a damping" not in repr(other.guard)
    assert "in the form 'rotated' with a damping of 0," in repr(Training(anchorhold.Rotated(damping=0.0)).guard)
