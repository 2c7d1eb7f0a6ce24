import pytest

import anchorhold
from tests.calling import python

LAZY = """
import sys, anchorhold
assert "torch" not in sys.modules and anchorhold.__version__
assert anchorhold.protection.plan and anchorhold.spaces.SPACES
assert anchorhold.measures.MAS and "torch" in sys.modules   # a package comes with its name
from anchorhold import *
assert anchorhold.Guard is Guard and anchorhold.errors.AnchorholdError is AnchorholdError
assert set(anchorhold.__all__) <= set(dir(anchorhold))
assert not {"Any", "ModuleType", "importlib", "sys"} & set(dir(anchorhold)) and "errors" in dir(anchorhold)
assert not hasattr(anchorhold, "nosuch")
from anchorhold.engine.conventions import registered_conventions
assert registered_conventions()

import torch
guard = Guard(torch.nn.Linear(2, 2), "L2")
guard.consolidate()
assert guard.tasks == 1
assert "torch._dynamo" not in sys.modules   # takes longer to load than torch, and comes with the first optimizer
"""


def test_there_are_at_most_40_names_and_30_members():
    members = [name for name in dir(anchorhold.Guard) if not name.startswith("_")]
    assert len(anchorhold.__all__) <= 40, len(anchorhold.__all__)
    assert len(members) <= 30, members


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Dense", "forms"),
        ("KeptSet", "retention"),
        ("ModelError", "errors"),
        ("Measure", "measures"),
        ("Reservoir", "holds"),
        ("LogLikelihood", "engine"),
        ("k_center", "variational"),
        ("TaskImportance", "guard"),
        ("ProtectedGuard", "protection"),
        ("SPACES", "spaces"),
    ],
)
def test_a_name_of_a_package_is_told_its_place(name, place):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is anchorhold\.{place}\.{name}$"):
        getattr(anchorhold, name)
    assert hasattr(getattr(anchorhold, place), name) and not hasattr(anchorhold, name)
    with pytest.raises(ImportError, match=rf"name '{name}' from 'anchorhold': it is anchorhold\.{place}\.{name}$"):
        exec(f"from anchorhold import {name}")


def test_what_is_nowhere_cannot_be_imported_and_a_module_can():
    with pytest.raises(ImportError, match="cannot import name 'nosuch' from 'anchorhold'"):
        from anchorhold import nosuch  # noqa: F401, PLC0415
    with pytest.raises(ImportError, match=r"cannot import name 'EWC' from 'anchorhold': it is a name, Guard\(model,"):
        from anchorhold import EWC  # noqa: F401, PLC0415
    done = python("from anchorhold import digits\nassert digits.__name__ == 'anchorhold.digits'")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_loads_its_names_when_they_are_asked_for():
    done = python(LAZY)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(getattr(anchorhold, name) is not None for name in anchorhold.__all__)
