"""How long ``protect()`` takes on a language model, and the steps after it.

``python -m benchmarks.protect_time FOLDER``, a folder of Hugging Face's with a causal language model and its tokenizer.
All is at its defaults unless an option says otherwise. Each printed line is JSON: one for all weights, and one for an
adapter where PEFT is there, or those of ``--ways`` alone.
"""

import argparse
import copy
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anchorhold
from anchorhold.protection import ProtectedGuard
from anchorhold.tensors.summaries import in_bytes

STEPS = 5
WAYS = ("all weights", "an adapter")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = _options(arguments)
    given: Any = importlib.import_module("transformers")
    model = given.AutoModelForCausalLM.from_pretrained(options.folder).float().to(options.device)
    tokenizer = given.AutoTokenizer.from_pretrained(options.folder)
    ways = WAYS if importlib.util.find_spec("peft") else WAYS[:1]
    for way in options.ways or ways:
        found = measured(_adapted(copy.deepcopy(model), way), tokenizer, options)
        print(json.dumps({"way": way, "model": str(options.folder), **found}), flush=True)


def measured(model: nn.Module, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of everything, for one model."""
    trained = [p for p in model.parameters() if p.requires_grad]
    known = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, known, (options.rows, options.row), generator=generator).to(trained[0].device)
    step = Step(model, torch.optim.AdamW(trained, 1e-6), rows)
    plain = [step() for _ in range(STEPS)]
    small = {} if options.tokens is None else {"tokens": options.tokens, "length": options.length}
    began = time.perf_counter()
    guard: ProtectedGuard = anchorhold.protect(model, tokenizer, cache=None, progress=sys.stderr.isatty(), **small)
    _wait(trained[0])
    protected = time.perf_counter() - began
    guard.attach(step.optimizer)
    held = [step() for _ in range(STEPS)]
    began = time.perf_counter()
    report = guard.finish(share=0.8)
    _wait(trained[0])
    return {
        "machine": torch.cuda.get_device_name() if trained[0].is_cuda else "CPU",
        "torch": torch.__version__,
        "trained_weights": sum(p.numel() for p in trained),
        "form": report.form,
        "text": repr(guard.samples.text),
        "protect_seconds": protected,
        "writing_seconds_foretold": guard.plan.seconds_writing,
        "measuring_seconds_foretold": guard.plan.seconds_measuring,
        "kept": in_bytes(report.bytes_kept),
        "tokens_a_step": rows.numel(),
        "plain_step_seconds": plain,
        "first_steps_after_seconds": held,
        "finish_by_a_share_seconds": time.perf_counter() - began,
        "peak_bytes": torch.cuda.max_memory_allocated() if trained[0].is_cuda else None,
    }


class Step:
    """An optimizer step on the same rows, timed.

    Args:
        model: that is trained.
        optimizer: of it.
        rows: of tokens.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
        self.model = model
        self.optimizer = optimizer
        self.rows = rows

    def __call__(self) -> float:
        """Return the seconds of one step."""
        self.model.train()
        _wait(self.rows)
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss: Tensor = self.model(input_ids=self.rows, labels=self.rows).loss
        loss.backward()
        self.optimizer.step()
        _wait(self.rows)
        return time.perf_counter() - began


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _adapted(model: nn.Module, way: str) -> nn.Module:
    if way == "all weights":
        return model
    peft: Any = importlib.import_module("peft")
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.protect_time", description=__doc__)
    parser.add_argument("folder", type=Path, help="a model and a tokenizer in Hugging Face's layout")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="of training (default: both, if PEFT is there)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, help="of own text; by default as protect() has it")
    parser.add_argument("--length", type=int, default=256, help="tokens of a piece, with --tokens")
    parser.add_argument("--rows", type=int, default=16, help="rows of a step")
    parser.add_argument("--row", type=int, default=512, help="tokens of a row")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
