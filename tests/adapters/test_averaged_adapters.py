"""Averaging adapters with what they were: the mean of merged weights, by brute force in float64."""

import warnings

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model

import anchorhold
from anchorhold.adapters import whole
from tests.adapters.test_peft_changes import KINDS, Layers, adapters_of
from tests.helpers import grouped

EXACT = {name: kind for name, kind in KINDS.items() if name not in ("PiSSA", "DoRA of GPT-2's")}


def added(model):
    return {name: whole(adapter.change()).detach().clone() for name, adapter in adapters_of(model).items()}


def moved(model, size=0.3):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))


def held(config, *, fresh, **settings):
    torch.manual_seed(0)
    model = get_peft_model(Layers(), config).double().eval()
    if not fresh:
        moved(model)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0, **grouped(**settings))
    guard.consolidate([torch.randint(1, 6, (8, 3))])
    return model, guard


@pytest.mark.daily
@pytest.mark.parametrize("kind", EXACT)
def test_of_a_fresh_adapter_just_the_share_is_left(kind):
    model, guard = held(EXACT[kind], fresh=True)
    then, _, now = added(model), moved(model, 0.02), added(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.average(0.8)
    for name, delta in added(model).items():
        torch.testing.assert_close(delta, 0.8 * now[name] + 0.2 * then[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", [{"form": "kronecker"}, {"space": "weights"}, {"space": "merged"}], ids=str)
def test_of_an_adapter_that_had_learned_the_nearest_of_its_rank_is_left_and_said(settings):
    model, guard = held(KINDS["LoRA"], fresh=False, **settings)
    then, _, now = added(model), moved(model), added(model)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match="twice their rank, and the nearest one of the same rank misses"
    ):
        guard.average(0.6)
    for name, delta in added(model).items():
        u, sigma, v = torch.linalg.svd(0.6 * now[name] + 0.4 * then[name], full_matrices=False)
        torch.testing.assert_close(delta, u[:, :2] * sigma[:2] @ v[:2], rtol=0, atol=1e-10)
        assert (delta - now[name]).norm() > 0.01


def test_means_are_found_once_for_telling_of_them_and_for_moving(monkeypatch):
    model, guard = held(KINDS["LoRA"], fresh=False)
    moved(model)
    asked, between = [], anchorhold.adapters.Lora.between
    monkeypatch.setattr(
        anchorhold.adapters.Lora, "between", lambda self, *given: asked.append(self.layer) or between(self, *given)
    )
    with pytest.warns(anchorhold.AnchorholdWarning, match="twice their rank"):
        guard.average(0.6)
    assert len(asked) == len(set(asked)) == len(adapters_of(model))


def test_it_goes_all_the_way_back_to_the_factors_that_were_there():
    model, guard = held(KINDS["LoRA"], fresh=False)
    moved(model)
    guard.average(0.0)
    assert all(torch.equal(p, guard.anchor[name]) for name, p in guard.parameters.items())


@pytest.mark.parametrize("config", [KINDS["LoHa"], IA3Config(target_modules=["linear"], feedforward_modules=[])])
def test_adapters_whose_mean_nobody_knows_go_by_their_own_parameters_and_that_is_said(config):
    model, guard = held(config, fresh=False)
    moved(model)
    after = {name: p.detach().clone() for name, p in guard.parameters.items()}
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"'base_model\.model\.linear'.* along the line of their own"):
        guard.average(0.5)
    for name, parameter in guard.parameters.items():
        torch.testing.assert_close(parameter.detach(), (guard.anchor[name] + after[name]) / 2)


def test_what_is_merged_for_now_is_not_moved():
    model, guard = held(KINDS["rsLoRA"], fresh=True)
    moved(model)
    after = {name: p.detach().clone() for name, p in guard.parameters.items()}
    model.merge_adapter()
    with pytest.raises(anchorhold.errors.ConfigurationError, match="Unmerge it first"):
        guard.average(0.5)
    assert all(torch.equal(p, after[name]) for name, p in guard.parameters.items())


def test_going_back_to_a_tolerance_goes_through_merged_weights():
    model, guard = held(LoraConfig(r=2, target_modules=["linear"]), fresh=True)
    guard.keep(torch.randint(1, 6, (64, 5)), "old")
    moved(model)
    now = added(model)
    share = guard.pull_back(0.5 * guard.retention().kl).share
    assert 0 < share < 1
    for name, delta in added(model).items():
        torch.testing.assert_close(delta, share * now[name])


def test_an_adapter_that_came_after_the_last_consolidation_has_nowhere_to_go_back_to():
    model, guard = held(KINDS["rsLoRA"], fresh=True, form="kronecker")
    model.add_adapter("second", LoraConfig(r=2, target_modules=["linear"]))
    model.double().set_adapter("second")
    moved(model)
    with pytest.warns(anchorhold.AnchorholdWarning, match="changes nothing: an adapter of '\\S+linear' came after"):
        guard.average(0.5)


@pytest.mark.parametrize("form", ["diagonal", "kronecker"])
def test_an_adapter_on_top_of_the_consolidated_one_stays_whole_and_that_is_told(form):
    """The consolidated one goes by its share all the same."""
    config = LoraConfig(r=2, target_modules=["linear"])
    model, guard = held(config, fresh=False, form=form, space="merged" if form == "kronecker" else None)
    model.add_adapter("second", LoraConfig(r=1, target_modules=["linear"]))
    model.base_model.set_adapter(["default", "second"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    model.double()
    layer = model.base_model.model.linear
    then = layer.get_delta_weight("default").detach().clone()
    moved(model)
    first, second = (layer.get_delta_weight(name).detach().clone() for name in ("default", "second"))
    with pytest.warns(anchorhold.AnchorholdWarning, match="came after the last consolidation.*stays as it is") as told:
        guard.average(0.5)
    nearest = torch.linalg.svd((first + then) / 2)
    mean = nearest.U[:, :2] @ torch.diag(nearest.S[:2]) @ nearest.Vh[:2]
    assert torch.allclose(layer.get_delta_weight("default"), mean, atol=1e-6)
    assert torch.equal(layer.get_delta_weight("second"), second)
    assert any("'base_model.model.linear'" in str(each.message) for each in told)
