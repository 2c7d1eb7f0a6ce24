"""Tiny random language models in folders, with tokenizers that are trained on the spot, and brute force over them."""

import math

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 16
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = (
    "the quick brown fox jumps over a lazy dog while übermäßig viele Zwölfboxkämpfer Eva über den Sylter Deich jagen "
)


def tokenizer(vocabulary=280, template=None):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        [WORDS * 3],
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    found = PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<s>", eos_token="</s>")
    found.chat_template = template
    return found


def llama(vocabulary=280, seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1,
        initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2(vocabulary=280, seed=0):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1,
        initializer_range=0.2,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def moved(model, size=0.05, seed=1):
    """Change a model's weights a little, in place."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(delta := torch.empty_like(parameter), std=size)
        parameter.data += delta
    return model


def saved(folder, model, words=None):
    model.save_pretrained(folder)
    if words is not None:
        words.save_pretrained(folder)
    return folder


@torch.no_grad()
def brute(before, after, tokens, first=1, context=CONTEXT):
    """Return the summed loss before, loss after and KL of a document, token by token, in float64."""
    before, after = before.double().eval(), after.double().eval()
    sums = [0.0, 0.0, 0.0]
    for t in range(first, len(tokens)):
        begin = (t - 1) // context * context
        p, q = (torch.log_softmax(m(torch.tensor([tokens[begin:t]])).logits[0, -1], 0) for m in (before, after))
        sums[0] -= float(p[tokens[t]])
        sums[1] -= float(q[tokens[t]])
        for log_p, log_q in zip(p.tolist(), q.tolist(), strict=True):
            sums[2] += math.exp(log_p) * (log_p - log_q)
    return sums


def ratio(values, weights):
    """Return a ratio of sums and its standard error, by the formula."""
    found = sum(values) / sum(weights)
    m = len(values)
    spread = 0.0
    for value, weight in zip(values, weights, strict=True):
        spread += (value - found * weight) ** 2
    return found, math.sqrt(m / (m - 1) * spread) / sum(weights) if m > 1 else None
