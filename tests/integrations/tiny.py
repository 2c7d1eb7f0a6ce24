"""Transformers small enough for brute force, built from a config."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

TOKENS = 7
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(kind=GPT2LMHeadModel, vocabulary=TOKENS, width=8, layers=2, **options):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=16, n_embd=width, n_layer=layers, n_head=2, **SPECIAL, **options
    )
    return kind(config)


def gpt2_classifier():
    return gpt2(GPT2ForSequenceClassification, num_labels=3)


def llama(**options):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        **SPECIAL,
        **options,
    )
    return LlamaForCausalLM(config)


def bert_tagger():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=TOKENS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        num_labels=3,
        pad_token_id=0,
    )
    return BertForTokenClassification(config)


def tokenizer():
    words = Tokenizer(
        models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "c": 5, "d": 6}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def text(rows=3, length=5, vocabulary=TOKENS, seed=0):
    """Token sequences, some of them padded on the right, as a tokeniser and its collator give them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    ids = ids.masked_fill(mask == 0, 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
