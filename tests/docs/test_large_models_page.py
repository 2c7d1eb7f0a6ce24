"""The page about forms of large models says what they really take."""

import re
import warnings

import pytest
import torch

import anchorhold
from anchorhold.forms import Kronecker16, Rotated16  # noqa: F401 (the page's rows are evaluated)
from tests.docs.pages import page, run_page

transformers = pytest.importorskip("transformers")

SIZES = {
    "billion": (2048, 6144, 16, 16, 16, 32_000),
    "8 billion": (4096, 14_336, 32, 32, 8, 128_256),
    "70 billion": (8192, 28_672, 80, 64, 8, 128_256),
}
ROWS = re.findall(r"^\| \**`(.+?)`\** \| (\S+) / (\S+) \| ([\d,]+) \|$", page("guides/large-models.md"), re.MULTILINE)
LARGER = re.findall(
    r"^\| `(.+?)` \| (\S+) / (\S+) \| ([\d,]+) \| (\S+) / (\S+) \| ([\d,]+) \|$",
    page("guides/large-models.md"),
    re.MULTILINE,
)


def llama(width, within, layers, heads, key_heads, vocabulary):
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=within,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def test_its_code_runs():
    scope = run_page("guides/large-models.md")
    assert scope["guard"].tasks == 2 and scope["guard"].options.form.name == "rotated16"


@pytest.mark.nightly
def test_the_bytes_are_those_that_a_guard_tells():
    assert len(ROWS) == 10 and len(LARGER) == 5
    rows = {"billion": ROWS, "8 billion": [row[:4] for row in LARGER]}
    rows["70 billion"] = [(row[0], *row[4:]) for row in LARGER]
    for size, table in rows.items():
        model = llama(*SIZES[size])
        for form, whole, half, multiplications in table:
            for told, dtype in ((whole, None), (half, torch.bfloat16)):
                if told == "–":
                    continue
                with warnings.catch_warnings(action="ignore"):
                    guard = anchorhold.Guard(
                        model, anchorhold.Fisher(), form=eval(form), options=anchorhold.GuardOptions(state_dtype=dtype)
                    )
                cost = guard.cost()
                found = f"{cost.kept / cost.weights:.2f}", f"{cost.multiplications / cost.weights:,.0f}"
                assert found == (told, multiplications), (size, form)
