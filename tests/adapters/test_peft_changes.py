"""What PEFT's adapters add to weights: a layer's outputs are those of its base, and Δ times its inputs."""

import weakref

import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    VeraConfig,
    get_peft_model,
)
from torch import nn
from transformers.pytorch_utils import Conv1D

import anchorhold
from anchorhold.adapters import ADAPTERS, Product, find_adapters, whole
from anchorhold.forms import RotatedMatrix


class Layers(nn.Module):
    """One layer of each kind."""

    def __init__(self):
        super().__init__()
        self.table, self.linear, self.turned = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 5), Conv1D(3, 5)
        self.image, self.head = nn.Conv2d(1, 3, 2, stride=2, padding=1), nn.Linear(3, 3)

    def forward(self, x):
        read = self.turned(torch.tanh(self.linear(self.table(x)))).mean(1)
        seen = self.image(x[:, None, None, :].to(read.dtype).expand(-1, -1, 4, -1)).mean((2, 3))
        return self.head(torch.tanh(read + seen))


KINDS = {
    "LoRA": LoraConfig(r=2, lora_alpha=3, target_modules=["table", "linear", "image"]),
    "LoRA of GPT-2's": LoraConfig(r=2, fan_in_fan_out=True, target_modules=["turned"]),
    "rsLoRA": LoraConfig(r=2, lora_alpha=3, use_rslora=True, target_modules=["linear"]),
    "LoRA with a bias": LoraConfig(r=2, lora_bias=True, target_modules=["linear"]),
    "PiSSA": LoraConfig(r=2, init_lora_weights="pissa", target_modules=["linear"]),
    "LoHa": LoHaConfig(r=2, alpha=3, target_modules=["linear", "image"]),
    "LoKr": LoKrConfig(r=2, alpha=3, target_modules=["linear", "image"]),
    "LoKr, all": LoKrConfig(r=2, alpha=3, decompose_both=True, decompose_factor=2, target_modules=["linear"]),
    "AdaLoRA": AdaLoraConfig(init_r=2, target_r=2, lora_alpha=3, total_step=10, target_modules=["linear"]),
    "DoRA": LoraConfig(r=2, lora_alpha=3, use_dora=True, target_modules=["linear"]),
    "DoRA of GPT-2's": LoraConfig(r=2, use_dora=True, fan_in_fan_out=True, target_modules=["turned"]),
    "VeRA": VeraConfig(r=2, target_modules=["linear"]),
}


def adapted(config):
    torch.manual_seed(0)
    model = get_peft_model(Layers(), config).double().eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.5)
    return model


def adapters_of(model):
    return find_adapters(model, {id(p) for p in model.parameters() if p.requires_grad})


def added_by(adapter, x):
    """Return what Δ makes of inputs, by the definition of each kind of layer."""
    delta, layer = whole(adapter.change()), adapter.layer
    if isinstance(layer, nn.Embedding):
        return delta.mT[x]
    if isinstance(layer, nn.Conv2d):
        return nn.functional.conv2d(x, delta.view_as(layer.weight), None, layer.stride, layer.padding)
    return x @ delta.mT


def inputs_of(layer):
    if isinstance(layer, nn.Embedding):
        return torch.tensor([[1, 2, 5], [3, 3, 4]])
    shape = (2, 1, 4, 4) if isinstance(layer, nn.Conv2d) else (2, 3, getattr(layer, "nx", None) or layer.in_features)
    return torch.randn(shape, dtype=torch.float64)


def assert_adds(adapter):
    x = inputs_of(adapter.layer)
    biases = [getattr(layer, "bias", None) for layer in getattr(adapter.module, "lora_B", {}).values()]
    beside = sum(adapter.module.scaling["default"] * bias for bias in biases if bias is not None)
    torch.testing.assert_close(adapter.module(x) - adapter.layer(x) - beside, added_by(adapter, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_with_its_weight_and_the_change(kind):
    adapters = adapters_of(adapted(KINDS[kind]))
    assert len(adapters) == len(KINDS[kind].target_modules)
    for adapter in adapters.values():
        assert_adds(adapter)
        assert whole(adapter.change()).abs().max() > 1e-3
        assert isinstance(adapter.change(), Product) == (adapter.name == "lora")


def test_a_merged_dora_cannot_be_read_apart():
    model = adapted(KINDS["DoRA"])
    model.merge_adapter()
    with pytest.raises(anchorhold.errors.ConfigurationError, match="unmerge it first"):
        anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(space="merged"))
    model.unmerge_adapter()
    model.add_adapter("other", LoraConfig(r=2, target_modules=["linear"]))
    with pytest.raises(anchorhold.errors.ConfigurationError, match="several adapters"):
        anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(space="merged"))


def test_active_adapters_are_added_and_others_are_not():
    model = adapted(KINDS["LoRA"])
    alone = {name: whole(a.change()).detach().clone() for name, a in adapters_of(model).items()}
    model.add_adapter("other", LoraConfig(r=3, target_modules=["linear", "table"]))
    model.base_model.set_adapter(["default", "other"])
    for name, parameter in model.named_parameters():
        if ".other" in name:
            nn.init.normal_(parameter.data)
    adapters = adapters_of(model.double())
    for name, adapter in adapters.items():
        assert_adds(adapter)
        assert torch.equal(whole(adapter.change()), alone[name]) == ("linear" not in name and "table" not in name)
    model.set_adapter("default")
    assert all(torch.equal(whole(a.change()), alone[name]) for name, a in adapters_of(model).items())
    with model.disable_adapter():
        assert all(adapter.change() is None for adapter in adapters.values())


def test_what_is_merged_is_the_same_change():
    model = adapted(KINDS["LoRA"])
    adapters = adapters_of(model)
    before = {name: whole(adapter.change()).detach() for name, adapter in adapters.items()}
    model.merge_adapter()
    assert all(torch.equal(whole(adapter.change()), before[name]) for name, adapter in adapters.items())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LoraConfig(r=2, use_dora=True, target_modules=["table"]), "not of a linear layer"),
        (LoraConfig(r=2, target_modules=[], target_parameters=["linear.weight"]), "of a parameter"),
        (IA3Config(target_modules=["linear"], feedforward_modules=[]), "'ia3'"),
        (OFTConfig(oft_block_size=1, r=0, target_modules=["linear"]), "'oft'"),
    ],
)
def test_kinds_that_add_nothing_to_a_weight_are_refused_with_those_that_do(config, said):
    model = get_peft_model(Layers(), config)
    with pytest.raises(anchorhold.errors.ConfigurationError, match=said) as refused:
        anchorhold.Guard(model, "EWC", options=anchorhold.GuardOptions(space="merged"))
    assert "LoHa, LoKr, AdaLoRA and VeRA" in str(refused.value)
    anchorhold.Guard(model, "EWC")  # which holds its parameters


def test_a_kind_is_entered_once():
    assert {"lora", "delta-weight"} <= set(ADAPTERS)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="called 'lora' already"):

        @anchorhold.adapters.register_adapter("lora")
        class Other(anchorhold.adapters.Adapter):
            pass


@pytest.mark.parametrize("kind", ["LoKr", "DoRA"])
def test_what_is_as_large_as_a_weight_is_kept_of_one_layer_at_a_time(kind, monkeypatch):
    """Of each Δ that is no product, D and Q(D) are: of all layers together they would be as large as the model."""
    layers = [str(place) for place in range(6)]
    config = (
        LoKrConfig(r=2, target_modules=layers)
        if kind == "LoKr"
        else LoraConfig(r=2, target_modules=layers, use_dora=True)
    )
    model = get_peft_model(nn.Sequential(*(nn.Linear(8, 8) for _ in layers)), config)
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=1.0, form="rotated", options=anchorhold.GuardOptions(implicit=False)
    )
    guard.consolidate([torch.randn(5, 8)])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    guard.attach(optimizer)
    kept, alive, apply = weakref.WeakSet(), [], RotatedMatrix.apply

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor
            if tensor.shape == (8, 8):
                kept.add(self)

    def counted(self, d):
        alive.append(len(kept))
        return apply(self, d)

    monkeypatch.setattr(RotatedMatrix, "apply", counted)
    model(torch.randn(5, 8)).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        optimizer.step()
    assert len(alive) == len(layers)
    assert max(alive) == alive[0]
