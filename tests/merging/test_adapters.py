"""Adapters are merged as the weights that they stand for, and not factor by factor."""

import json

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import anchorhold
from anchorhold.merging import LoraAdapter, merge_adapters


def base_model(seed=0):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config).eval()


def adapted(seed=1, base_seed=0, **settings):
    """A small GPT-2 with an adapter that has learned something."""
    given = {"r": 2, "lora_alpha": 6, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True} | settings
    model = peft.get_peft_model(base_model(base_seed), peft.LoraConfig(**given))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter)) if "lora" in name else parameter.add_(0.1)
    return model.eval()


def weights(model):
    """What a model's own library makes of it."""
    return model.merge_and_unload().state_dict()


def assert_close(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


SETTINGS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"h.0.attn.c_attn": 3}, "alpha_pattern": {"h.1.mlp.c_proj": 1}},
    "embedding": {"target_modules": ["c_attn", "wpe"]},
    "biases": {"bias": "lora_only"},
    "saved": {"modules_to_save": ["ln_f"]},
}


@pytest.mark.daily
@pytest.mark.parametrize("kind", [*SETTINGS, "dora"])
def test_a_model_with_an_adapter_is_its_merged_weights(kind):
    settings = {"use_dora": True} if kind == "dora" else SETTINGS[kind]
    after = adapted(**settings)
    kept = {name: tensor.clone() for name, tensor in after.state_dict().items()}
    found = anchorhold.merge(base_model(), after, 0.4)
    assert all(torch.equal(after.state_dict()[name], tensor) for name, tensor in kept.items())
    expected = weights(adapted(**settings))
    old = base_model().state_dict()
    assert_close(found, {name: 0.6 * old[name] + 0.4 * expected[name] for name in old})
    assert found["lm_head.weight"] is found["transformer.wte.weight"]
    base_model().load_state_dict(found)


def test_an_adapter_that_is_merged_already_or_switched_off():
    merged = adapted()
    merged.merge_adapter()
    assert_close(anchorhold.merge(base_model(), merged, 1.0), weights(adapted()))
    off = adapted()
    with off.disable_adapter():
        assert_close(anchorhold.merge(base_model(), off, 1.0), base_model().state_dict())


def test_two_adapters_are_not_averaged_factor_by_factor():
    one, other = adapted(1), adapted(2)
    found = anchorhold.merge(one, other, 0.5)
    a, b = weights(adapted(1)), weights(adapted(2))
    assert_close(found, {name: (a[name] + b[name]) / 2 for name in a})


@pytest.mark.daily
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_folder_of_an_adapter_is_its_merged_weights(tmp_path, kind):
    after = adapted(**SETTINGS[kind])
    after.save_pretrained(tmp_path / "adapter")
    base_model().save_pretrained(tmp_path / "base")
    old, expected = base_model().state_dict(), weights(after)
    mean = {name: 0.6 * old[name] + 0.4 * expected[name] for name in old}
    assert_close(anchorhold.merge(base_model(), tmp_path / "adapter", 0.4), mean)
    written = anchorhold.merge(tmp_path / "base", tmp_path / "adapter", 0.4, out=tmp_path / "merged")
    assert_close(transformers.GPT2LMHeadModel.from_pretrained(written).state_dict(), mean)


@pytest.mark.daily
@pytest.mark.parametrize("kind", [kind for kind in SETTINGS if kind not in ("biases", "saved")])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_one_adapter_for_two_is_exact(tmp_path, kind, share):
    adapted(1).save_pretrained(tmp_path / "one")
    adapted(2, **SETTINGS[kind]).save_pretrained(tmp_path / "other")
    made = merge_adapters(tmp_path / "one", tmp_path / "other", share, out=tmp_path / "merged")
    assert made.config["r"] == (5 if kind == "patterns" else 4)
    both = peft.PeftModel.from_pretrained(base_model(), tmp_path / "merged")
    a, b = weights(adapted(1)), weights(adapted(2, **SETTINGS[kind]))
    assert_close(weights(both), {name: (1 - share) * a[name] + share * b[name] for name in a})


def test_the_base_with_an_adapter_is_the_adapter_scaled(tmp_path):
    adapted(1).save_pretrained(tmp_path / "one")
    made = merge_adapters(None, tmp_path / "one", 0.25, out=tmp_path / "scaled")
    assert repr(made).startswith("LoraAdapter of ") and len(repr(made)) < 80
    assert made.config["r"] == 2
    scaled = peft.PeftModel.from_pretrained(base_model(), tmp_path / "scaled")
    assert_close(weights(scaled), anchorhold.merge(base_model(), adapted(1), 0.25))


def test_adapters_by_forms_of_the_base():
    torch.manual_seed(0)
    before, after = base_model(), adapted()
    guard = anchorhold.Guard(before, anchorhold.Fisher(), form="rotated", protect="*.c_*")
    guard.consolidate([{"input_ids": torch.randint(11, (6, 5))}])
    found = anchorhold.merge(before, after, 0.5, by=guard, damping=0.0)
    old, new = before.state_dict(), weights(adapted())
    traces = sum(float(matrix.trace()) for matrix in guard.held.matrices.values())
    size = sum(old[name].numel() for matrix in guard.held.matrices.values() for name in matrix.block.parameters)
    for matrix in guard.held.matrices.values():
        step = {name: new[name] - old[name] for name in matrix.block.parameters}
        for name, shrunk in matrix.shrink(step, size / traces).items():
            torch.testing.assert_close(found[name], old[name] + shrunk, rtol=1e-5, atol=1e-5)


def test_adapters_that_are_not_averaged_alone(tmp_path):
    adapted(1, **SETTINGS["saved"]).save_pretrained(tmp_path / "saved")
    adapted(2).save_pretrained(tmp_path / "plain")
    for pair in ((None, "saved"), ("plain", "saved")):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="trained beside the adapter"):
            merge_adapters(*(name and tmp_path / name for name in pair))
    adapted(3, **SETTINGS["saved"]).save_pretrained(tmp_path / "too")
    made = merge_adapters(tmp_path / "saved", tmp_path / "too", 0.5, out=tmp_path / "merged")
    assert set(made.replaced) == {"transformer.ln_f.weight", "transformer.ln_f.bias"}
    both = peft.PeftModel.from_pretrained(base_model(), tmp_path / "merged")
    a, b = weights(adapted(1, **SETTINGS["saved"])), weights(adapted(3, **SETTINGS["saved"]))
    assert_close(weights(both), {name: (a[name] + b[name]) / 2 for name in a})


def test_adapters_that_do_not_fit(tmp_path):
    adapted(1).save_pretrained(tmp_path / "one")
    folder = tmp_path / "one"
    with pytest.raises(anchorhold.errors.ConfigurationError, match="is an adapter, whose weights depend on its base"):
        anchorhold.merge(folder, base_model())
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"adapts 'transformer.h.0.attn.c_attn.weight'.*not there"
    ):
        anchorhold.merge(nn.Linear(2, 2), folder)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="share="):
        merge_adapters(folder, folder, 1.5)
    with pytest.raises(anchorhold.errors.StateError, match="not replaced"):
        merge_adapters(folder, folder, 0.5, out=folder)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="has no adapter_config"):
        merge_adapters(tmp_path, folder)
    adapted(1, use_dora=True).save_pretrained(tmp_path / "dora")
    with pytest.raises(anchorhold.errors.ConfigurationError, match="DoRA"):
        anchorhold.merge(base_model(), tmp_path / "dora")
    config = json.loads((folder / "adapter_config.json").read_text())
    other = LoraAdapter.read(folder)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="base_model_name_or_path"):
        merge_adapters(
            folder, LoraAdapter(config | {"base_model_name_or_path": "another"}, other.factors, frozenset(), {})
        )
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] * float("nan")}, folder / "adapter_model.safetensors")
    with pytest.raises(anchorhold.errors.StateError, match="not finite"):
        anchorhold.merge(base_model(), folder)
    del tensors[name]
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(anchorhold.errors.StateError, match="expected A and B"):
        anchorhold.merge(base_model(), folder)


def test_convolutions(tmp_path):
    def model(seed):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
        found = peft.get_peft_model(net, peft.LoraConfig(r=2, lora_alpha=3, target_modules=["0", "2"]))
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in found.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter)) if parameter.requires_grad else None
        return found

    for seed in (1, 2):
        model(seed).save_pretrained(tmp_path / str(seed))
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    a, b = weights(model(1)), weights(model(2))
    assert_close(anchorhold.merge(base, tmp_path / "1", 1.0), a)
    merge_adapters(tmp_path / "1", tmp_path / "2", 0.3, out=tmp_path / "merged")
    both = peft.PeftModel.from_pretrained(base, tmp_path / "merged")
    assert_close(weights(both), {name: 0.7 * a[name] + 0.3 * b[name] for name in a})


FACTORS = r"'.*lora_A.*' and '.*lora_B.*' and 5 other pairs are the factors.*guard\.average"


def states(seeds=(1, 2), **settings):
    return [{name: tensor.clone() for name, tensor in adapted(seed, **settings).state_dict().items()} for seed in seeds]


def test_factors_in_state_dicts_are_merged_by_themselves_and_that_is_told():
    before, after = states()
    with pytest.warns(anchorhold.AnchorholdWarning, match=FACTORS):
        found = anchorhold.merge(before, after, 0.5)
    assert_close(found, {name: (before[name] + after[name]) / 2 for name in before})
    bare = [peft.get_peft_model_state_dict(adapted(seed)) for seed in (1, 2)]  # whose names lack the adapter's
    with pytest.warns(anchorhold.AnchorholdWarning, match=FACTORS):
        anchorhold.merge(*bare)
    embeddings = states(target_modules=["wpe"])
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"lora_embedding_A\.default' and .*lora_embedding_B\.default' are"
    ):
        anchorhold.merge(*embeddings)


def test_nothing_is_told_where_one_factor_stayed_as_it_was():
    before, after = states()
    for name, tensor in before.items():
        if "lora_A" in name:
            after[name] = tensor.clone()
    found = anchorhold.merge(before, after, 0.5)
    layer = "base_model.model.transformer.h.0.attn.c_attn"
    added = [
        state[f"{layer}.lora_B.default.weight"] @ state[f"{layer}.lora_A.default.weight"] for state in (before, after)
    ]
    torch.testing.assert_close(
        found[f"{layer}.lora_B.default.weight"] @ found[f"{layer}.lora_A.default.weight"], (added[0] + added[1]) / 2
    )


def test_nor_of_models_which_are_the_weights_that_they_stand_for():
    before, after = adapted(1), adapted(2)
    expected = [weights(adapted(1)), weights(adapted(2))]
    assert_close(anchorhold.merge(before, after, 0.5), {n: (expected[0][n] + expected[1][n]) / 2 for n in expected[0]})
