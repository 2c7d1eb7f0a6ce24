"""The examples for Hugging Face and Accelerate, and the guide, as they stand."""

import re
import runpy
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState

from tests.docs.pages import run_page

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def settings_of_ones_own():
    """An accelerator's settings are kept by its process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run(name, capsys):
    """Return the numbers in each line that an example prints, and how many lines it marks as added."""
    path = EXAMPLES / name
    runpy.run_path(str(path), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert 3 <= path.read_text(encoding="utf-8").count("# added") < 10
    return [[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in lines]


@pytest.mark.nightly
def test_trainer(capsys):
    (knew, _), (forgot, learned), (kept, learned_too) = run("huggingface_trainer.py", capsys)
    assert kept < knew + 0.3 < forgot
    assert learned_too < learned + 0.3


@pytest.mark.nightly
def test_lora(capsys):
    (knew, _), (forgot, learned), (kept, learned_too) = run("huggingface_lora.py", capsys)
    assert kept < knew + 0.3 < forgot
    assert learned_too < learned + 0.3


@pytest.mark.nightly
def test_accelerate(capsys):
    (forgot, _), (kept, learned_too) = run("accelerate_loop.py", capsys)
    assert kept > forgot + 0.15
    assert learned_too > 0.75


def test_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("guides/huggingface.md")
