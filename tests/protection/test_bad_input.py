"""What cannot be right is refused before anything is written, measured or trained."""

import os

import bitsandbytes
import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from anchorhold import OwnText, protect, write_text
from anchorhold.errors import BatchError, ConfigurationError, DataError, ModelError, StateError, StoreError
from tests.integrations import tiny
from tests.protection import language

# A model of seven tokens writes some texts twice.
pytestmark = pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")

TOKENIZER = tiny.tokenizer()


def refused(error, match, model, *given, **options):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if not tensor.is_meta}
    with pytest.raises(error, match=match):
        protect(model, *given, **{**language.FEW, **options})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items() if name in before)


def test_no_tokenizer():
    refused(ConfigurationError, r"without a tokenizer: LlamaForCausalLM is a language model", language.untrained())
    refused(ConfigurationError, r"which is a name; expected the tokenizer itself", language.untrained(), "gpt2")


def test_a_tokenizer_of_another_model():
    larger = tiny.tokenizer()
    larger.add_tokens(["e", "f"])
    refused(ConfigurationError, r"has 9 tokens, and LlamaForCausalLM knows 7", language.untrained(), larger)
    model = language.untrained()
    model.resize_token_embeddings(20)
    with pytest.warns(UserWarning, match="has 7 tokens, and LlamaForCausalLM knows 20"):
        protect(model, TOKENIZER, **language.FEW)


def test_nothing_scored():
    batch = {"input_ids": language.OLD, "labels": torch.full_like(language.OLD, -100)}
    scored = {"input_ids": language.OLD, "labels": language.OLD}
    refused(BatchError, r"in batch 1 every label is -100", language.untrained(), old_data=[scored, batch] * 4)
    alone = {"input_ids": torch.tensor([[3], [4]] * 4)}
    refused(BatchError, r"in batch 0 every label is -100, or padding", language.untrained(), old_data=[alone])
    labels = torch.full((16,), -100)
    refused(BatchError, r"nothing of it is scored", nn.Linear(4, 3), [(torch.randn(16, 4), labels)])


def test_an_empty_corpus(tmp_path):
    (tmp_path / "empty.txt").touch()
    refused(DataError, r"No text in '.*empty.txt'", language.untrained(), TOKENIZER, old_data=tmp_path / "empty.txt")
    refused(BatchError, r"The old data has no batch", language.untrained(), old_data=[])
    refused(BatchError, r"The old data has no batch", language.untrained(), old_data=iter([]))
    refused(DataError, r"The text given has no pieces", language.untrained(), text=OwnText([]))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "zeros").write_bytes(b"a b\0c")
    for name in ("binary", "zeros"):
        match = rf"'.*{name}' is no text in UTF-8"
        refused(DataError, match, language.untrained(), TOKENIZER, old_data=[tmp_path / name])
    (tmp_path / "chats.jsonl").write_text('{"text": "a b"}\n' * 40)
    refused(
        DataError, "jsonl' is JSON, whose marks", language.untrained(), TOKENIZER, old_data=tmp_path / "chats.jsonl"
    )
    refused(DataError, "cannot be read", language.untrained(), TOKENIZER, old_data=[tmp_path / "absent"])
    refused(ConfigurationError, "no tokenizer to read them with", language.untrained(), old_data=[tmp_path / "zeros"])


def test_text_of_another_model(tmp_path):
    text = write_text(language.taught(), 8, 11, tokenizer=TOKENIZER, store=tmp_path)
    refused(StateError, "was not written by this model as it is now", language.untrained(), text=text)
    refused(StateError, "was not written by this model as it is now", language.untrained(), TOKENIZER, text=tmp_path)
    small = tiny.llama()
    small.resize_token_embeddings(4)
    refused(StateError, "of tokens that it does not know", small, text=text)
    refused(ConfigurationError, r"text=int: expected an OwnText", language.untrained(), text=3)
    file = tmp_path / "own.txt"
    file.write_text("a b")
    refused(ConfigurationError, r"own.txt' is a file; expected the folder", language.untrained(), text=file)


def quantised(layer):
    made = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, bias=False, compute_dtype=torch.float32)
    made.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
    return made.to("cpu")


class NoBackward(torch.autograd.Function):
    """What a kernel for inference alone does."""

    @staticmethod
    def forward(ctx, x, weight):
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("this kernel has no backward pass")


class InferenceLinear(nn.Linear):
    def forward(self, x):
        return NoBackward.apply(x, self.weight)


def test_a_quantised_base_without_an_adapter():
    model = language.untrained()
    for block in model.model.layers:
        block.mlp.up_proj = quantised(block.mlp.up_proj)
    refused(ModelError, r"are quantised \(torch.uint8\), and the model has no adapter", model, TOKENIZER)


def test_a_base_whose_layers_give_no_gradient():
    model = language.untrained()
    for block in model.model.layers:
        linear = InferenceLinear(16, 24, bias=False)
        linear.load_state_dict(block.mlp.up_proj.state_dict())
        block.mlp.up_proj = linear
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    refused(
        ConfigurationError,
        r"cannot be measured: a backward pass fails .*this kernel has no backward pass",
        model,
        TOKENIZER,
    )


def test_a_model_without_weights_or_with_all_of_them_frozen():
    with torch.device("meta"):
        absent = language.untrained()
    refused(ModelError, "are on the meta device, without values", absent, TOKENIZER)
    refused(ModelError, "no parameter with requires_grad=True", language.untrained().requires_grad_(False), TOKENIZER)
    with pytest.raises(ModelError, match=r"of type str; expected a torch\.nn\.Module"):
        protect("gpt2", TOKENIZER)


def test_models_that_do_not_write():
    sizes = {"vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForMaskedLM(BertConfig(**sizes, intermediate_size=8))
    refused(ModelError, "BertForMaskedLM does not write text from left to right", bert, TOKENIZER)
    refused(BatchError, "BertForMaskedLM cannot write its own", bert)
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=7, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )
    refused(ModelError, "T5ForConditionalGeneration does not write text from left to right", t5, TOKENIZER)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    refused(StoreError, "cannot be written to", language.untrained(), TOKENIZER, cache=tmp_path / "cache")


def test_a_cache_that_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    refused(StoreError, "cannot be written to", language.untrained(), TOKENIZER, cache=tmp_path / "file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="Own text is not kept: "):
        guard = protect(language.taught(), TOKENIZER, **{**language.FEW, "cache": "auto"})
    assert guard.plan.folder is None


def test_too_little_memory_or_time():
    match = r"No form fits: rotated would take .*; kronecker would take .*; diagonal would take"
    refused(ConfigurationError, match, language.untrained(), TOKENIZER, memory=1000)
    refused(ConfigurationError, match + ".* to measure, more than", language.untrained(), TOKENIZER, seconds=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tokens": 3}, "tokens=3: expected a whole number of at least 64"),
        ({"share": 1.0}, "share=1: nothing would be left"),
        ({"share": 2}, "share=2"),
        ({"share": 0, "exchange_rate": 0}, "nothing would keep anything"),
        ({"exchange_rate": -1}, "exchange_rate=-1"),
        ({"form": "round"}, "round"),
        ({"strength": 3}, r"no option 'strength'; there are batch_size, cache"),
        ({"text": OwnText([]), "old_data": []}, "text= and old_data="),
        ({"memory": 0}, "memory=0"),
        ({"writing": {"promts": ["a"]}}, r"writing has 'promts'; expected .* prompts, seed"),
        ({"writing": {"length": 3}}, r"writing has 'length'; .* an option of protect\(\) itself"),
        ({"writing": ["a"]}, "writing=list: expected arguments of write_text"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options, match):
    refused(ConfigurationError, match, language.untrained(), TOKENIZER, **options)


def test_old_data_that_the_model_does_not_take():
    match = r"failed on old data of \(14, 5\) \(RuntimeError: .*forward=lambda"
    refused(BatchError, match, nn.Linear(4, 3), [torch.randn(16, 5)])


def test_a_text_that_forward_does_not_take():
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
    text = write_text(model, 16, 5, start=0)
    match = r"failed on old data of \(8, 5\) \(IndexError: .*forward=lambda"
    refused(BatchError, match, model, text=text, forward=lambda model, inputs: model(inputs["input_ids"]))


def test_one_output():
    match = "has one output, and protect.* takes outputs for the logits of classes"
    refused(ConfigurationError, match, nn.Linear(4, 1), [torch.randn(16, 4)])

    def both(model, inputs):
        z = model(inputs)
        return torch.cat([torch.zeros_like(z), z], -1)

    guard = protect(nn.Linear(4, 1), [torch.randn(16, 4)], forward=both, progress=False)
    assert guard.importance["weight"].any()


def test_old_data_given_twice():
    refused(ConfigurationError, "Give one", nn.Linear(4, 3), [torch.randn(8, 4)], old_data=[torch.randn(8, 4)])


def test_adapters_that_cannot_be_merged_are_held_by_their_own_parameters():
    ia3 = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM")
    guard = protect(get_peft_model(language.taught(), ia3), TOKENIZER, **language.FEW)
    assert guard.options.space == "weights" and any("ia3" in name for name in guard.importance)


def test_a_checkpoint_that_is_none(tmp_path):
    with pytest.raises(StateError, match="There is no protection at"):
        protect(language.untrained(), TOKENIZER, resume=tmp_path)
    guard = protect(language.taught(), TOKENIZER, **language.FEW)
    guard.checkpoint(tmp_path)
    (tmp_path / "anchorhold-protection.safetensors").write_bytes(b"cut short")
    with pytest.raises(StateError):
        protect(language.untrained(), TOKENIZER, resume=tmp_path)
