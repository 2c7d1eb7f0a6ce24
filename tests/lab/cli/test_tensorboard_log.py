import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from anchorhold.errors import ConfigurationError
from anchorhold_lab.cli.progress.tensorboard_log import TensorBoardLog
from anchorhold_lab.experiments import RunProgress, Store
from anchorhold_lab.training.telling.progress import Outcome, Progress
from tests.lab.cli.small import OPTIONS, small_spec


def read(folder):
    """Return the scalars in a folder of event files: by tag, the value at each step."""
    found = EventAccumulator(str(folder)).Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_a_run_leaves_its_losses_and_accuracies(call, tmp_path):
    command = ["run", "permuted-digits", "-m", "SI", "-m", "SOS", *OPTIONS]
    assert call(*command, "--store", tmp_path / "store", "--tensorboard", tmp_path / "log").exit_code == 0
    store = Store(tmp_path / "store")
    assert len(list((tmp_path / "log").iterdir())) == 2
    for spec in (small_spec("SI"), small_spec("SOS")):
        scalars = read(tmp_path / "log" / f"permuted-digits-{spec.measure}-seed0-{spec.id[:8]}")
        matrix = store.get(spec.id).matrix
        assert scalars["accuracy/task 1"] == pytest.approx({1: matrix[0][0], 2: matrix[1][0]})
        assert scalars["accuracy/task 2"] == pytest.approx({2: matrix[1][1]})
        assert scalars["accuracy/average"] == pytest.approx({1: matrix[0][0], 2: sum(matrix[1]) / 2})
        assert set(scalars["loss/task 1"]) == set(scalars["loss/task 2"]) == {22}


def test_a_run_that_failed_beside_others_is_no_longer_logged(tmp_path):
    specs = (small_spec(seed=0), small_spec(seed=1))
    outcomes = (Outcome([0.1, 0.1]), Outcome([0.1, 0.1], failure="diverged"))
    with TensorBoardLog(tmp_path) as log:
        log(RunProgress(specs, Progress(0, 2, 10, 22, 1, 1.0, (0.5, float("nan"))), outcomes))
    (folder,) = tmp_path.iterdir()
    assert read(folder) == {"loss/task 1": {10: 0.5}}


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigurationError, match=r"--tensorboard .* cannot be made"):
        TensorBoardLog(tmp_path / "file" / "log")


def test_without_tensorboard_it_says_which_extra(tmp_path):
    program = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from anchorhold_lab.cli import main\n"
        f"sys.argv[1:] = ['run', 'permuted-digits', '--store', {str(tmp_path / 's')!r}, '--tensorboard', 'log']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "pip install 'anchorhold-lab[tensorboard]'" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_run_with_a_tolerance_leaves_what_is_lost_and_the_strength_as_it_goes(call, tmp_path):
    command = ["run", "permuted-digits", "-m", "EWC", "--tolerance", "0.05", "--kept", "100", *OPTIONS]
    assert call(*command, "--store", tmp_path / "store", "--tensorboard", tmp_path / "log").exit_code == 0
    (result,) = Store(tmp_path / "store").results()
    (folder,) = (tmp_path / "log").iterdir()
    scalars = read(folder)
    last = result.retention[-1]
    assert scalars["kept/strength"] == pytest.approx({2: last.strength})
    assert scalars["kept/kl/task 1"] == pytest.approx({2: last.kl})
    assert scalars["kept/error/task 1"] == pytest.approx({2: last.sets[0].error})
    assert scalars["kept/loss_now/task 1"] == pytest.approx({2: last.sets[0].loss_now})
    assert scalars["kept/share of the way"] == pytest.approx({2: last.share})
    (step,) = scalars["strength/task 2"]
    assert scalars["strength/task 2"] == pytest.approx({step: last.trace[-1].strength})
    assert scalars["lost/task 2/of task 1"] == pytest.approx({step: last.trace[-1].kl})
