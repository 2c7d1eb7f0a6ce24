"""Texts: parts that share no document and no paragraph, and tokens that stand for their bytes."""

from itertools import combinations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from studies.pretrained import texts, tokens
from studies.pretrained.texts import Document, Text

LONG = "These words stand in every document, as a licence does, and are longer than sixty characters."


def documents(count, size=400):
    for number in range(count):
        own = f"Paragraph {number} has its own words, and they are of document number {number}. " * (size // 70)
        yield f"doc/{number}", f"{own}\n\n{LONG}"


def lesson(counts=(5, 10)):
    return Text(lambda cache: documents(80), "made here", counts, is_lesson=True, is_whole=True, shortest=40)


def parts_of(found):
    return {part: [each for each in found if each.part == part] for part in ("train", "validation", "test")}


def test_parts_share_no_document():
    parts = parts_of(texts.split("some", lesson(), list(documents(80))))
    assert [len(parts[part]) for part in ("validation", "test", "train")] == [5, 10, 65]
    for one, other in combinations(parts.values(), 2):
        assert {each.name for each in one}.isdisjoint(each.name for each in other)
    # They are the same whatever the order in which the documents come.
    assert parts == parts_of(texts.split("some", lesson(), list(documents(80))[::-1]))


def test_training_has_no_paragraph_of_the_others():
    parts = parts_of(texts.split("some", lesson(), list(documents(80))))
    evaluated = parts["validation"] + parts["test"]
    assert texts.shared_words(parts["train"], evaluated) > 0.0
    train = texts.without_overlap(parts["train"], texts.paragraphs_of(evaluated))
    assert texts.paragraphs_of(train).isdisjoint(texts.paragraphs_of(evaluated))
    assert len(train) == 65 and LONG not in "".join(each.content for each in train)


def test_a_paragraph_is_trained_on_once():
    train = [Document("some", "train", str(i), LONG) for i in range(3)]
    assert [each.name for each in texts.without_overlap(train, set())] == ["0"]


def test_too_few_documents_are_refused():
    with pytest.raises(SystemExit, match="9 documents; expected at least 15"):
        texts.split("some", lesson(), list(documents(9)))


def test_gsm8k_keeps_its_own_split():
    names = [f"gsm8k/{which}/{i}" for which in ("train", "test") for i in range(60)]
    given = [(name, f"Question {name}: " + 40 * "x") for name in names]
    found = parts_of(texts.split("lesson-gsm8k", lesson(), given))
    assert {each.name.split("/")[1] for each in found["test"]} == {"test"}
    assert {each.name.split("/")[1] for each in found["train"] + found["validation"]} == {"train"}


def test_a_kept_window_begins_between_lines():
    text = "\n".join(f"line {i} of a text" for i in range(1000))
    window = texts.kept_window(text)
    assert window.startswith("line 3") and len(window) <= texts.LONGEST
    assert window in text


@pytest.fixture(scope="module")
def tokenizer():
    """Return a tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = Tokenizer(models.BPE({letter: i + 1 for i, letter in enumerate(alphabet)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=found)


def test_tokens_stand_for_their_bytes(tokenizer, tmp_path):
    given = [
        Document("some", "test", "a", "Grüße aus Köln"),
        Document("some", "test", "b", "ab"),
        Document("some", "train", "c", "abc"),
        Document("some", "train", "d", "ü"),
    ]
    tokens.encode(given, tokenizer, 0, tmp_path / "tokens.npz", context=10)
    found = tokens.load(tmp_path / "tokens.npz")
    rows = found.rows["some", "test"]
    assert rows.tokens.shape == (2, 11) and rows.tokens[:, 0].tolist() == [0, 0]
    assert tokenizer.decode(rows.tokens[0, 1:]) == "Grüße au"
    assert rows.sizes.tolist() == [10, 2]
    assert rows.tokens[1, 3:].tolist() == [tokens.NOTHING] * 8
    stream = found.train["some"]
    assert len(stream) == 4 + 3 and stream[0] == stream[4] == 0
    assert tokenizer.decode(stream[1:4]) == "abc"
    assert found.digest == tokens.load(tmp_path / "tokens.npz").digest
    assert torch.equal(found.chosen("test", ["some"])["some"].tokens, rows.tokens)


def test_documents_are_read_as_they_were_written(tmp_path):
    document = Document("some", "test", "a", "a line\u2028and another\nand a third")
    path = tmp_path / "texts.jsonl"
    path.write_bytes(texts.as_lines([document, document]))
    assert texts.read(path) == [document, document]
