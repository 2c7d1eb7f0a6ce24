"""Another's language model goes through the study of recipes: its tokens, own text, an adapter, and what is told."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.language import __main__ as command
from benchmarks.language import corpus, pretrained, recipes, tokens
from benchmarks.language.lora import Adapted, adapt

TEXTS = {
    "english": "The quick brown fox jumps over the lazy dog, and nobody minds.\n",
    "german": "Der schnelle Fuchs springt über den faulen Hund, und niemand grämt sich.\n",
}


def of_bytes(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.fixture(scope="module")
def given():
    return corpus.Corpus({(name, part): of_bytes(text * 60) for name, text in TEXTS.items() for part in corpus.PARTS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as ``save_pretrained`` leaves it, with weights that its embedding and its head have in common."""
    folder = tmp_path_factory.mktemp("models") / "small-llama"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS.values(), trainer)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_tokens_have_the_models_numbers_and_stand_for_all_bytes(given, folder):
    tokenizer = pretrained.tokenizer_of(str(folder))
    found = tokens.encoded_for(given, tokenizer)
    for (name, part), text in found.texts.items():
        assert int(found.lengths[text].sum()) == len(given.of(name, part))
        assert tokenizer.decode(text.tolist()) == TEXTS[name] * 60
    assert tokenizer.decode([pretrained.line_end(str(folder))]) == "\n"


def test_it_is_called_as_the_others_are_and_each_linear_layer_is_adapted(folder):
    model, plain = pretrained.load(str(folder)), LlamaForCausalLM.from_pretrained(folder)
    text = torch.randint(0, 200, (2, 7))
    assert torch.equal(model(text), plain(input_ids=text).logits)
    linear = sum(isinstance(layer, torch.nn.Linear) for layer in plain.model.modules())
    adapt(model, 2, torch.Generator().manual_seed(0))
    assert sum(isinstance(layer, Adapted) for layer in model.modules()) == linear == 14
    torch.testing.assert_close(model(text), plain(input_ids=text).logits)  # as long as B is 0
    assert {name.rpartition(".")[2] for name, p in model.named_parameters() if p.requires_grad} == {"lora_a", "lora_b"}


@pytest.mark.parametrize("adapter", [False, True])
def test_the_command_teaches_it_german(adapter, given, folder, tmp_path, capsys):
    corpus.write(tmp_path / "bytes.npz", given)
    command.main(["tokens", str(tmp_path / "bytes.npz"), str(tmp_path / "tokens.npz"), "--pretrained", str(folder)])
    asked = ["Kronecker, merged weights"] if adapter else ["own text, distilled, and rotated by it", "English"]
    where = ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    flags = ["--rehearse", "--pretrained", str(folder), *(["--adapter"] if adapter else []), "--only", *asked]
    command.main(["recipes", str(tmp_path / "tokens.npz"), *where, *flags])
    lines = tmp_path / ("adapter-recipes-small-llama.jsonl" if adapter else "recipes-small-llama.jsonl")
    looked = recipes.read(lines)
    assert {found.trial.recipe for found in looked} == {"fine-tuning", *asked}
    assert all(list(found.before) == ["english", "german"] for found in looked)
    assert len({found.network for found in looked}) == 1
    page = lines.with_suffix(".md").read_text()
    assert "English and then German" in page and "of the corpus; " in page and "--pretrained small-llama" in page
    assert "German -" in capsys.readouterr().out  # it learns
    command.main(["recipes", str(tmp_path / "tokens.npz"), *where, *flags])
    assert len(lines.read_text().splitlines()) == len(looked)  # nothing twice
    command.main(["recipes", str(tmp_path / "tokens.npz"), *where, *flags, "--seeds", "7"])
    assert len({found.network for found in recipes.read(lines)}) == 2  # which the batches of a seed tell apart


def test_a_folder_without_a_model_is_told_of(tmp_path, given):
    with pytest.raises(SystemExit, match="no tokenizer in"):
        pretrained.tokenizer_of(str(tmp_path))
    with pytest.raises(SystemExit, match="no model in"):
        pretrained.load(str(tmp_path))
    words = Tokenizer(models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(SystemExit, match="byte-level"):
        tokens.encoded_for(given, words)
