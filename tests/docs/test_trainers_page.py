"""The page on others' trainers, each section of it where its package is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import anchorhold
from tests.docs.pages import code_of, run_page

PAGE = "guides/trainers.md"
SOURCE = Path(anchorhold.__file__).parents[1]


def start(code, folder, **environment):
    """Run a program by itself, since trainers change what a process has, and return all that it prints."""
    (folder / "program.py").write_text(code, encoding="utf-8")
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(  # noqa: PLW1510 (what it printed is shown where it fails)
        [sys.executable, "program.py"], cwd=folder, env=known | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def program(section, *more):
    return "\n".join([*code_of(PAGE, section), *more])


def farthest(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def test_a_fast_loop(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    scope = run_page(PAGE, "A fast loop such as Unsloth's")
    trained, fast = scope["trained"], scope["fast_model"]
    assert scope["fast_guard"].gradients.path.steps == len(scope["new"])
    assert farthest(fast, trained(fast=False)[0]) < 1e-5  # as without kernels and recomputing
    assert farthest(fast, trained(fast=True, guarded=False)[0]) > 1e-3

    guard = anchorhold.Guard(fast, anchorhold.Fisher(), strength=1.0, options=anchorhold.GuardOptions(space="merged"))
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"body.*were not called while importance was measured"):
        guard.consolidate(scope["old"])

    # By their own parameters adapters are measured through the kernels, which no rule knows.
    twin = scope["adapted"](fast=False)
    twin.load_state_dict(fast.state_dict())
    found, expected = (anchorhold.Fisher().measure(model, scope["old"]) for model in (fast, twin))
    for name in (name for name in expected if "lora_" in name):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-8)


def test_layers_that_are_run_again_within_backward_are_refused(tmp_path, monkeypatch):
    """Their parameters get gradients past the graph: importance would be 0, and what is observed nothing."""
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    scope = run_page(PAGE, "A fast loop such as Unsloth's")
    model = scope["adapted"](fast=True)
    net, (tokens, targets) = model.base_model.model, scope["old"][0]
    net.forward = lambda tokens: net.head(scope["Recomputed"].apply(net.layers, net.embed(tokens).requires_grad_()))
    parameter = net.body.lora_A["default"].weight
    parameter.grad = before = torch.ones_like(parameter)

    with pytest.raises(
        anchorhold.errors.ModelError, match=r"lora_.*backward pass within the backward pass of Recomputed"
    ):
        anchorhold.Fisher().measure(model, [(tokens, targets)])
    guard = anchorhold.Guard(model, anchorhold.SOS(), from_scratch=True)
    guard.attach(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    with pytest.raises(anchorhold.errors.ModelError, match="within the backward pass"):
        guard.gradients.observe(cross_entropy(model(tokens).transpose(1, 2), targets))
    watching = anchorhold.Guard(model, anchorhold.Fisher(labels="true"), from_scratch=True)
    with pytest.raises(anchorhold.errors.ModelError, match="within the backward pass"):
        watching.gradients.microbatches([(tokens, targets)])
    replay = anchorhold.Replay([(tokens, targets)], strength=1.0)
    replaying = anchorhold.Guard(model, "fine-tune", holds=[replay])
    guard.detach()
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    replaying.attach(sgd)
    with pytest.raises(anchorhold.errors.ModelError, match="within the backward pass"):
        sgd.step()
    assert parameter.grad is before and bool((before == 1).all())


def test_llama_factory(tmp_path):
    pytest.importorskip("llamafactory")
    start(program("LLaMA-Factory"), tmp_path, DISABLE_VERSION_CHECK="1", TRANSFORMERS_VERBOSITY="error")


def test_torchtune(tmp_path):
    if importlib.util.find_spec("torchtune") is None:  # importing it takes seconds
        pytest.skip("torchtune is not installed")
    copy = [sys.executable, "-m", "torchtune._cli.tune", "cp", "full_finetune_single_device", "my_recipe.py"]
    subprocess.run(copy, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    in_backward = """
        cfg.optimizer_in_bwd, cfg.gradient_accumulation_steps, cfg.clip_grad_norm = True, 1, None
        recipe = GuardedRecipe(cfg)
        recipe.setup(cfg)
        recipe.train()
        assert recipe.guard.gradients.path.steps == 8
    """
    start(program("torchtune", *(line.strip() for line in in_backward.splitlines())), tmp_path)


def test_ultralytics(tmp_path):
    if importlib.util.find_spec("ultralytics") is None:  # importing it writes settings
        pytest.skip("ultralytics is not installed")
    asserted = "assert not guard.model.model[0].bn.training"
    settings = {"YOLO_CONFIG_DIR": str(tmp_path), "YOLO_OFFLINE": "true"}
    start(program("Ultralytics", asserted), tmp_path, **settings)


def test_the_page_says_what_deepspeed_does(tmp_path):
    """All stages in one process, which takes seconds to import it: what the page runs, and what it says is refused."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    without_its_compiler = "import deepspeed.ops\ndeepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False"
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    asked = """
import warnings

def said(stage, **options):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", anchorhold.AnchorholdWarning)
            trained(stage, **options)
    except (anchorhold.AnchorholdError, anchorhold.AnchorholdWarning) as error:
        return f"{type(error).__name__}: {error}"

torch.manual_seed(1)
plain = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
guard = anchorhold.Guard(plain, anchorhold.Fisher(), strength=50.0)
guard.consolidate(batches[:2])
optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
guard.attach(optimizer)
for x, y in batches:
    optimizer.zero_grad()
    cross_entropy(plain(x), y).backward()
    optimizer.step()

def far(model):
    pairs = zip(model.parameters(), plain.parameters())
    return max(float((p - q).detach().abs().max()) for p, q in pairs)

assert far(by_attaching) == 0
assert all(far(model) < 1e-6 for model in in_the_loss.values()), [far(model) for model in in_the_loss.values()]
for stage in (1, 2):
    refused = said(stage, hold="attach")
    assert refused.startswith("OptimizerError: ") and "engine.backward(loss + guard.penalty())" in refused
for hold in ("attach", "loss"):
    assert said(3, hold=hold).startswith("ModelError: '0.weight' is partitioned by DeepSpeed's ZeRO 3")
for stage in (1, 2, 3):
    assert "takes a step on what is protected" in said(stage, hold=None)
"""
    code = "\n".join([without_its_compiler, *code_of(PAGE, "DeepSpeed"), asked])
    start(code, tmp_path, DS_ACCELERATOR="cpu", **alone)
