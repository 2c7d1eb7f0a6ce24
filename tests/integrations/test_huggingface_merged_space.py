"""PEFT's adapters held by their merged weights: measured, trained, merged, saved, loaded, and stacked."""

import copy
import importlib.util

import pytest
import torch
from peft import IA3Config, LoHaConfig, LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import anchorhold
from tests import helpers
from tests.integrations import tiny
from tests.integrations.test_huggingface import proxy, train

TARGETS = ["q_proj", "down_proj", "embed_tokens"]
DORA = LoraConfig(r=2, use_dora=True, target_modules=["q_proj", "down_proj"])
FORMS = ["diagonal", "rotated", "kronecker"]


def adapted(config=None, **options):
    torch.manual_seed(1)
    config = config or LoraConfig(r=2, target_modules=TARGETS, task_type="CAUSAL_LM", **options)
    return get_peft_model(tiny.llama(), config).double()


def moved(model, seed=0, size=0.2):
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(size * torch.randn_like(p))
    return model


def guarded(model, form="kronecker", **options):
    return helpers.guarded(model, proxy(), anchorhold.Fisher(), 3.0, form=form, space="merged", **options)


def value(guard):
    return float(guard.penalty().detach())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", [None, LoHaConfig(r=2, target_modules=["q_proj"]), DORA])
def test_it_is_the_penalty_of_the_merged_model(form, config):
    model = moved(adapted(config))
    guard = guarded(model, form)
    whole = copy.deepcopy(model).merge_and_unload().requires_grad_(True)
    names = [name.replace("base_model.model.", "").replace(".base_layer", "") for name in guard.importance]
    other = anchorhold.Guard(whole, anchorhold.Fisher(), strength=3.0, form=form, protect=names)
    other.consolidate(proxy())
    moved(model, seed=1)
    weights = copy.deepcopy(model).merge_and_unload().state_dict()
    whole.load_state_dict(weights)
    assert value(guard) == pytest.approx(value(other), rel=1e-8)
    assert value(guard) > 1e-8


@pytest.mark.parametrize("form", FORMS)
def test_while_merged_it_measures_the_same(form):
    model = moved(adapted())
    apart = guarded(model, form).importance
    model.merge_adapter()
    merged = guarded(model, form).importance
    assert all(torch.allclose(merged[name], omega, rtol=1e-6, atol=1e-12) for name, omega in apart.items())


def test_saved_and_loaded_with_peft(tmp_path):
    model = moved(adapted())
    guard = guarded(model)
    moved(model, seed=2)
    guard.save(tmp_path / "guard.safetensors")
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    again = PeftModel.from_pretrained(tiny.llama().double(), tmp_path / "adapter", is_trainable=True).double()
    other = anchorhold.Guard(
        again, anchorhold.Fisher(), strength=3.0, form="kronecker", options=anchorhold.GuardOptions(space="merged")
    )
    other.load(tmp_path / "guard.safetensors")
    assert value(other) == pytest.approx(value(guard), rel=1e-9)


def test_an_adapter_on_top_is_held_by_what_both_come_to():
    model = moved(adapted())
    guard = guarded(model)
    assert value(guard) == 0
    model.add_adapter("next", LoraConfig(r=3, target_modules=TARGETS))
    model.double().base_model.set_adapter(["default", "next"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".next" in name)
    guard.refresh()
    assert value(guard) == pytest.approx(0, abs=1e-15)  # its B is 0
    moved(model, seed=3)
    assert value(guard) > 1e-4
    own = [p for p in model.parameters() if p.requires_grad]
    assert all(pull.any() for pull in torch.autograd.grad(guard.penalty(), own))
    guard.consolidate(proxy())
    assert guard.tasks == 2
    assert value(guard) == pytest.approx(0, abs=1e-15)


def test_an_adapter_in_anothers_place_is_held_to_what_that_was():
    model = moved(adapted())
    guard = guarded(model)
    model.add_adapter("next", LoraConfig(r=3, target_modules=TARGETS))
    model.double().set_adapter("next")
    model.delete_adapter("default")
    guard.refresh()
    away = value(guard)
    assert away > 1e-4  # the network is the base model again
    own = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(own, lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        guard.penalty().backward()
        optimizer.step()
    assert value(guard) < 0.05 * away


def test_a_strength_is_judged_by_the_adapter_that_acts():
    """Switched within a task: what SGD bears with a small adapter is too much with one a thousand times as large."""
    model = moved(adapted(LoraConfig(r=2, target_modules=["q_proj"])))
    model.add_adapter("large", LoraConfig(r=2, target_modules=["q_proj"]))
    guard = guarded(model.double())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".large." in name:
                p.normal_().mul_(1e3)
    own = [p for name, p in model.named_parameters() if "lora_" in name]
    guard.attach(optimizer := torch.optim.SGD(own, lr=0.1))

    def step():
        optimizer.zero_grad()
        model(**proxy()[0]).loss.backward()
        optimizer.step()

    step()
    model.set_adapter("large")
    with pytest.warns(anchorhold.AnchorholdWarning, match="too much for SGD.*lora_[AB].large"):
        step()


def test_what_was_merged_for_good_is_counted_anew():
    model = moved(adapted())
    guard = guarded(model)
    again = get_peft_model(model.merge_and_unload(), LoraConfig(r=3, target_modules=TARGETS)).double()
    guard.refresh()
    assert value(guard) > 1e-4  # what was learned would come on top of itself
    optimizer = torch.optim.AdamW([p for p in again.parameters() if p.requires_grad], lr=0.01)
    guard.attach(optimizer)
    again(**proxy()[0]).loss.backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"guard\.refresh\(rebase=True\)"):
        optimizer.step()
    guard.refresh(rebase=True)
    assert value(guard) == pytest.approx(0, abs=1e-15)
    importance = guard.importance
    moved(again, seed=4)
    assert value(guard) > 1e-4
    assert all(torch.equal(omega, importance[name]) for name, omega in guard.importance.items())
    with pytest.raises(anchorhold.errors.ConfigurationError, match="space='merged'"):
        anchorhold.Guard(again, "EWC").refresh(rebase=True)
    fresh = anchorhold.Guard(again, anchorhold.Fisher(), form="kronecker")
    with pytest.raises(anchorhold.errors.OrderError, match=r"refresh\(rebase=True\) before the first consolidate"):
        fresh.refresh(rebase=True)
    assert not fresh.anchor


def test_where_nothing_is_said_lora_is_held_by_merged_weights_and_what_adds_nothing_to_a_weight_as_it_is():
    lora = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    ia3 = IA3Config(target_modules=["q_proj"], feedforward_modules=[], task_type="CAUSAL_LM")
    for config, protect, space in ((lora, None, "merged"), (lora, "*lora_*", "weights"), (ia3, None, "weights")):
        model = get_peft_model(tiny.llama(), config)
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0, protect=protect, form="kronecker")
        said = {"merged": "merged weights", "weights": "own parameters"}[space]
        assert guard.options.space == space and f"adapters by their {said}" in repr(guard)


def test_trainable_tokens_beside_lora_are_held_as_the_rows_that_they_are():
    config = LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[1, 3], task_type="CAUSAL_LM")
    model = moved(get_peft_model(tiny.llama(), config).double())
    assert anchorhold.Guard(model, anchorhold.Fisher(), form="kronecker").options.space == "merged"
    guard = guarded(model, "diagonal")
    (rows,) = [name for name in guard.importance if "trainable_tokens" in name]
    plain = copy.deepcopy(model).merge_and_unload().requires_grad_(True)
    table = "model.embed_tokens.weight"
    other = anchorhold.Guard(plain, anchorhold.Fisher(), protect=table)
    other.consolidate(proxy())
    torch.testing.assert_close(guard.importance[rows], other.importance[table][[1, 3]])
    assert guard.importance[rows].any()
    assert any("q_proj.base_layer" in name for name in guard.importance)


def test_what_is_saved_beside_an_adapter_is_held_as_it_is():
    torch.manual_seed(1)
    config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    model = get_peft_model(tiny.llama(), config).double()
    guard = guarded(model)
    (head,) = [name for name in guard.importance if "modules_to_save" in name]
    assert len(guard.importance) == 3
    with torch.no_grad():
        weight = dict(model.named_parameters())[head]
        weight.add_(0.1 * torch.randn_like(weight))
    assert value(guard) > 1e-6


def test_a_trainer_trains_under_it(tmp_path):
    model = adapted()
    guard = guarded(model)
    train(tmp_path, guard, model, at_end=proxy(5))
    assert guard.tasks == 2
    assert value(guard) == pytest.approx(0, abs=1e-15)


needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


@needs_bitsandbytes
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_base_is_measured_and_held(form, bits):
    import bitsandbytes  # noqa: PLC0415 (an extra that few have)

    torch.manual_seed(0)
    width = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "max_position_embeddings": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=tiny.TOKENS, num_hidden_layers=2, **width, **tiny.SPECIAL))
    for block in model.model.layers:
        for name in ("q_proj", "o_proj"):
            layer = getattr(block.self_attn, name)
            sizes = layer.in_features, layer.out_features
            if bits == 4:
                small = bitsandbytes.nn.Linear4bit(*sizes, bias=False, compute_dtype=torch.float32, quant_type="nf4")
                small.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
            else:
                small = bitsandbytes.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False)
                small.weight = bitsandbytes.nn.Int8Params(layer.weight.data, requires_grad=False)
            setattr(block.self_attn, name, small.to("cpu"))
    config = LoraConfig(r=2, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    guard = guarded(model, form)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert len(guard.importance) == 4
    assert all(omega.shape == (64, 64) and omega.any() for omega in guard.importance.values())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    guard.attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(**proxy()[0]).loss.backward()
        optimizer.step()
    assert value(guard) > 0
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    guard.consolidate(proxy())


def test_a_16_bit_base_and_adapter():
    model = adapted().to(torch.bfloat16)
    guard = guarded(model)
    guard.strength = 1e-3
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    guard.attach(optimizer)
    model(**proxy()[0]).loss.backward()
    optimizer.step()
    assert all(t.dtype == torch.float32 for t in guard.importance.values())
    assert isinstance(model, nn.Module) and value(guard) >= 0
