"""What pieces begin and end with: tokens that are named, prompts, chats."""

import pytest
import torch
from tokenizers import processors

import anchorhold
from tests.integrations import tiny
from tests.own_text.writers import Chain, same

TEMPLATE = "{% for m in messages %}<s> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}d{% endif %}"


def tokenizer(template=None, **changed):
    made = tiny.tokenizer()
    made.chat_template = template
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def without(model, *names):
    for name in names:
        setattr(model.config, f"{name}_token_id", None)
        setattr(model.generation_config, f"{name}_token_id", None)
    return model


def firsts(text):
    return {piece.tokens[: piece.begun].tolist()[0] for piece in text.pieces}


def test_pieces_begin_with_the_beginning_or_else_the_end():
    assert firsts(anchorhold.write_text(tiny.gpt2(), 3, 4)) == {1}
    assert firsts(anchorhold.write_text(without(tiny.gpt2(), "bos"), 3, 4)) == {2}
    assert firsts(anchorhold.write_text(without(tiny.gpt2(), "bos", "eos"), 3, 4, tokenizer=tokenizer())) == {1}
    assert firsts(anchorhold.write_text(tiny.gpt2(), 3, 4, start=5)) == {5}


def test_where_nothing_says_how_a_text_begins_it_is_refused():
    with pytest.raises(anchorhold.errors.ConfigurationError, match="Give start="):
        anchorhold.write_text(Chain(), 3, 4)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="Give start="):
        anchorhold.write_text(without(tiny.gpt2(), "bos", "eos"), 3, 4, end=None)


def test_a_tokenizer_without_an_end_token_is_told_of_once(recwarn):
    model, made = without(tiny.gpt2(), "eos"), tokenizer(eos_token=None)
    text = anchorhold.write_text(model, 9, 6, tokenizer=made, batch_size=2)
    told = [str(one.message) for one in recwarn if issubclass(one.category, anchorhold.AnchorholdWarning)]
    assert len(told) == 1 and "end=None" in told[0]
    assert {len(piece.written) for piece in text.pieces} == {6}
    assert "without an end token" in repr(text)
    recwarn.clear()
    assert same(text, anchorhold.write_text(model, 9, 6, tokenizer=made, end=None))
    assert same(text, anchorhold.write_text(model, 9, 6, end=None))
    anchorhold.write_text(Chain(), 9, 6, start=0)  # which nobody expects to have one
    assert not recwarn.list


def test_an_end_token_that_the_model_does_not_know_is_none():
    model = tiny.gpt2()
    model.config.eos_token_id = model.generation_config.eos_token_id = 50256
    with pytest.warns(anchorhold.AnchorholdWarning, match="there is 50256, but the model knows only 7"):
        anchorhold.write_text(model, 2, 4)
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"end 50256.*from 0 to 6"):
        anchorhold.write_text(tiny.gpt2(), 2, 4, end=50256)


def test_the_model_and_its_tokenizer_may_name_different_ends():
    model = tiny.gpt2()
    model.generation_config.eos_token_id = [5, 6]
    assert anchorhold.write_text(model, 2, 4, tokenizer=tokenizer()).kind.ends == (2, 5, 6)


def test_prompts_may_be_texts():
    text = anchorhold.write_text(tiny.gpt2().double(), length=4, tokenizer=tokenizer(), prompts=["a b", "c"])
    assert same(text, anchorhold.write_text(tiny.gpt2().double(), length=4, prompts=[[3, 4], [5]]))
    for piece, written, whole in zip(text.pieces, text.written_texts, text.texts, strict=True):
        words = {3: "a", 4: "b", 5: "c", 6: "d"}
        assert written.split() == [words[token] for token in piece.written.tolist() if token in words]
        assert whole.split() == [words[token] for token in piece.tokens.tolist() if token in words]


def test_prompts_may_be_tensors():
    rows = torch.tensor([[3, 4], [5, 6]])
    text = anchorhold.write_text(tiny.gpt2().double(), length=4, prompts=rows)
    assert same(text, anchorhold.write_text(tiny.gpt2().double(), length=4, prompts=rows.tolist()))
    assert same(text, anchorhold.write_text(tiny.gpt2().double(), length=4, prompts=list(rows)))


def test_a_tokenizer_that_ends_texts_does_not_end_prompts():
    made = tokenizer()
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert made.encode("a") == [1, 3, 2]
    text = anchorhold.write_text(tiny.gpt2(), length=2, tokenizer=made, prompts=["a", "a </s>"])
    assert text.pieces[0].tokens[: text.pieces[0].begun].tolist() == [1, 3]


def test_an_empty_prompt_is_a_beginning_without_one():
    text = anchorhold.write_text(tiny.gpt2(), length=4, tokenizer=tokenizer(), prompts=["", [], "a"])
    assert [piece.tokens[: piece.begun].tolist() for piece in text.pieces] == [[1], [1], [3]]
    with pytest.raises(anchorhold.errors.ConfigurationError, match="Give start="):
        anchorhold.write_text(Chain(), length=4, prompts=[[1], []])


def test_chats_go_through_the_template():
    made = tokenizer(TEMPLATE)
    chat = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "a"}]
    text = anchorhold.write_text(tiny.gpt2(), length=4, tokenizer=made, prompts=[chat, "b"], chat=True)
    assert [piece.tokens[: piece.begun].tolist() for piece in text.pieces] == [[1, 3, 4, 1, 5, 1, 3, 6], [1, 4, 6]]
    plain = anchorhold.write_text(tiny.gpt2(), length=4, tokenizer=made, prompts=[chat, "b"])
    assert [piece.begun for piece in plain.pieces] == [8, 1]  # messages always do, texts are texts
    batch = text.batches(2)[0]
    for piece, labels in zip(text.pieces, batch["labels"], strict=True):
        assert labels[: piece.begun].eq(-100).all()
        assert labels[piece.begun : len(piece.tokens)].tolist() == piece.written.tolist()
        assert labels[len(piece.tokens) :].eq(-100).all()


@pytest.mark.parametrize("made", [tokenizer(), tokenizer("{{ raise_exception('no systems') }}")])
def test_a_template_that_is_missing_or_refuses_is_told_of(made):
    with pytest.raises(anchorhold.errors.ConfigurationError, match="Prompt 0 cannot be put into the chat template"):
        anchorhold.write_text(tiny.gpt2(), length=4, tokenizer=made, prompts=["a"], chat=True)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompts": ["a"]}, "Prompt 0 is a text, and there is no tokenizer"),
        ({"prompts": [[{"role": "user", "content": "a"}]]}, "there is no tokenizer"),
        ({"prompts": "a b"}, "prompts of type str"),
        ({"prompts": []}, "at least one"),
        ({"prompts": 3}, "prompts of type int"),
        ({"prompts": [[1], 3]}, "Prompt 1 is of type int"),
        ({"prompts": torch.tensor([1, 2])}, "Prompt 0 is of type Tensor"),
        ({"prompts": [[1], [3, 7]]}, "Prompt 1: token 7: expected the number of a token, from 0 to 6"),
        ({"prompts": [[1.5]]}, "Prompt 0: token 1.5"),
        ({"prompts": [[-1]]}, "Prompt 0: token -1"),
        ({"prompts": [[1]], "chat": True}, "with chat=True"),
        ({"chat": True}, "chat=True without prompts"),
        ({"start": 7}, "start 7"),
        ({"start": True}, "start True"),
        ({"end": 2.0}, "end"),
        ({"end": [1, 99]}, "end 99"),
    ],
)
def test_beginnings_that_make_no_sense_are_refused(options, said):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=said):
        anchorhold.write_text(tiny.gpt2(), length=4, **options)


def test_a_tokenizer_that_knows_more_than_the_model_is_told_of():
    made = tokenizer()
    made.add_tokens(["new"])
    with pytest.raises(anchorhold.errors.ConfigurationError, match="may know more tokens than the model"):
        anchorhold.write_text(tiny.gpt2(), length=4, tokenizer=made, prompts=["a new"])
    assert len(anchorhold.write_text(tiny.gpt2(), length=4, tokenizer=made, prompts=["a"])) == 1


def test_the_name_of_a_tokenizer_is_none():
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"tokenizer='gpt2': .*AutoTokenizer\.from_pretrained"
    ):
        anchorhold.write_text(tiny.gpt2(), 2, 4, tokenizer="gpt2")
