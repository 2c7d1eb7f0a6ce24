"""From specs back to the command that makes them."""

import shlex

import pytest
from typer.testing import CliRunner

from anchorhold.errors import ConfigurationError
from anchorhold_lab.cli.app import app
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.specs.command_lines import command_of

RUNS = {
    "usual": ("split-mnist", "EWC", {}),
    "another protocol": (
        "permuted-mnist",
        "RWalk-batch",
        {"strength": 0.1, "tasks": 17, "epochs": 1, "batch_size": 10, "optimizer": "sgd", "momentum": 0.0}
        | {"learning_rate": 0.1, "hidden": (256, 256), "measure_settings": {"epsilon": 0.01}},
    ),
    "large batches": ("permuted-mnist", "SI", {"batch_size": 2048, "learning_rate": 0.001}),
    "large batches as usual": ("split-cifar", "SOS", {"batch_size": 2048}),
    "a kind and a hold": (
        "split-mnist",
        "fine-tune",
        {"incremental": "class", "holds": ("replay",), "hold_settings": {"replay": {"source": 100, "share": 0.5}}},
    ),
    "coresets": (
        "permuted-digits",
        "fine-tune",
        {"holds": ("variational",), "kept": 40, "hold_settings": {"variational": {"coreset": 20}}},
    ),
    "a form": ("split-cifar", "EWC", {"form": "rotated", "form_settings": {"damping": 0.001}, "reinitialise": False}),
    "a form with its default": ("permuted-digits", "EWC", {"form": "kronecker"}),
    "a form from before that": ("permuted-digits", "EWC", {"form": "rotated", "form_settings": {"damping": None}}),
    "a form without damping": ("permuted-digits", "EWC", {"form": "rotated", "form_settings": {"damping": 0.0}}),
    "jointly": ("split-digits", "fine-tune", {"trains": "jointly", "later_epochs": 2}),
    "anew": ("split-digits", "fine-tune", {"trains": "anew"}),
    "two columns": ("permuted-mnist", "online-EWC", {"strength": 0.1, "compress": 5, "reinitialise": True}),
    "plain": ("split-digits", "SI", {"engine": "plain", "precision": "fp32"}),
    "tolerance": ("split-digits", "EWC", {"tolerance": 0.1}),
    "unlike tasks": (
        "split-digits",
        "SI",
        {"tasks": 3, "sizes": (1, 0.2), "order": (2, 0, 1), "rate_decay": 0.01},
    ),
    "a window": ("permuted-mnist", "SOS", {"measure_settings": {"window": 0.1}}),
    "relative": ("split-digits", "EWC", {"relative_strength": 0.03}),
    "samples in steps": ("permuted-mnist", "RWalk", {"strength": 1.0, "engine": "fast"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_command_makes_the_same_runs(name, monkeypatch):
    scenario, measure, changes = RUNS[name]
    specs = [paper_spec(scenario, measure, seed=seed, **changes) for seed in range(2)]
    made = []
    monkeypatch.setattr(
        "anchorhold_lab.cli.options.paper_spec", lambda *a, **k: made.append(paper_spec(*a, **k)) or made[-1]
    )
    monkeypatch.setattr("anchorhold_lab.cli.session.session", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
    words = shlex.split(command_of(specs))
    assert words[:2] == ["anchorhold-lab", "run"]
    CliRunner().invoke(app, words[1:])
    assert [spec.id for spec in made] == [spec.id for spec in specs], words


def test_runs_that_differ_in_more_have_none():
    halves = paper_spec("permuted-mnist", "SOS", batch_size=2048, second_batch="halves")
    for specs in ([paper_spec("split-digits", "SI"), paper_spec("split-digits", "EWC")], [halves]):
        with pytest.raises(ConfigurationError, match="No single command"):
            command_of(specs)
