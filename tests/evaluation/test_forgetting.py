"""What was forgotten, against brute force in float64 on tiny random models."""

import copy
import json
import math

import peft
import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

import anchorhold
from anchorhold.errors import ConfigurationError, DataError, ModelError, NotFiniteError, StateError
from anchorhold.evaluation import ForgettingInterrupted, forgetting, scores
from anchorhold.own_text import OwnText
from tests.evaluation.models import CONTEXT, TEMPLATE, WORDS, brute, gpt2, llama, moved, ratio, saved, tokenizer

TEXTS = [WORDS[:20], WORDS[30:], "Deich\r\n", "a lazy 犬 ", WORDS[50:90]]
EXACT = {"dtype": torch.float64, "device": "cpu"}


def close(estimate, expected):
    value, error = expected
    assert estimate.value == pytest.approx(value, rel=1e-6, abs=1e-9)
    assert estimate.error == (None if error is None else pytest.approx(error, rel=1e-6, abs=1e-9))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model before and one after, in folders with one tokenizer."""
    root, words = tmp_path_factory.mktemp("models"), tokenizer(template=TEMPLATE)
    saved(root / "before", llama(), words)
    saved(root / "after", moved(llama()), words)
    return root


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.txt").write_bytes(text.encode())
    return tmp_path / "texts"


@pytest.mark.parametrize("network", [llama, gpt2])
@pytest.mark.parametrize("context", [None, 5])
def test_as_by_brute_force(tmp_path, texts, network, context):
    words = tokenizer()
    before, after = network(), moved(network())
    saved(tmp_path / "before", before, words)
    saved(tmp_path / "after", after, words)
    report = forgetting(tmp_path / "before", tmp_path / "after", texts, context=context, **EXACT)
    (row,) = report.rows
    tokens = [[0, *words(text)["input_ids"]] for text in TEXTS]
    assert max(map(len, tokens)) > 3 * CONTEXT and min(map(len, tokens)) < CONTEXT
    found = [brute(before, after, own, context=context or CONTEXT) for own in tokens]
    losses, losses_after, kls = zip(*found, strict=True)
    counts = [len(own) - 1 for own in tokens]
    sizes = [math.log(2) * len(text.encode()) for text in TEXTS]
    changes = [b - a for a, b in zip(losses, losses_after, strict=True)]
    assert (row.documents, row.tokens, row.bytes) == (5, sum(counts), sum(len(text.encode()) for text in TEXTS))
    close(row.kl, ratio(kls, counts))
    close(row.loss_before, ratio(losses, counts))
    close(row.loss_after, ratio(losses_after, counts))
    close(row.change, ratio(changes, counts))
    close(row.bits_before, ratio(losses, sizes))
    close(row.bits_after, ratio(losses_after, sizes))
    close(row.bits_change, ratio(changes, sizes))
    assert row.kl.value > 0.01


def test_documents_of_equal_length_have_the_error_of_a_mean(folders):
    before, after = llama(), moved(llama())
    words = tokenizer()
    texts = ["01234567", "98765432", "(*)-_[]+", "7!6!5!4!"]
    report = forgetting(folders / "before", folders / "after", {"digits": texts}, **EXACT)
    tokens = [[0, *words(text)["input_ids"]] for text in texts]
    assert {len(own) for own in tokens} == {9}
    means = torch.tensor([brute(before, after, own)[2] / 8 for own in tokens], dtype=torch.float64)
    close(report.rows[0].kl, (float(means.mean()), float(means.std() / 2)))


def test_batches_of_any_size_give_the_same(folders, texts, monkeypatch):
    shown = []
    for size in (1, 1 << 16, 1 << 30):
        monkeypatch.setattr(scores, "_CPU_BYTES", size)
        shown.append(forgetting(folders / "before", folders / "after", texts, **EXACT))
    assert len({str(report) for report in shown}) == 1
    assert shown[0].rows[0].kl.value == pytest.approx(shown[1].rows[0].kl.value, rel=1e-12)
    again = forgetting(folders / "before", folders / "after", texts, **EXACT)
    assert again.to_json() == shown[2].to_json()


def test_a_batch_that_is_too_large_is_halved(folders, texts):
    class Small(torch.nn.Module):
        """A model whose memory holds one text."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            if len(tokens) > 2:
                raise torch.OutOfMemoryError("too many")
            return self.model(tokens).logits

    words = tokenizer()
    plain = forgetting(llama(), moved(llama()), texts, tokenizer=words, context=CONTEXT, start=0)
    small = forgetting(Small(llama()), Small(moved(llama())), texts, tokenizer=words, context=CONTEXT, start=0)
    assert str(small) == str(plain)


def scored(words, prompt, answer):
    head = words(prompt)["input_ids"]
    return [*head, *words(answer)["input_ids"]], len(head), len(answer.encode())


def test_prompts_are_read_and_not_scored(folders, tmp_path):
    before, after, words = llama(), moved(llama()), tokenizer(template=TEMPLATE)
    rows = [
        {"prompt": "the quick", "completion": " brown fox", "kind": "short"},
        {"prompt": WORDS[:90], "completion": WORDS[90:], "kind": "long"},
        {"text": "", "kind": "short"},
        {"messages": [{"role": "user", "content": "jumps?"}, {"role": "assistant", "content": " a dog \n"}]},
        {"prompt": [{"role": "user", "content": "who"}], "completion": [{"role": "assistant", "content": "Eva"}]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    with pytest.warns(
        UserWarning, match=r"1 of 5 documents are empty and left out, the first one .*rows.jsonl, line 5"
    ):
        report = forgetting(folders / "before", folders / "after", data=tmp_path / "rows.jsonl", **EXACT)
    found = {row.kind: row for row in report.rows}
    assert list(found) == ["short", "long", "rows.jsonl", "mean of kinds"]
    for kind, prompt in (("short", "the quick"), ("long", WORDS[:90])):
        tokens, first, size = scored(words, prompt, rows[kind == "long"]["completion"])
        sums = brute(before, after, [0, *tokens], first + 1)
        assert (found[kind].tokens, found[kind].bytes) == (len(tokens) - first, size)
        close(found[kind].kl, (sums[2] / (len(tokens) - first), None))
        close(found[kind].bits_after, (sums[1] / size / math.log(2), None))
    # A chat begins as its template says, and the marks that end an answer are not scored.
    chats = [scored(words, "<user>jumps?</s><assistant>", "a dog"), scored(words, "<user>who</s><assistant>", "Eva")]
    sums = [brute(before, after, tokens, first) for tokens, first, _ in chats]
    counts = [len(tokens) - first for tokens, first, _ in chats]
    close(found["rows.jsonl"].loss_after, ratio([own[1] for own in sums], counts))
    assert found["rows.jsonl"].bytes == 8
    parts = [found[kind] for kind in ("short", "long", "rows.jsonl")]
    assert found["mean of kinds"].change.value == pytest.approx(sum(row.change.value for row in parts) / 3)
    assert found["mean of kinds"].change.error is None and found["mean of kinds"].tokens == sum(r.tokens for r in parts)


def test_kinds_weigh_alike_in_their_mean(folders):
    texts = {"a": TEXTS[:3], "b": TEXTS[2:]}
    rows = forgetting(folders / "before", folders / "after", texts, **EXACT).rows
    assert rows[2].kl.value == pytest.approx((rows[0].kl.value + rows[1].kl.value) / 2)
    assert rows[2].kl.error == pytest.approx(math.hypot(rows[0].kl.error, rows[1].kl.error) / 2)


def test_other_tokens_are_compared_by_the_byte(folders, tmp_path, texts):
    other = tokenizer(vocabulary=260)
    after = llama(vocabulary=260, seed=3)
    saved(tmp_path / "other", after, other)
    report = forgetting(folders / "before", tmp_path / "other", texts, own_text=True, pieces=3, length=10, **EXACT)
    row, own = report.rows
    assert row.kl is None and row.change is None and "reads other tokens" in str(report)
    tokens = [[0, *other(text)["input_ids"]] for text in TEXTS]
    losses = [brute(after, after, own)[0] for own in tokens]
    assert row.tokens_after == sum(len(own) - 1 for own in tokens) != row.tokens
    close(row.bits_after, ratio(losses, [math.log(2) * len(text.encode()) for text in TEXTS]))
    close(row.loss_after, ratio(losses, [len(own) - 1 for own in tokens]))
    assert own.kl is None and own.bits_change.value == pytest.approx(own.bits_after.value - own.bits_before.value)


def test_more_logits_than_before_have_no_divergence(folders, tmp_path, texts):
    after = moved(llama())
    after.resize_token_embeddings(288)
    saved(tmp_path / "padded", after, tokenizer(template=TEMPLATE))
    report = forgetting(folders / "before", tmp_path / "padded", texts, **EXACT)
    assert report.rows[0].kl is None and report.rows[0].change is not None
    assert "logits of padded are over 288 tokens, those of before over 280" in report.notes[0]


def test_the_model_before_reads_a_text_once_for_several_models(texts, monkeypatch):
    padded = moved(llama(), seed=3)
    padded.resize_token_embeddings(288)
    after = {"near": moved(llama()), "far": moved(llama(), 0.2), "padded": padded}
    before, words, passes = llama(), tokenizer(), []
    own = anchorhold.write_text(before, 3, 10, tokenizer=words)
    before.register_forward_hook(lambda *_: passes.append(1))

    def measured(**models):
        """Return the rows of some models, and how often the model before was called."""
        passes.clear()
        rows = forgetting(before, models, texts, tokenizer=words, own_text=own, **EXACT).rows
        return rows, len(passes)

    alone = [measured(**{name: model}) for name, model in after.items()]
    together, called = measured(**after)
    assert together == tuple(row for rows, _ in alone for row in rows)
    assert called == alone[0][1]
    # What has no room is read again, and says the same.
    monkeypatch.setattr(scores, "_KEPT_SHARE", 0)
    again, called_again = measured(**after)
    assert again == together and called_again > called


def test_an_adapter_is_the_weights_that_it_stands_for(folders, tmp_path, texts):
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    moved(adapted, 0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "somebody/something"
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    again = peft.PeftModel.from_pretrained(llama(), tmp_path / "adapter")
    again.merge_and_unload().save_pretrained(tmp_path / "merged")
    folder, merged = (
        forgetting(folders / "before", tmp_path / name, texts, **EXACT).rows[0] for name in ("adapter", "merged")
    )
    module = forgetting(
        folders / "before", peft.PeftModel.from_pretrained(llama(), tmp_path / "adapter").double(), texts, **EXACT
    ).rows[0]
    assert folder.kl.value == pytest.approx(merged.kl.value, rel=1e-5) and folder.kl.value > 1e-4
    assert module.kl.value == pytest.approx(folder.kl.value, rel=1e-12)
    with pytest.raises(ConfigurationError, match=r"adapter of 'somebody/something', which is no folder here.*--base"):
        forgetting(tmp_path / "adapter", tmp_path / "merged", texts)
    back = forgetting(
        tmp_path / "adapter", tmp_path / "merged", texts, base=folders / "before", tokenizer=tokenizer(), **EXACT
    )
    assert back.rows[0].kl.value < 1e-9


def test_own_text_is_scored_as_it_was_written(folders, tmp_path):
    report = forgetting(folders / "before", folders / "after", own_text=tmp_path / "own", pieces=6, length=12, **EXACT)
    text = OwnText.load(tmp_path / "own", tokenizer())
    before, after = llama(), moved(llama())
    sums = [brute(before, after, piece.tokens.tolist(), piece.begun) for piece in text.pieces]
    counts = [len(piece.written) for piece in text.pieces]
    (row,) = report.rows
    assert (row.part, row.kind, row.documents, row.tokens) == ("own text", "own text", 6, sum(counts))
    close(row.kl, ratio([own[2] for own in sums], counts))
    close(row.change, ratio([own[1] - own[0] for own in sums], counts))
    sizes = [len(written.encode()) for written in text.written_texts]
    close(row.bits_before, ratio([own[0] for own in sums], [math.log(2) * size for size in sizes]))
    assert report.row() is row
    for given in (tmp_path / "own", text):
        again = forgetting(folders / "before", folders / "after", own_text=given, **EXACT)
        assert again.rows == report.rows
    strangers = copy.deepcopy(text)
    strangers.pieces[0].tokens[0] = 1000
    with pytest.raises(DataError, match=r"piece 0 has the token 1000, and before knows 280: it is the text of another"):
        forgetting(folders / "before", folders / "after", own_text=strangers)


def test_own_text_of_another_size_is_refused(folders, tmp_path):
    models, there = (folders / "before", folders / "after"), tmp_path / "own"
    first = forgetting(*models, own_text=there, pieces=6, length=12, **EXACT)
    assert forgetting(*models, own_text=there, pieces=6, length=12, **EXACT).rows == first.rows
    longest = max(len(piece.written) for piece in OwnText.load(there).pieces)
    for given, where in ((there, f"The own text in '{there}'"), (OwnText.load(there), "The own text")):
        for asked in (4, 16):
            with pytest.raises(ConfigurationError, match=f"^{where} has 6 pieces, and pieces={asked}, --pieces in a"):
                forgetting(*models, own_text=given, pieces=asked, **EXACT)
        with pytest.raises(ConfigurationError, match=f"^{where} has pieces of {longest} tokens, and length=3, "):
            forgetting(*models, own_text=given, length=3, **EXACT)


def test_the_own_text_of_another_model_is_refused(folders, tmp_path):
    forgetting(folders / "before", folders / "after", own_text=tmp_path / "own", pieces=6, length=12, **EXACT)
    with pytest.raises(StateError, match=r"The own text in '.*own' was not written by this model .* wrote, or another"):
        forgetting(folders / "after", folders / "before", own_text=tmp_path / "own", **EXACT)
    text = OwnText.load(tmp_path / "own", tokenizer())
    with pytest.raises(StateError, match=r"The own text was not written by this model as it is now"):
        forgetting(folders / "after", folders / "before", own_text=text, **EXACT)


def test_own_text_is_not_written_among_other_files(folders, texts):
    there = sorted(texts.iterdir())
    with pytest.raises(ConfigurationError, match=r"has '0.txt' in it, .* text of your own is text=, --text"):
        forgetting(folders / "before", folders / "after", own_text=texts, **EXACT)
    assert sorted(texts.iterdir()) == there


def test_own_text_that_was_stopped_goes_on(folders, tmp_path):
    def stop(what, done, wanted):
        raise KeyboardInterrupt

    pair = folders / "before", folders / "after"
    with pytest.raises(KeyboardInterrupt):
        forgetting(*pair, own_text=tmp_path / "own", pieces=40, length=12, progress=stop, **EXACT)
    assert 0 < len(list((tmp_path / "own").glob("pieces-*"))) < 2
    again = forgetting(*pair, own_text=tmp_path / "own", pieces=40, length=12, **EXACT)
    assert again.rows[0].documents == 40
    assert again.rows == forgetting(*pair, own_text=True, pieces=40, length=12, **EXACT).rows


def test_modules_are_left_as_they_were(texts):
    before, after = llama().train(), moved(llama()).train()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    report = forgetting(before, {"mine": after}, texts, tokenizer=tokenizer())
    assert torch.equal(torch.rand(1), expected)
    assert before.training and after.training and all(p.requires_grad for p in before.parameters())
    assert (report.before, report.after) == ("before", ("mine",))
    with pytest.raises(ConfigurationError, match="are the same module"):
        forgetting(before, before, texts, tokenizer=tokenizer())
    with pytest.raises(ConfigurationError, match="There is no tokenizer of before"):
        forgetting(before, after, texts)


def test_the_frontier(folders, tmp_path):
    words = tokenizer()
    for name, size in (("near", 0.01), ("far", 0.1), ("farther", 0.3)):
        saved(tmp_path / name, moved(llama(), size), words)
    after = [tmp_path / name for name in ("near", "far", "farther")]
    report = forgetting(folders / "before", after, {"old": TEXTS[:3]}, new={"new": TEXTS[3:]}, **EXACT)
    points = {
        row.model: (-new.change.value, row.kl.value)
        for row, new in zip(report.rows[::2], report.rows[1::2], strict=True)
    }
    assert report.points() == points
    beaten = {
        name for name, (gained, lost) in points.items()
        for other, (more, less) in points.items() if other != name and more >= gained and less <= lost
    }  # fmt: skip
    assert set(report.frontier) == points.keys() - beaten and "near" in report.frontier
    document = json.loads(report.to_json())
    assert document["frontier"] == list(report.frontier) and len(document["rows"]) == 6
    assert document["rows"][0]["kl"]["value"] == report.rows[0].kl.value
    assert "On the frontier" in str(report) and forgetting(folders / "before", after[0], {"a": ["b"]}).frontier == ()


def test_an_interruption_keeps_what_was_measured(folders, texts):
    def progress(what, done, wanted):
        if what == "after: second" and done:
            raise KeyboardInterrupt

    with pytest.raises(ForgettingInterrupted) as caught:
        forgetting(folders / "before", folders / "after", {"first": TEXTS, "second": TEXTS}, progress=progress)
    report = caught.value.report
    assert [row.kind for row in report.rows] == ["first"] and not report.complete
    assert "Interrupted. Measured were after: first; the rest is missing." in str(report)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", r"a.txt is empty, and 'a.txt' has no other text: there is nothing to score"),
        ("a.txt", b"abc\0def", r"binary file: byte 3 \(counted from 0\) is 0x00"),
        ("a.txt", b"\xef\xbb\xbfGr\xfc\xdfe", r"not UTF-8: byte 5 \(counted from 0\) is 0xfc.*iconv"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}', r"line 2: the keys are txt, which is nothing that can be scored"),
        ("a.jsonl", b'{"text": "a", "prompt": "b", "completion": "c"}', r"line 1: .* more than one of what can"),
        ("a.jsonl", b'\n{"text": 3}', r"line 2: 'text' is a number; expected a text"),
        ("a.jsonl", b"[1]", r"line 1: a list; expected an object with"),
        ("a.jsonl", b'{"text": "a"', r"line 1: no JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"line 1: 'text' has half of a character"),
        ("a.jsonl", b'{"messages": []}', r"line 1: messages is a list; expected a list of"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}', r"the last message is of role 'user'"),
        ("a.jsonl", b'{"prompt": "a", "completion": ""}', r"line 1 is empty"),
    ],
)
def test_texts_that_cannot_be_scored(folders, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        forgetting(folders / "before", folders / "after", tmp_path / name)


def test_a_byte_order_mark_is_no_text(folders, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe")
    (tmp_path / "b.txt").write_bytes(b"the")
    one, other, _ = forgetting(
        folders / "before", folders / "after", [tmp_path / "a.txt", tmp_path / "b.txt"], **EXACT
    ).rows
    assert one.bytes == 3 and one.kl == other.kl


def test_what_else_is_refused(folders, tmp_path, texts):
    before, after = folders / "before", folders / "after"
    cases = [
        (("gpt2", after, texts), {}, ConfigurationError, "'gpt2' is no folder here, and nothing is fetched"),
        ((folders, after, texts), {}, ConfigurationError, "has neither config.json nor .*Did you mean '.*/after'"),
        ((before / "config.json", after, texts), {}, ConfigurationError, "is a file; expected a folder"),
        ((before, [], texts), {}, ConfigurationError, "after is empty"),
        ((before, [after, after], texts), {}, ConfigurationError, "names a model twice"),
        ((before, 3, texts), {}, TypeError, "not iterable"),
        ((before, [3], texts), {}, ConfigurationError, "is of type int; expected a causal language model"),
        ((before, after, tmp_path / "none.txt"), {}, DataError, "There is no file or folder .*none.txt"),
        ((before, after, texts), {"context": 17}, ConfigurationError, "context=17: before and after read 16 tokens"),
        ((before, after, texts), {"context": 1}, ConfigurationError, "context=1: expected a whole number, 2 or more"),
        ((before, after, texts), {"start": 280}, ConfigurationError, "start 280: expected the number of a token"),
        ((before, after, texts), {"device": "gpu"}, ConfigurationError, "device='gpu': expected cpu"),
        ((before, after, texts), {"dtype": "float32"}, ConfigurationError, "dtype='float32': expected a floating"),
        (
            (before, after, {"a": "text"}),
            {},
            ConfigurationError,
            r"text\['a'\] is of type str; expected a list of texts",
        ),
        ((before, after), {"own_text": False}, ConfigurationError, "Nothing to measure on"),
    ]
    for arguments, settings, kind, said in cases:
        with pytest.raises(kind, match=said):
            forgetting(*arguments, **settings)
    with pytest.warns(UserWarning, match="is both before and after"):
        assert forgetting(before, before, texts, **EXACT).rows[0].kl.value == 0


def test_models_that_are_not_whole(folders, tmp_path, texts):
    words = tokenizer()
    model = llama()
    saved(tmp_path / "thick", model, words)
    config = json.loads((tmp_path / "thick" / "config.json").read_text())
    (tmp_path / "thick" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"is not whole: 9 of its weights are missing, such as model.layers.2"):
        forgetting(folders / "before", tmp_path / "thick", texts)
    (tmp_path / "thick" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        forgetting(folders / "before", tmp_path / "thick", texts)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = torch.nan
    saved(tmp_path / "diverged", model, words)
    with pytest.raises(NotFiniteError, match=r"loss of diverged on .* is nan"):
        forgetting(folders / "before", tmp_path / "diverged", texts)
    both = forgetting(folders / "before", [folders / "after", tmp_path / "diverged"], texts)
    assert {row.model for row in both.rows} == {"after"} and not both.complete
    assert "diverged was not measured whole. The loss of diverged on" in str(both)
    torch.manual_seed(0)
    masked = BertLMHeadModel(
        BertConfig(vocab_size=280, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    saved(tmp_path / "masked", masked, words)
    with pytest.raises(ModelError, match="looks ahead"):
        forgetting(folders / "before", tmp_path / "masked", texts)
    saved(tmp_path / "plain", llama(), words)
    chat = [{"messages": [{"role": "assistant", "content": "a"}]}]
    with pytest.raises(ConfigurationError, match="chat template cannot be applied"):
        forgetting(tmp_path / "plain", folders / "after", {"chats": chat})


def test_a_tokenizer_of_another_model_is_told(folders, tmp_path):
    saved(tmp_path / "small", llama(vocabulary=262), tokenizer())
    with pytest.raises(ConfigurationError, match=r"the tokenizer gives the token \d+, and the model knows 262"):
        forgetting(tmp_path / "small", folders / "after", {"a": [WORDS]})


def test_it_is_a_name_of_the_library():
    assert anchorhold.forgetting is forgetting
