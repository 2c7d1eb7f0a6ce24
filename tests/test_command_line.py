import json
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import anchorhold
from anchorhold import command_line
from anchorhold.command_line import STORE, USAGE
from anchorhold.merging import between, tensor_files
from tests.calling import python
from tests.merging.models import guarded, moved, network


@pytest.fixture
def models(tmp_path):
    """Two models and the files that they are in."""
    found = network(), moved(network())
    for name, model in zip(("before", "after"), found, strict=True):
        save_file(model.state_dict(), tmp_path / f"{name}.safetensors")
    return found, [tmp_path / f"{name}.safetensors" for name in ("before", "after")]


def same(path, expected):
    found = load_file(path)
    return found.keys() == expected.keys() and all(torch.equal(found[name], t) for name, t in expected.items())


def test_the_average(call, models, tmp_path):
    (before, after), files = models
    shown = call("merge", *files, "--share", 0.7, "--out", tmp_path / "merged.safetensors")
    assert shown.exit_code == 0
    assert shown.stdout.strip() == str(tmp_path / "merged.safetensors")
    assert "shares 0.3, 0.7, by the average" in shown.stderr
    assert same(tmp_path / "merged.safetensors", anchorhold.merge(before, after, 0.7))


def test_half_unless_told(call, models, tmp_path):
    (before, after), files = models
    assert call("merge", *files, "-o", tmp_path / "merged.safetensors").exit_code == 0
    assert same(tmp_path / "merged.safetensors", anchorhold.merge(before, after))


@pytest.mark.parametrize(
    ("form", "said"),
    [("diagonal", "diagonal"), (anchorhold.Kronecker(outputs="identity"), "RegMean"), ("rotated", "rotated")],
)
def test_by_guards(call, models, tmp_path, form, said):
    (before, after), files = models
    guards = [guarded(before, form, 3), guarded(after, form, 4)]
    paths = [tmp_path / f"guard{k}.safetensors" for k in (0, 1)]
    for guard, path in zip(guards, paths, strict=True):
        guard.save(path)
    by = [argument for path in paths for argument in ("--by", path)]
    shown = call("merge", *files, "-s", 0.4, *by, "-o", tmp_path / "merged.safetensors", "--json")
    assert shown.exit_code == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert told["shares"] == [0.6, 0.4] and said in told["by"]
    assert same(tmp_path / "merged.safetensors", anchorhold.merge(*files, 0.4, by=paths))
    for arguments in (by[:2], [*by[:2], "--by", "-"]):
        out = tmp_path / f"alone{len(arguments)}.safetensors"
        assert call("merge", *files, *arguments, "-o", out, "--damping", 0.01, "--normalise", "layers").exit_code == 0
        assert same(out, anchorhold.merge(*files, by=paths[0], damping=0.01, normalise="layers"))


def test_three_models(call, models, tmp_path):
    (before, after), files = models
    third = moved(before, seed=9)
    save_file(third.state_dict(), tmp_path / "third.safetensors")
    arguments = [*files, tmp_path / "third.safetensors", "-s", 0.3, "-s", 0.2]
    assert call("merge", *arguments, "-o", tmp_path / "merged.safetensors").exit_code == 0
    assert same(tmp_path / "merged.safetensors", anchorhold.merge(before, [after, third], [0.3, 0.2]))


def test_folders(call, models, tmp_path):
    (before, after), _ = models
    for name, model in (("one", before), ("other", after)):
        (tmp_path / name).mkdir()
        save_file(model.state_dict(), tmp_path / name / tensor_files.ONE_FILE)
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
    shown = call("merge", tmp_path / "one", tmp_path / "other", "-o", tmp_path / "merged", "--dtype", "float32")
    assert shown.exit_code == 0
    expected = anchorhold.merge(before, after, dtype=torch.float32)
    assert same(tmp_path / "merged" / tensor_files.ONE_FILE, expected)
    assert json.loads((tmp_path / "merged" / "config.json").read_text()) == {"name": "other"}


def test_adapters(call, tmp_path):
    for seed in (1, 2):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(nn.Sequential(nn.Linear(4, 3)), peft.LoraConfig(r=2, target_modules=["0"]))
        torch.manual_seed(seed)
        nn.init.normal_(adapted.base_model.model[0].lora_B["default"].weight)
        adapted.save_pretrained(tmp_path / str(seed))
    shown = call("merge", tmp_path / "1", tmp_path / "2", "-s", 0.3, "-o", tmp_path / "both")
    assert shown.exit_code == 0 and "rank 4" in shown.stderr
    assert (tmp_path / "both" / "adapter_model.safetensors").is_file()
    torch.manual_seed(0)
    save_file(nn.Sequential(nn.Linear(4, 3)).state_dict(), tmp_path / "base.safetensors")
    assert call("merge", tmp_path / "base.safetensors", tmp_path / "1", "-o", tmp_path / "m.safetensors").exit_code == 0
    shown = call("merge", tmp_path / "1", tmp_path / "2", "--by", "x", "-o", tmp_path / "more")
    assert shown.exit_code == USAGE and "is an adapter" in shown.stderr


def test_warnings_are_lines(call, models, tmp_path):
    (_, after), files = models
    save_file(after.to(torch.bfloat16).state_dict(), tmp_path / "small.safetensors")
    shown = call("merge", files[0], tmp_path / "small.safetensors", "-o", tmp_path / "merged.safetensors")
    assert shown.exit_code == 0
    assert shown.stderr.startswith("warning: '") and "bfloat16 and torch.float64" in shown.stderr


@pytest.mark.daily
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-s", 1.5), "share=1.5: expected a number from 0"),
        (("-s", "nan"), "share=nan"),
        (("-s", 0.2, "-s", 0.2), "expected one for each"),
        (("--by", "nowhere"), "no such file"),
        (("--by", "-", "--by", "-", "--by", "-"), "3 forms for 2 models"),
        (("--dtype", "int8"), "expected one of float32"),
        (("--normalise", "all"), "normalise='all'"),
        (("--damping", -1), "damping=-1"),
    ],
)
def test_what_makes_no_sense(call, models, tmp_path, arguments, said):
    _, files = models
    shown = call("merge", *files, *arguments, "-o", tmp_path / "merged.safetensors")
    assert shown.exit_code == USAGE
    assert said in shown.stderr and shown.stderr.startswith("error: ") and shown.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after.safetensors", "before.safetensors"]


def test_files_that_are_not_there_or_are_already(call, models, tmp_path):
    _, files = models
    shown = call("merge", files[0], tmp_path / "nowhere", "-o", tmp_path / "merged.safetensors")
    assert shown.exit_code == USAGE and "there is no such file" in shown.stderr
    shown = call("merge", *files, "-o", files[1])
    assert shown.exit_code == USAGE and "not replaced" in shown.stderr


def test_a_full_disk(call, models, tmp_path, monkeypatch):
    _, files = models

    def full(self, name, piece, start=0):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files.Writer, "write", full)
    shown = call("merge", *files, "-o", tmp_path / "merged.safetensors")
    assert shown.exit_code == STORE and "No space left" in shown.stderr
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "merged.safetensors").exists()


HELP = """
import sys
from anchorhold.command_line import main
for line in ([], ["--help"], ["--version"], ["merge", "-h"], ["merge"], ["nosuch"]):
    try:
        code = main(line)
    except SystemExit as ending:
        code = ending.code or 0
    print("CODE", code, [name for name in ("torch", "numpy", "safetensors") if name in sys.modules])
"""


def test_help_comes_without_torch_and_mistakes_are_told():
    told = python(HELP)
    assert [line for line in told.stdout.splitlines() if line.startswith("CODE")] == [
        *("CODE 0 []",) * 4,
        *("CODE 2 []",) * 2,
    ]
    assert "the following arguments are required: BEFORE" in told.stderr and "invalid choice: 'nosuch'" in told.stderr
    assert command_line._DAMPING == between.DAMPING


def test_python_m_is_the_same_command():
    told = python(
        "import runpy, sys; sys.argv = ['x', '--version']; runpy.run_module('anchorhold', run_name='__main__')"
    )
    assert told.stdout == f"anchorhold {anchorhold.__version__}\n"


def test_streams_that_are_closed_are_no_mistake(monkeypatch):
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--version"])
    assert not ended.value.code


def test_ctrl_c_is_one_line(call, models, tmp_path, monkeypatch):
    def interrupted(self, name, piece, start=0):
        raise KeyboardInterrupt

    monkeypatch.setattr(tensor_files.Writer, "write", interrupted)
    monkeypatch.setattr(command_line.signal, "signal", lambda *_: None)
    shown = call("merge", *models[1], "-o", tmp_path / "merged.safetensors")
    assert (shown.exit_code, shown.stderr) == (130, "Interrupted.\n") and not (tmp_path / "merged.safetensors").exists()
