"""Trainers: run in seconds in the tests, which hold each against the same numbers in a plain loop."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.families.family import Section
from benchmarks.families.verdicts import COVERED, NOT_RUN, Outcome

trainers = Section[tuple[str, str]]("Trainers")

ROOT = Path(__file__).resolve().parents[2]

TESTS = [
    ("own loop", "steps of every optimiser of torch", "tests/guard/test_optimizers.py", "test_a_held_step_is_a_step"),
    ("gradient accumulation", "several backward passes a step", "tests/guard/test_real_loops.py", "accumul"),
    ("AMP scaler", "GradScaler, skipped steps", "tests/guard/test_mixed_precision.py", "scaler"),
    ("clipping", "clip_grad_norm_", "tests/guard/test_real_loops.py", "clip"),
    ("compiled optimiser step", "torch.compile around step", "tests/guard/test_real_loops.py", "compile"),
    ("Lightning, automatic", "Trainer and its callback", "tests/integrations/test_lightning.py", "AnchorholdCallback"),
    ("Lightning, manual", "manual_backward, several optimisers", "tests/integrations/test_lightning.py", "manual"),
    ("Lightning, freezing", "finetuning callbacks", "tests/integrations/test_lightning_freezing.py", "Finetuning"),
    ("Hugging Face Trainer", "Trainer and its callback", "tests/integrations/test_huggingface.py", "Trainer"),
    ("Accelerate", "prepare, accumulate", "tests/integrations/test_accelerate.py", "prepare_guard"),
    ("TRL, SFT", "SFTTrainer with LoRA", "tests/integrations/test_huggingface_adapters.py", "SFTTrainer"),
    ("TRL, SFT with packing", "texts side by side in a row", "tests/integrations", "packing"),
    ("TRL, DPO", "pairs of answers", "tests/integrations", "DPO"),
    (
        "Hugging Face, load_best_model_at_end",
        "weights put back after training",
        "tests/integrations",
        "load_best_model_at_end",
    ),
    ("DDP", "two gloo processes", "tests/distributed/ddp_checks.py", "DistributedDataParallel"),
    ("FSDP2", "fully_shard, two gloo processes", "tests/distributed/fsdp_checks.py", "fully_shard"),
    ("the lab's own training", "plain and fast engines agree", "tests/lab/training/fast/test_engine.py", "plain"),
]


def _entry(path: str, word: str) -> Callable[[], tuple[str, str]]:
    return lambda: (path, word)


for _name, _what, _path, _word in TESTS:
    trainers.enter(_name, _what, _entry(_path, _word))


def sections() -> list[Section[tuple[str, str]]]:
    return [trainers]


def judge(make: Callable[[], tuple[str, str]]) -> Outcome:
    """Name the test files that speak of it."""
    path, word = make()
    found = [ROOT / path] if (ROOT / path).is_file() else sorted((ROOT / path).rglob("*.py"))
    names = [str(file.relative_to(ROOT)) for file in found if word in file.read_text()]
    if not names:
        return Outcome(NOT_RUN, None, ("no test speaks of it",))
    return Outcome(COVERED, None, (f"tested by {', '.join(names)}",))
