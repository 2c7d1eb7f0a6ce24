"""What is written is a draw from the model, whoever is asked and however many pieces are written at once."""

import itertools

import peft
import pytest
import torch
from torch import nn
from transformers import BloomConfig, BloomForCausalLM, MistralConfig, MistralForCausalLM

import anchorhold
from tests.integrations import tiny
from tests.own_text.writers import TOKENS, Chain, Recurrent, same


def sliding():
    """Attention to the last four tokens alone, and a cache that forgets the others."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=7, **sizes, num_key_value_heads=1, sliding_window=4, max_position_embeddings=16)
    config.bos_token_id, config.eos_token_id = 1, 2
    return MistralForCausalLM(config)


def by_distance():
    """No positions, but attention that falls with the distance."""
    torch.manual_seed(0)
    return BloomForCausalLM(
        BloomConfig(vocab_size=7, hidden_size=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    )


MODELS = {"gpt2": tiny.gpt2, "llama": tiny.llama, "mistral": sliding, "bloom": by_distance}


def test_pieces_are_draws_from_the_model():
    """All 216 texts of three tokens, each as often as its probability says."""
    model, pieces = Chain(), 20_000
    text = anchorhold.write_text(model, pieces, 3, start=2, batch_size=pieces)
    q = torch.softmax(model.table, -1).detach()
    seen = torch.stack([piece.written for piece in text.pieces])
    counts = torch.zeros(TOKENS, TOKENS, TOKENS, dtype=torch.float64)
    counts.index_put_(tuple(seen.T), torch.ones(pieces, dtype=torch.float64), accumulate=True)
    expected = pieces * q[2][:, None, None] * q[:, :, None] * q[None]
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 150 < chi_square < 290  # 215 ± 21; it is always the same, since the seed is


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.5, 0, 1.0), (1.0, 2, 1.0), (1.0, 0, 0.7)])
def test_settings_of_the_draw_are_followed(temperature, top_k, top_p):
    model = Chain()
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    text = anchorhold.write_text(model, 4000, 1, start=0, batch_size=4000, **options)
    seen = torch.cat([piece.written for piece in text.pieces]).bincount(minlength=TOKENS).double()
    q = anchorhold.own_text.next_tokens.Choice(temperature, top_k, top_p).probabilities(model.table[:1].detach())[0]
    assert bool((seen[q == 0] == 0).all())
    chi_square = float(((seen - 4000 * q) ** 2 / (4000 * q))[q > 0].sum())
    assert chi_square < 20.5


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_cache_changes_nothing(make):
    model = make().double()
    calls = []
    model.register_forward_pre_hook(lambda _, args, given: calls.append(given["input_ids"].shape[1]), with_kwargs=True)
    cached = anchorhold.write_text(model, 12, 10, keep_top=3)
    with_cache = len(calls), sum(calls)
    calls.clear()
    assert same(cached, anchorhold.write_text(model, 12, 10, keep_top=3, cache=False))
    assert sum(calls) > 1.5 * with_cache[1]  # so the first did use it


@pytest.mark.parametrize("make", [*MODELS.values(), Recurrent], ids=[*MODELS, "recurrent"])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_a_piece_depends_on_no_other(make, batch_size):
    model = make().double()
    prompts = [[3], [3, 4, 5], [4, 4], [5, 3, 3, 4, 5]]
    whole = anchorhold.write_text(model, 14, 8, prompts=prompts, end=2, batch_size=7)
    other = anchorhold.write_text(model, 11, 8, prompts=prompts, end=2, batch_size=batch_size)
    assert same(anchorhold.OwnText(whole.pieces[:11]), other)
    assert [piece.begun for piece in other.pieces[:4]] == [1, 3, 2, 5]
    for piece in whole.pieces:
        assert piece.tokens[: piece.begun].tolist() == prompts[piece.number % 4]


def test_what_is_kept_is_what_the_model_says_of_the_text():
    model = tiny.gpt2().double()
    text = anchorhold.write_text(model, 6, 10, prompts=[[3, 4], [5]], temperature=0.7, top_p=0.9, keep_top=4)
    model.eval()
    for piece in text.pieces:
        log_q = model(input_ids=piece.tokens[None]).logits[0, piece.begun - 1 : -1].log_softmax(-1).detach()
        own = log_q.gather(-1, piece.written[:, None]).squeeze(-1)
        torch.testing.assert_close(piece.log_probabilities.double(), own, rtol=0, atol=1e-6)
        values, tokens = log_q.topk(4)
        torch.testing.assert_close(piece.top_log_probabilities.double(), values, rtol=0, atol=1e-6)
        assert torch.equal(piece.top_tokens, tokens)


def test_seeds_differ_and_pieces_do():
    model = Recurrent()
    one, again, other = (anchorhold.write_text(model, 20, 12, start=0, seed=seed) for seed in (3, 3, 4))
    assert same(one, again)
    written = {tuple(piece.tokens.tolist()) for text in (one, other) for piece in text.pieces}
    assert len(written) == 40


@pytest.mark.filterwarnings("ignore:.*pieces are empty")
def test_pieces_end_with_the_end_token_and_only_there():
    text = anchorhold.write_text(tiny.gpt2(), 40, 12)  # its config names 1 as the beginning and 2 as the end
    for piece in text.pieces:
        ends = (piece.written == 2).nonzero().flatten().tolist()
        assert ends == [len(piece.written) - 1] if len(piece.written) < 12 else ends in ([], [11])
        assert piece.tokens[0] == 1 and piece.begun == 1
    assert {len(piece.written) for piece in text.pieces} > {1, 12}
    whole = anchorhold.write_text(tiny.gpt2(), 40, 12, end=None)
    assert {len(piece.written) for piece in whole.pieces} == {12}
    several = anchorhold.write_text(tiny.gpt2(), 40, 12, end=[2, 5])
    assert not any(bool(torch.isin(piece.written[:-1], torch.tensor([2, 5])).any()) for piece in several.pieces)


def test_an_end_token_within_a_prompt_ends_nothing():
    text = anchorhold.write_text(tiny.gpt2(), prompts=[[2, 3, 2], [2]], length=4)
    assert all(len(piece.written) >= 1 for piece in text.pieces) and len(text) == 2


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = nn.ModuleDict({"all": Recurrent().train(training)})["all"]
    model.drop.train(not training)
    modes = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    text = anchorhold.write_text(model, 6, 5, start=1)
    assert torch.equal(torch.rand(3), expected)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(tensor.requires_grad for piece in text.pieces for tensor in (piece.tokens, piece.log_probabilities))
    assert same(text, anchorhold.write_text(model.eval(), 6, 5, start=1))  # so there was no dropout


def test_the_mode_is_put_back_after_an_error():
    model = Chain().train()
    with pytest.raises(anchorhold.errors.ConfigurationError):
        anchorhold.write_text(model, 3, 3, start=99)
    assert model.training


def test_adapters_write_as_the_model_is_now():
    model = peft.get_peft_model(tiny.gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    model = model.double()
    before = anchorhold.write_text(model, 12, 10)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=3.0, generator=torch.Generator().manual_seed(0))
    adapted = anchorhold.write_text(model, 12, 10)
    assert same(adapted, anchorhold.write_text(model, 12, 10, cache=False))
    assert any(not torch.equal(a.tokens, b.tokens) for a, b in zip(before.pieces, adapted.pieces, strict=True))
    with model.disable_adapter():
        assert same(before, anchorhold.write_text(model, 12, 10))


def test_a_learned_prompt_is_read_and_its_cache_is_not_used():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny.gpt2().double(), config).double()
    with pytest.warns(anchorhold.AnchorholdWarning, match="writes without a cache"):
        text = anchorhold.write_text(model, 4, 6)
    assert same(text, anchorhold.write_text(model, 4, 6, cache=False))


def test_a_model_that_is_part_of_a_module_writes():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.language = tiny.gpt2().double()

        def forward(self, input_ids, attention_mask=None):
            return self.language(input_ids=input_ids, attention_mask=attention_mask).logits

    assert same(anchorhold.write_text(Around(), 4, 6), anchorhold.write_text(tiny.gpt2().double(), 4, 6))


def test_a_model_can_be_called_in_another_way():
    class Batched(nn.Module):
        def __init__(self):
            super().__init__()
            self.chain = Chain()

        def forward(self, batch):
            return {"scores": self.chain(batch["text"])}

    def forward(model, tokens):
        return model({"text": tokens})["scores"]

    assert same(
        anchorhold.write_text(Batched(), 9, 5, start=1, forward=forward), anchorhold.write_text(Chain(), 9, 5, start=1)
    )


def test_progress_is_told_after_each_batch():
    told = []
    anchorhold.write_text(
        Chain(), 7, 2, start=0, batch_size=3, progress=lambda done, wanted: told.append((done, wanted))
    )
    assert told == [(3, 7), (6, 7), (7, 7)]


def test_prompts_of_similar_length_are_written_side_by_side():
    model = Chain()
    prompts = [[1] * (1 + 9 * (number % 2)) for number in range(8)]
    anchorhold.write_text(model, length=2, prompts=prompts, batch_size=4)
    writing = [shape for shape in model.calls if shape[0] == 4]
    assert writing == [(4, 1), (4, 2), (4, 10), (4, 11)]


def test_as_many_pieces_as_prompts_unless_said():
    prompts = [[1], [2], [3]]
    assert len(anchorhold.write_text(Chain(), length=2, prompts=prompts)) == 3
    more = anchorhold.write_text(Chain(), 7, 2, prompts=prompts)
    assert [piece.tokens[0].item() for piece in more.pieces] == [1, 2, 3, 1, 2, 3, 1]
    assert len({tuple(piece.tokens.tolist()) for piece in more.pieces}) > 3  # each with numbers of its own


def test_nothing_is_read_twice_with_a_cache():
    model = tiny.llama().double()
    read = []
    model.register_forward_pre_hook(
        lambda _, args, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    anchorhold.write_text(model, 3, 6, prompts=[[3, 4, 5, 6]], end=None)
    writing = [shape for shape in read if shape[0] == 3]
    assert writing == [(3, 4)] + [(3, 1)] * 5


def test_every_text_of_two_tokens_has_its_log_probability():
    model = Chain()
    log_q = model.table.log_softmax(-1).detach()
    text = anchorhold.write_text(model, 300, 2, start=4)
    for first, second in itertools.product(range(TOKENS), repeat=2):
        for piece in text.pieces:
            if piece.written.tolist() == [first, second]:
                expected = torch.stack([log_q[4, first], log_q[first, second]]).float()
                torch.testing.assert_close(piece.log_probabilities, expected)


def test_many_empty_pieces_are_told_of():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3, 8), nn.Linear(8, 3))
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"of 64 pieces are empty: .*start= and end="):
        written = anchorhold.write_text(model, 64, 6, start=0, end=1)
    assert written.empty > 6
