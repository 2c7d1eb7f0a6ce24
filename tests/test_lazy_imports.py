import anchorhold
from tests.calling import python

LAZY = """
import sys, anchorhold
assert "torch" not in sys.modules and anchorhold.__version__
import anchorhold.measures                    # the package, which must not hide the function of its name
from anchorhold import *
assert callable(anchorhold.measures) and anchorhold.measures is measures
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
assert "torch._dynamo" not in sys.modules   # takes longer to load than torch, and comes with the first optimiser
"""


def test_the_package_loads_its_names_when_they_are_asked_for():
    done = python(LAZY)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(getattr(anchorhold, name) is not None for name in anchorhold.__all__)
