"""Tokens of several bytes in the place of bytes: byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909).

``python -m benchmarks.language tokens`` calls it: a corpus of bytes becomes one of tokens, for a network that is to be
as pretrained ones are. Pairs are learned from what is trained on alone.
"""

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from benchmarks.language.corpus import Corpus
from benchmarks.language.gpt import BYTES

CHUNK = 100_000
"""Characters that are put into tokens at once; pairs never reach over a line's end and the beginning of a chunk."""


def encoded(corpus: Corpus, vocabulary: int) -> Corpus:
    """Return a corpus of bytes as one of tokens. The first 256 tokens are the bytes, by their own numbers."""
    if corpus.lengths is not None:
        raise SystemExit("This corpus is of tokens already; give the one of bytes that it was made from.")
    if vocabulary <= BYTES:
        raise SystemExit(f"--vocabulary {vocabulary}: expected more than the {BYTES} bytes, such as 16384.")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=ByteLevel.alphabet(), special_tokens=[], show_progress=False
    )
    trained = [text for (_, part), text in corpus.texts.items() if part == "train"]
    tokenizer.train_from_iterator((chunk for text in trained for chunk in _chunks(text)), trainer)
    renumbered, lengths = _bytes_first(tokenizer)
    return Corpus({key: renumbered[_tokens(tokenizer, text)] for key, text in corpus.texts.items()}, lengths)


def encoded_for(corpus: Corpus, tokenizer: Tokenizer) -> Corpus:
    """Return a corpus of bytes in the tokens of another's model, which have that model's numbers."""
    lengths = torch.ones(tokenizer.get_vocab_size(), dtype=torch.int32)
    for token, number in tokenizer.get_vocab().items():
        lengths[number] = len(token)  # a letter for each byte
    found = Corpus({key: _tokens(tokenizer, text).int() for key, text in corpus.texts.items()}, lengths)
    for key, text in corpus.texts.items():
        if int(lengths[found.texts[key]].sum()) != len(text):
            raise SystemExit(
                f"The tokens of {' '.join(key)} do not stand for its bytes: expected a byte-level tokenizer."
            )
    return found


def _chunks(text: Tensor) -> Iterator[str]:
    """Yield a text in pieces that end where lines do."""
    lines = bytes(text.numpy()).decode().splitlines(keepends=True)
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= CHUNK:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def _tokens(tokenizer: Tokenizer, text: Tensor) -> Tensor:
    found = [torch.tensor(tokenizer.encode(chunk, add_special_tokens=False).ids) for chunk in _chunks(text)]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.long)


def _bytes_first(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return new numbers of all tokens, by their old ones, and how many bytes each stands for, by the new."""
    by_letter = _bytes_of_letters()
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    renumbered = torch.empty(len(tokens), dtype=torch.int32)
    lengths = torch.ones(len(tokens), dtype=torch.int32)
    longer = BYTES
    for token, old in tokens:
        if len(token) == 1:
            renumbered[old] = by_letter[token]
        else:
            renumbered[old], lengths[longer] = longer, len(token)
            longer += 1
    return renumbered, lengths


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte that each letter stands for: itself where it can be seen, else one of the letters after."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(BYTES + i): byte for i, byte in enumerate(others)}
