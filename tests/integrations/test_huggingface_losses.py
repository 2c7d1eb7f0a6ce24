"""Importances of transformers against brute force: one sequence, one token, one label at a time."""

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import anchorhold
from anchorhold.engine.conventions.huggingface import has_encoder, text_writer
from tests import oracles
from tests.integrations import tiny

# Llama's norm rounds to float32 inside whatever the model's precision.
CAUSAL = [(tiny.gpt2, 1e-10), (tiny.llama, 1e-5), (lambda: tiny.llama(tie_word_embeddings=True), 1e-5)]


def double(model):
    return model.double().eval()


def masked_text():
    """Padding on the right, padding on the left, and a prompt that does not count."""
    batch = tiny.text()
    ids, mask, labels = batch["input_ids"].clone(), batch["attention_mask"].clone(), batch["labels"].clone()
    mask[1, :2], ids[1, :2], labels[1, :2] = 0, 0, -100
    labels[2, :3] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def logits(model, inputs):
    return model(**inputs).logits


def one_by_one(batch):
    """Each sequence alone, with the label of every position written out from the definition."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    labels = batch.get("labels", batch["input_ids"])
    mask = batch.get("attention_mask", torch.ones_like(labels))
    for n, length in enumerate(mask.sum(1)):
        target = torch.full_like(labels[n], -100)
        for t in range(labels.shape[1] - 1):
            if mask[n, t] and mask[n, t + 1]:
                target[t] = labels[n, t + 1]
        assert length > 1
        yield {key: value[n : n + 1] for key, value in inputs.items()}, target


def assert_agrees(found, expected, tolerance):
    assert found.keys() == expected.keys()
    # A bias of attention's keys moves no output at all: what is found there is rounding, in both.
    nothing = 1e-20 * max(float(value.norm()) for value in expected.values())
    for name, value in found.items():
        gap = float((value - expected[name]).norm())
        assert gap < tolerance * float(expected[name].norm()) + nothing, name


@pytest.mark.parametrize(("build", "tolerance"), CAUSAL)
def test_exact_fisher_of_tokens(build, tolerance):
    model, batch = double(build()), masked_text()
    expected = oracles.importance(
        model, one_by_one(batch), oracles.summed_over_positions(oracles.every_label), torch.square, logits
    )
    collector = anchorhold.Fisher().accumulator(model)
    result = collector.result_of([batch])
    assert result.samples == 3
    assert not result.fallback  # attention, Conv1D, RMSNorm, rotary and tied embeddings all have rules
    assert_agrees(result.values, expected, tolerance)


@pytest.mark.parametrize(
    ("measure", "scores", "phi"),
    [
        (anchorhold.MAS(), oracles.squared_norm, torch.abs),
        (anchorhold.Fisher(labels="true"), oracles.joint_true_label, torch.square),
        (anchorhold.Fisher(positions="separate"), oracles.separately(oracles.every_label), torch.square),
        (anchorhold.AbsoluteFisher(positions="separate"), oracles.separately(oracles.every_label), torch.abs),
    ],
    ids=["MAS", "true", "separate", "AF"],
)
def test_other_measures_of_tokens(measure, scores, phi):
    model, batch = double(tiny.gpt2(layers=1)), masked_text()
    expected = oracles.importance(model, one_by_one(batch), scores, phi, logits)
    assert_agrees(measure.measure(model, [batch]), expected, 1e-10)


def test_the_joint_fisher_is_the_mean_over_every_continuation():
    model = double(tiny.gpt2(vocabulary=5, layers=1))
    batch = tiny.text(rows=2, length=4, vocabulary=5)
    batch["labels"][1, :2] = -100
    expected = oracles.importance(model, one_by_one(batch), oracles.every_joint_label, torch.square, logits)
    assert_agrees(anchorhold.Fisher().measure(model, [batch]), expected, 1e-10)


def test_drawn_labels_have_the_exact_fisher_as_their_mean():
    model, batch = double(tiny.gpt2(layers=1)), masked_text()
    exact = anchorhold.Fisher().measure(model, [batch])
    sampled = anchorhold.Fisher(labels="sampled", draws=4000).measure(model, [batch])
    everything = torch.cat([(sampled[name] - exact[name]).flatten() for name in exact])
    assert everything.norm() < 0.05 * torch.cat([value.flatten() for value in exact.values()]).norm()


def test_true_labels_are_those_of_the_models_own_loss():
    model, batch = double(tiny.gpt2()), tiny.text()
    found = anchorhold.Fisher(labels="true").measure(model, [batch])
    names, parameters = zip(*model.named_parameters(), strict=True)
    totals = [torch.zeros_like(parameter) for parameter in parameters]
    for n in range(3):
        one = {key: value[n : n + 1] for key, value in batch.items()}
        counted = (one["labels"][:, 1:] != -100).sum()
        loss = model(**one).loss * counted  # the model's loss is the mean over its tokens
        for total, gradient in zip(totals, torch.autograd.grad(loss, parameters), strict=True):
            total.add_(gradient.square() / 3)
    assert_agrees(found, dict(zip(names, totals, strict=True)), 1e-6)  # it is worked out in float32


def test_without_labels_the_tokens_are_the_labels():
    model, batch = double(tiny.gpt2(layers=1)), tiny.text()
    alone = {key: value for key, value in batch.items() if key != "labels"}
    for measure in (anchorhold.Fisher(), anchorhold.Fisher(labels="true"), anchorhold.MAS()):
        assert_agrees(measure.measure(model, [alone]), measure.measure(model, [batch]), 1e-12)


def test_padding_makes_no_difference():
    model, batch = double(tiny.gpt2(layers=1)), tiny.text(rows=1)
    short = {key: value[:, :3] for key, value in batch.items()}
    lazy = {**batch, "labels": batch["input_ids"]}  # labels at padded places too, which many scripts leave there
    for measure in (anchorhold.Fisher(), anchorhold.Fisher(labels="true"), anchorhold.MAS()):
        expected = measure.measure(model, [short])
        for padded in (batch, lazy):
            found = measure.measure(model, [padded])
            assert_agrees(found, expected, 1e-10)


def test_pairs_of_inputs_and_targets_are_taken_as_they_are():
    model, batch = double(tiny.gpt2(layers=1)), tiny.text()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    targets = torch.stack([target for _, target in one_by_one(batch)])
    measure = anchorhold.Fisher(labels="true")
    assert_agrees(measure.measure(model, [(inputs, targets)]), measure.measure(model, [batch]), 1e-12)


def test_classification_of_sequences():
    model = double(tiny.gpt2_classifier())
    batch = {**tiny.text(), "labels": torch.tensor([0, 2, 1])}
    samples = [
        ({key: value[n : n + 1] for key, value in batch.items() if key != "labels"}, batch["labels"][n])
        for n in range(3)
    ]
    for labels, scores in (("exact", oracles.every_label), ("true", oracles.true_label)):
        measure = anchorhold.Fisher(labels=labels)
        expected = oracles.importance(model, samples, scores, torch.square, logits)
        found = measure.measure(model, [batch])
        assert_agrees(found, expected, 1e-10)


def test_labels_of_a_tagger_are_not_shifted():
    model, batch = double(tiny.bert_tagger()), tiny.text()
    labels = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    samples = [({key: value[n : n + 1] for key, value in inputs.items()}, labels[n]) for n in range(3)]
    expected = oracles.importance(model, samples, oracles.joint_true_label, torch.square, logits)
    assert_agrees(anchorhold.Fisher(labels="true").measure(model, [{**inputs, "labels": labels}]), expected, 1e-10)


def predicts_next_token(model):
    writer = text_writer(model)
    return writer is not None and not has_encoder(writer)


def test_which_models_shift_their_labels():
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    assert not predicts_next_token(t5)
    assert not predicts_next_token(torch.nn.Linear(2, 2))
    assert not predicts_next_token(tiny.gpt2_classifier())
    assert predicts_next_token(tiny.gpt2())
    assert predicts_next_token(torch.nn.Sequential(tiny.gpt2()))  # as in a module of one's own
    assert not predicts_next_token(torch.nn.Sequential(t5))


def bart(kind=BartForConditionalGeneration, config=BartConfig):
    torch.manual_seed(0)
    sizes = {f"{part}_{what}": value for part in ("encoder", "decoder") for what, value in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 12))}  # fmt: skip
    return kind(config(vocab_size=8, d_model=8, max_position_embeddings=16, forced_eos_token_id=None,
                       decoder_start_token_id=2, **sizes, **tiny.SPECIAL))  # fmt: skip


def t5():
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


def translations():
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(3, 8, (3, 6), generator=generator)
    labels = torch.randint(3, 8, (3, 4), generator=generator)
    labels[0, 3:] = -100
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}


@pytest.mark.parametrize("build", [bart, t5])
def test_the_decoder_reads_what_the_models_own_loss_lets_it_read(build):
    model, batch = double(build()), translations()
    found = anchorhold.Fisher(labels="true").measure(model, [batch])
    assert_agrees(found, gradients_of_own_loss(model, batch), 1e-6)
    given = {**batch, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])}
    assert_agrees(anchorhold.Fisher(labels="true").measure(model, [given]), found, 1e-12)
    pair = {key: value for key, value in batch.items() if key != "labels"}, batch["labels"]
    assert_agrees(anchorhold.Fisher(labels="true").measure(model, [pair]), found, 1e-12)
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))
    guard.consolidate([batch])
    assert_agrees(guard.importance, found, 1e-12)


def gradients_of_own_loss(model, batch, rows=3):
    """The squared gradients of the model's own loss, summed over a sample's labels, and their mean."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    names, parameters = zip(*trained, strict=True)
    totals = [torch.zeros_like(parameter) for parameter in parameters]
    for n in range(rows):
        one = {key: value[n : n + 1] for key, value in batch.items()}
        loss = model(**one).loss * (one["labels"] != -100).sum()
        for total, gradient in zip(totals, torch.autograd.grad(loss, parameters), strict=True):
            total.add_(gradient.square() / rows)
    return dict(zip(names, totals, strict=True))


def whisper():
    torch.manual_seed(0)
    sizes = {f"{part}_{what}": value for part in ("encoder", "decoder") for what, value in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 12))}  # fmt: skip
    sizes |= {"d_model": 8, "num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 8}
    return WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=8, decoder_start_token_id=2, **sizes, **tiny.SPECIAL)
    )


def test_whispers_decoder_reads_its_labels_one_position_later():
    model = double(whisper())
    generator = torch.Generator().manual_seed(0)
    sounds = torch.randn(3, 4, 12, generator=generator, dtype=torch.float64)
    batch = {"input_features": sounds, "labels": translations()["labels"]}
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"))  # of all but the encoder's fixed positions
    guard.consolidate([batch])
    assert_agrees(guard.importance, gradients_of_own_loss(model, batch), 1e-6)  # it is worked out in float32


def test_models_that_do_not_say_what_their_decoder_begins_with():
    model, batch = bart(BlenderbotForConditionalGeneration, BlenderbotConfig), translations()
    expected = gradients_of_own_loss(double(model), batch)
    assert_agrees(anchorhold.Fisher(labels="true").measure(model, [batch]), expected, 1e-6)
    for name in ("decoder_start_token_id", "pad_token_id"):
        model = bart(BlenderbotForConditionalGeneration, BlenderbotConfig)
        vars(model.config)[name] = None  # as configs of other families have it
        with pytest.raises(anchorhold.errors.BatchError, match=f"without decoder_input_ids.*{name}=None.*give both"):
            anchorhold.Fisher().measure(model, [batch])
        given = {**batch, "decoder_input_ids": torch.tensor([[2, 3, 4, 5]] * 3)}
        assert anchorhold.Fisher().measure(model, [given])


class OnBody(torch.nn.Module):
    """A head of one's own on the body of a whole language model, as many scripts have it."""

    def __init__(self, body, classes=3, pooled=False):
        super().__init__()
        self.body, self.pooled = body, pooled
        self.head = torch.nn.Linear(8, classes)

    def forward(self, input_ids, attention_mask=None, **more):
        hidden = self.body(input_ids, attention_mask=attention_mask, output_hidden_states=True, **more)
        states = getattr(hidden, "decoder_hidden_states", None) or hidden.hidden_states
        outputs = self.head(states[-1])
        return outputs[:, -1] if self.pooled else outputs


@pytest.mark.parametrize("classes", [3, 2 * tiny.TOKENS])
def test_labels_of_a_tagger_on_a_language_models_body_are_not_shifted(classes):
    torch.manual_seed(1)
    model, batch = double(OnBody(tiny.gpt2(layers=1), classes)), tiny.text()
    labels = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    samples = [({key: value[n : n + 1] for key, value in inputs.items()}, labels[n]) for n in range(3)]

    def call(model, inputs):
        return model(**inputs)

    measure = anchorhold.Fisher(labels="true")
    expected = oracles.importance(model, samples, oracles.joint_true_label, torch.square, call)
    assert_agrees(measure.measure(model, [{**inputs, "labels": labels}]), expected, 1e-10)
    assert_agrees(measure.measure(model, [(inputs, labels)]), expected, 1e-10)
    guard = anchorhold.Guard(model, measure)
    guard.consolidate([{**inputs, "labels": labels}])
    assert_agrees(guard.importance, expected, 1e-10)
    everywhere = oracles.importance(model, samples, oracles.squared_norm, torch.abs, call)
    assert_agrees(anchorhold.MAS().measure(model, [{**inputs, "labels": labels}]), everywhere, 1e-10)


def test_labels_of_a_classifier_on_a_language_models_body():
    torch.manual_seed(1)
    model, batch = double(OnBody(tiny.gpt2(layers=1), pooled=True)), tiny.text()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    labels = torch.tensor([0, 2, 1])
    samples = [({key: value[n : n + 1] for key, value in inputs.items()}, labels[n]) for n in range(3)]

    def call(model, inputs):
        return model(**inputs)

    for kind, scores in (("exact", oracles.every_label), ("true", oracles.true_label)):
        expected = oracles.importance(model, samples, scores, torch.square, call)
        found = anchorhold.Fisher(labels=kind).measure(model, [{**inputs, "labels": labels}])
        assert_agrees(found, expected, 1e-10)
    assert_agrees(anchorhold.Fisher().measure(model, [inputs]), anchorhold.Fisher().measure(model, [(inputs,)]), 1e-12)


def test_a_module_around_a_language_model_shifts_its_labels():
    class Around(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, **inputs):
            return self.model(**inputs)

    model, batch = double(tiny.gpt2(layers=1)), masked_text()
    unlabelled = {key: value for key, value in batch.items() if key != "labels"}
    for measure in (anchorhold.Fisher(labels="true"), anchorhold.MAS()):
        for given in (batch, unlabelled):
            expected = measure.measure(model, [given])
            for around in (Around(model), torch.compile(model, backend="eager")):
                found = measure.measure(around, [given]).values()
                for value, other in zip(found, expected.values(), strict=True):
                    torch.testing.assert_close(value, other, rtol=1e-12, atol=0.0)


def test_a_model_that_generates_and_was_made_to_give_tags():
    class Tagger(GPT2LMHeadModel):
        def forward(self, input_ids, attention_mask=None):
            hidden = self.transformer(input_ids, attention_mask=attention_mask).last_hidden_state
            return hidden[..., :3]

    model, batch = double(tiny.gpt2(Tagger, layers=1)), tiny.text()
    labels = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    measure = anchorhold.Fisher(labels="true")
    found, expected = (measure.measure(model, [given]) for given in ({**inputs, "labels": labels}, (inputs, labels)))
    assert_agrees(found, expected, 1e-12)


def test_heads_of_ones_own_on_an_encoder_and_decoder():
    torch.manual_seed(1)
    batch = translations()
    classes = {**batch, "labels": torch.tensor([0, 2, 1])}
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    model = double(OnBody(bart(), pooled=True))
    found = anchorhold.Fisher(labels="true").measure(model, [classes])
    pairs = [({key: value[n : n + 1] for key, value in inputs.items()}, classes["labels"][n]) for n in range(3)]
    expected = oracles.importance(model, pairs, oracles.true_label, torch.square, lambda model, inputs: model(**inputs))
    assert_agrees(found, expected, 1e-10)
    tags = {**batch, "labels": batch["input_ids"] % 3}
    tagger = double(OnBody(bart()))
    with pytest.raises(
        anchorhold.errors.BatchError, match=r"not over the tokens .* Give the batch the decoder_input_ids"
    ):
        anchorhold.Fisher(labels="true").measure(tagger, [tags])
    given = {**tags, "decoder_input_ids": batch["input_ids"]}
    pairs = [
        ({key: value[n : n + 1] for key, value in given.items() if key != "labels"}, tags["labels"][n])
        for n in range(3)
    ]
    expected = oracles.importance(
        tagger, pairs, oracles.joint_true_label, torch.square, lambda model, inputs: model(**inputs)
    )
    assert_agrees(anchorhold.Fisher(labels="true").measure(tagger, [given]), expected, 1e-10)


def test_a_module_that_gives_the_decoder_its_inputs_itself():
    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bart()

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids, attention_mask, decoder_input_ids=input_ids[:, :4]).logits

    assert anchorhold.Fisher().measure(Around(), [translations()])


def test_rows_that_are_no_batches_are_refused():
    model, batch = tiny.gpt2(layers=1), tiny.text()
    rows = [{key: value[n] for key, value in batch.items()} for n in range(3)]
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled"))
    for given in (rows, [{"input_ids": row["input_ids"]} for row in rows]):
        with pytest.raises(
            anchorhold.errors.BatchError, match=r"input_ids of shape \(5,\).*DataLoader\(dataset, batch_size"
        ):
            guard.consolidate(given)
    with pytest.raises(anchorhold.errors.BatchError, match=r"labels of shape \(5,\)"):
        guard.consolidate([{"inputs_embeds": torch.randn(5, 8), "labels": rows[0]["labels"]}])
    guard.consolidate(DataLoader(rows, batch_size=2))


def test_every_label_of_a_large_vocabulary_is_refused_before_anything_is_done():
    model = tiny.gpt2(vocabulary=50_257, layers=1)
    passes = []
    model.transformer.h[0].register_full_backward_hook(lambda *_: passes.append(1))
    batch = tiny.text(rows=2)
    for measure in (anchorhold.Fisher(), anchorhold.RootFisher(), anchorhold.Fisher(positions="separate")):
        with pytest.raises(
            anchorhold.errors.ConfigurationError, match=r"takes 251,280 backward passes .*labels='sampled'"
        ):
            measure.measure(model, [batch])
        with pytest.raises(anchorhold.errors.ConfigurationError, match="50,257 labels at 5 positions"):
            measure.measure(model, [{key: value[:1] for key, value in batch.items()}])  # one sample takes another way
    assert not passes
    assert anchorhold.Fisher(labels="sampled").measure(model, [batch])


def test_labels_of_another_length_are_refused():
    model, batch = tiny.gpt2(layers=1), tiny.text()
    with pytest.raises(anchorhold.errors.BatchError, match="one label a token"):
        anchorhold.Fisher().measure(model, [{**batch, "labels": batch["labels"][:, 1:]}])
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with pytest.raises(anchorhold.errors.BatchError, match="one for each position"):
        anchorhold.Fisher().measure(model, [(inputs, batch["labels"][:, 1:])])


def test_a_large_vocabulary_is_gone_through_in_pieces(monkeypatch):
    model, batch = double(tiny.gpt2(layers=1)), masked_text()
    measures = [anchorhold.Fisher(labels="true"), anchorhold.MAS(), anchorhold.MAS(dominant=True), anchorhold.Fisher()]
    whole = [measure.measure(model, [batch]) for measure in measures]
    monkeypatch.setattr("anchorhold.engine.scores.base.PIECE", 2 * 3 * tiny.TOKENS)  # two positions of three samples
    for measure, expected in zip(measures, whole, strict=True):
        assert_agrees(measure.measure(model, [batch]), expected, 1e-13)
    exact = torch.cat([value.flatten() for value in whole[-1].values()])
    drawn = anchorhold.Fisher(labels="sampled", draws=4000).measure(model, [batch])
    assert (torch.cat([value.flatten() for value in drawn.values()]) - exact).norm() < 0.05 * exact.norm()
