"""Several processes train and measure as one would: the checks of the other files here.

Among them is the code of docs/guides/distributed.md.
"""

import sys

import pytest
import torch
from torch.distributed import checkpoint

import anchorhold
from tests.distributed import problem
from tests.distributed.processes import run_checks
from tests.guard.helpers import net

TWO = ["tests.distributed.ddp_checks", "tests.distributed.mistake_checks", "tests.distributed.rank_checks"]
TWO += ["tests.distributed.fsdp_checks", "tests.distributed.anchor_checks", "tests.distributed.page_checks"]
TWO += ["tests.distributed.whole_network_checks", "tests.distributed.projection_checks"]
TWO += ["tests.distributed.hold_checks", "tests.distributed.implicit_checks", "tests.distributed.strength_checks"]
TWO += ["tests.distributed.retention_checks", "tests.distributed.relatives_checks", "tests.distributed.merged_checks"]
TWO += ["tests.distributed.accelerate_checks", "tests.distributed.trainer_checks", "tests.distributed.packed_checks"]
THREE = ["tests.distributed.three_checks"]
FOUR = ["tests.distributed.watch_checks", "tests.distributed.reshard_checks", "tests.distributed.layer_checks"]

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")


def passed(outcome):
    failures = {place: text for place, text in outcome.items() if text}
    assert not failures, "\n".join(f"{name} on rank {rank}: {text}" for (name, rank), text in failures.items())


def test_one_two_and_three_processes(tmp_path):
    """One test, since each of its parts goes on from the checkpoint of another, and so that it is run only once."""
    problem.save_checkpoint(tmp_path / "from_one", net())
    passed(run_checks(2, TWO, tmp_path / "two"))
    passed(run_checks(3, THREE, tmp_path / "three"))
    problem.check_checkpoint(tmp_path / "two" / "from_two", net())


def test_four_processes(tmp_path):
    passed(run_checks(4, FOUR, tmp_path / "four"))


def test_what_is_no_checkpoint_of_this_guard_is_refused(tmp_path):
    problem.save_checkpoint(tmp_path, net())
    metadata = checkpoint.FileSystemReader(tmp_path).read_metadata()
    guard = anchorhold.Guard(net(), anchorhold.SI())
    with pytest.raises(anchorhold.errors.StateError, match="no state of a Guard under 'mine'; it has guard"):
        anchorhold.guard.blank_state_dict(guard, metadata, "mine")
    wide = anchorhold.Guard(torch.nn.Sequential(torch.nn.Linear(9, 9)), anchorhold.SI())
    with pytest.raises(anchorhold.errors.StateError, match=r"another model|does not know"):
        anchorhold.guard.blank_state_dict(wide, metadata)


def test_nothing_of_torch_distributed_is_needed(monkeypatch):
    """A build of torch without it, in which nothing could be imported."""
    for module in ("torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed"):
        monkeypatch.setitem(sys.modules, module, None)
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), watch=["SOS"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    problem.train_alone(model, optimizer, guard)
    guard.consolidate([problem.batch(0)])
    assert guard.penalty().item() == 0
