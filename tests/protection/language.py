"""A tiny language model that has learned something, and its tokenizer."""

import copy
import functools

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.integrations import tiny

OLD = torch.tensor([[1, 3, 4, 5, 6, 3, 4, 5, 6, 2], [1, 4, 5, 6, 3, 4, 5, 6, 3, 2]] * 2)
NEW = torch.tensor([[1, 6, 6, 3, 3, 6, 6, 3, 3, 2], [1, 3, 3, 6, 6, 3, 3, 6, 6, 2]] * 2)
FEW = {"tokens": 64 * 11, "length": 11, "cache": None, "progress": False}
"""64 pieces, of which 8 are kept aside."""


def untrained(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(
        vocab_size=tiny.TOKENS, num_hidden_layers=2, max_position_embeddings=12, **sizes, **tiny.SPECIAL, **options
    )
    return LlamaForCausalLM(config)


def fit(model, rows, steps, optimizer=None):
    optimizer = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()


@functools.cache
def _taught():
    model = untrained()
    fit(model, OLD, 60)
    return model


def taught():
    """A model that writes what it was taught, so that its text is not empty."""
    return copy.deepcopy(_taught())


@torch.no_grad()
def loss(model, rows):
    return float(model.eval()(input_ids=rows, labels=rows).loss)
