"""A newcomer's three programs, as they stand: a CNN, a causal language model, and a study on the command line."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anchorhold_lab.cli.app import app
from anchorhold_lab.experiments import Store

ROOT = Path(__file__).parents[2]
NEWCOMER = ROOT / "examples" / "newcomer"


def test_a_cnn_keeps_its_first_task(capsys):
    runpy.run_path(str(NEWCOMER / "cnn_two_tasks.py"), run_name="__main__")
    (lost, new), (kept, held) = (
        [int(share) for share in re.findall(r"(\d+)%", line)] for line in capsys.readouterr().out.splitlines()
    )
    assert lost < 70 and kept > 90 and min(new, held) > 95


@pytest.mark.nightly
def test_a_language_model_keeps_its_first_language_without_old_text(capsys):
    runpy.run_path(str(NEWCOMER / "causal_lm.py"), run_name="__main__")
    found = re.findall(r"digits ([\d.]+), letters ([\d.]+)", capsys.readouterr().out)
    (before, _), (lost, new), (kept, learned) = ([float(number) for number in pair] for pair in found)
    assert lost > before + 1.5 and kept < before + 0.4 and learned < new + 0.3


def test_a_study_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("ANCHORHOLD_STORE", raising=False)
    page = (NEWCOMER / "own_study.py").read_text(encoding="utf-8")
    commands = re.findall(r"^    anchorhold-lab (.*)$", page, flags=re.MULTILINE)
    for command in commands:
        shorter = command.replace("--seeds 2", "--seeds 1 --device cpu").replace("flowers.png", str(tmp_path / "f.png"))
        done = CliRunner().invoke(app, [*shlex.split(shorter), "--store", str(tmp_path / "store")])
        assert done.exit_code == 0, (command, done.output)
    assert len(commands) == 4 and (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    by_form = {(result.spec.measure, result.spec.form): result for result in Store(tmp_path / "store").results()}
    assert by_form["EWC", "rotated"].forgetting < by_form["fine-tune", "diagonal"].forgetting / 2
