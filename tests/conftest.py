import gc
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

from anchorhold import command_line, registry
from anchorhold.forms import FORMS
from anchorhold.guard.monitors import MONITORS
from anchorhold.holds import HOLDS
from anchorhold.measures import MEASURES
from anchorhold_lab.experiments import SCENARIOS
from anchorhold_lab.networks import NETWORKS
from tests.calling import main_caller
from tests.nightly import mark_nights

# However long an example takes: the machine may be busy with something else.
settings.register_profile(
    "anchorhold", deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck)
)
settings.load_profile("anchorhold")


def pytest_configure():
    """In the background of a script an interrupt is ignored, which the processes that tests interrupt would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """All that is loaded by now stays, so no collection of garbage, which trainers ask for often, looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what the day leaves out, before pytest chooses by marks."""
    mark_nights(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile``, one process has all tests that use Ray, which is then started once."""
    from tests.sharing_out import FilesTogether  # noqa: PLC0415 (without xdist, nobody asks)

    return FilesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def on_the_cpu(request, monkeypatch):
    """All tests but those for GPUs compare what a CPU computes, also where there is a GPU; so do their children."""
    if request.path.name != "test_cuda.py":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True)
def as_wide_as_a_file(monkeypatch):
    """What commands print is as wide here as in a file, whatever terminal the tests are run in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch):
    """What a test registers, or loads from a file, is not known to the next one."""
    monkeypatch.setattr(registry, "_FILES", dict(registry._FILES))
    for kinds in (FORMS, HOLDS, MEASURES, MONITORS, NETWORKS, SCENARIOS):
        monkeypatch.setattr(kinds, "_known", dict(kinds._known))


@pytest.fixture
def call(capsys):
    """Calls anchorhold; folders of other commands have a fixture of this name for theirs."""
    return main_caller(command_line.main, capsys)


@pytest.fixture
def one_thread():
    """Torch computes with one thread, as several add up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def on_ray():
    """A Ray on this machine, started once for all tests of a process; one process has all that use it."""
    from tests.lab.experiments.ray_helpers import local_ray  # noqa: PLC0415 (Ray takes a while to import)

    with local_ray():
        yield
