"""Another's language model goes through the study of recipes: its tokens, own text, an adapter, and what is told."""

import json
import math
from dataclasses import replace

import gguf
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from anchorhold import OwnText
from benchmarks.language import __main__ as command
from benchmarks.language import corpus, pretrained, recipes, tokens
from benchmarks.language.english import learn_english
from benchmarks.language.lora import Adapted, adapt
from benchmarks.language.settings import PRETRAINED, REHEARSAL
from benchmarks.language.training import Device

TEXTS = {
    "english": "The quick brown fox jumps over the lazy dog, and nobody minds.\n",
    "german": "Der schnelle Fuchs springt über den faulen Hund, und niemand grämt sich.\n",
    "python": "def fox(dog: str) -> bool:\n    return len(dog) < 3  # lazy\n",
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


@pytest.mark.nightly
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
    assert all(list(found.before) == ["own text", "english", "python", "german"] for found in looked)
    assert len({found.network for found in looked}) == 1
    page = lines.with_suffix(".md").read_text()
    told = "English and then German", "of the corpus; ", "--pretrained small-llama", "KL(before ‖ after)"
    assert all(words in page for words in (*told, "Own text lost in bits a byte"))
    assert "| Own text lost | English lost | Python lost | seeds |" in page
    assert "German -" in capsys.readouterr().out  # it learns
    command.main(["recipes", str(tmp_path / "tokens.npz"), *where, *flags])
    assert len(lines.read_text().splitlines()) == len(looked)  # nothing twice
    command.main(["recipes", str(tmp_path / "tokens.npz"), *where, *flags, "--seeds", "7"])
    assert len({found.network for found in recipes.read(lines)}) == 2  # which the batches of a seed tell apart


def test_what_is_lost_is_told_of_own_text_that_nothing_learns_from(given, folder, tmp_path):
    encoded = tokens.encoded_for(given, pretrained.tokenizer_of(str(folder)))
    own = {"pretrained": str(folder), "vocabulary": encoded.vocabulary, "start": pretrained.line_end(str(folder))}
    settings = replace(REHEARSAL, **own, lesson="german", read=PRETRAINED.read, compared={"full": ()})
    cpu = Device(torch.device("cpu"))
    learn_english(settings, encoded, cpu, 3, tmp_path)
    kitchen = recipes.Kitchen(settings, encoded, cpu, 3, tmp_path)
    read, kept = OwnText.load(tmp_path / "own-read"), kitchen.pairs("own", 64)
    assert len(read) == settings.windows
    kept_rows = {tuple(row.tolist()) for tokens_, _ in kept for row in tokens_}
    assert not kept_rows & {tuple(piece.tokens[:-1].tolist()) for piece in read.pieces}
    for half, bits in zip((read.pieces[:8], read.pieces[8:]), kitchen.before["own text"], strict=True):
        nats = -sum(float(piece.log_probabilities.sum()) for piece in half)
        length = sum(int(encoded.lengths[piece.written].sum()) for piece in half)
        assert bits == pytest.approx(nats / math.log(2) / length, rel=1e-4)


def test_a_corpus_without_a_text_is_told_of(given):
    with pytest.raises(SystemExit, match=r"The corpus has no c\. One with English, Python, German and C is made by"):
        given.of("c", "train")


def test_a_folder_without_a_model_is_told_of(tmp_path, given):
    with pytest.raises(SystemExit, match="no tokenizer in"):
        pretrained.tokenizer_of(str(tmp_path))
    with pytest.raises(SystemExit, match="no model in"):
        pretrained.load(str(tmp_path))
    words = Tokenizer(models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(SystemExit, match="byte-level"):
        tokens.encoded_for(given, words)


def packed(folder, path):
    """Write the model of a folder as a GGUF file, its rotary weights in the order that the format has them in."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    learned = json.loads(tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(learned["vocab"], key=learned["vocab"].get))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in learned["merges"]])
    for number, add in enumerate((writer.add_unk_token_id, writer.add_bos_token_id, writer.add_eos_token_id)):
        add(number)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        turned = tensor
        if "q_proj" in name or "k_proj" in name:
            turned = tensor.unflatten(0, (config.num_attention_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        if name != "lm_head.weight":  # which the embedding is
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), turned.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_unpacked_into_the_model_and_the_tokens_that_it_has(folder, tmp_path, capsys):
    packed(folder, tmp_path / "small.gguf")
    command.main(["unpack", str(tmp_path / "small.gguf"), str(tmp_path / "unpacked")])
    assert capsys.readouterr().out.endswith("unpacked\n")
    found, plain = (LlamaForCausalLM.from_pretrained(each) for each in (tmp_path / "unpacked", folder))
    text = torch.randint(0, 200, (2, 7))
    torch.testing.assert_close(found(input_ids=text).logits, plain(input_ids=text).logits)
    tokenizers = [pretrained.tokenizer_of(str(each)) for each in (tmp_path / "unpacked", folder)]
    one, other = (tokenizer.encode(TEXTS["german"]).ids for tokenizer in tokenizers)
    assert one == other
    with pytest.raises(SystemExit, match=r"no file .*; expected a model in the format GGUF"):
        command.main(["unpack", str(tmp_path / "none.gguf"), str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()


def test_a_short_lesson_is_another_study_and_of_anothers_model(given, folder, tmp_path):
    corpus.write(tmp_path / "bytes.npz", given)
    command.main(["tokens", str(tmp_path / "bytes.npz"), str(tmp_path / "tokens.npz"), "--pretrained", str(folder)])
    where = [str(tmp_path / "tokens.npz"), "--results", str(tmp_path), "--work", str(tmp_path / "work")]
    asked = ["--pretrained", str(folder), "--short", "--adapter", "--rehearse", "--only", "Kronecker, merged weights"]
    command.main(["recipes", *where, *asked])
    page = (tmp_path / "adapter-recipes-small-llama-short.md").read_text()
    assert "--pretrained small-llama --short CORPUS" in page
    with pytest.raises(SystemExit, match="--short is a lesson of another's model; give --pretrained"):
        command.main(["recipes", *where, "--short"])
