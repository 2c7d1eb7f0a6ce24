"""A network of two layers and texts for it, drawn by chance."""

import torch

from anchorhold.seeding import generator_for
from studies.pretrained import training
from studies.pretrained.models import network
from studies.pretrained.texts import KEPT
from studies.pretrained.tokens import NOTHING, Rows, Tokens

LESSON = "lesson-german"
KINDS = 53


def model():
    torch.manual_seed(0)
    config = {"vocab_size": KINDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    return network("llama", config | heads)


def rows(documents, length, seed):
    drawn = torch.randint(KINDS, (documents, length + 1), generator=generator_for(seed, "rows"))
    drawn[0, length // 2 :] = NOTHING
    return Rows(drawn.int(), torch.full((documents,), 3 * length))


def texts():
    found = {(text, part): rows(4, 12, i) for i, text in enumerate((LESSON, *KEPT)) for part in ("validation", "test")}
    # A lesson that can be learned: every token is followed by the next one.
    stream = (torch.arange(16 * 18) % KINDS).int()
    return Tokens(0, {LESSON: stream}, found, "texts")


def learner(own=False):
    found = training.Learner(model(), texts(), "weights", context=16)
    if own:
        found.own = rows(8, 12, 99).tokens.clamp(min=0)
    return found
