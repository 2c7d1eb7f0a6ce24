"""Going back by a share when a trainer ends: the same as by hand."""

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, default_data_collator

import anchorhold
from anchorhold.integrations.huggingface import AnchorholdCallback
from anchorhold.integrations.lightning import AnchorholdCallback as LightningCallback
from tests.integrations import test_lightning
from tests.integrations.test_huggingface import arguments, model_without_dropout, proxy, texts, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
]


def trained(folder, *, first_task=False, **options):
    """Return a language model's weights and anchor after training, and the guard."""
    model = model_without_dropout()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0, from_scratch=first_task)
    if not first_task:
        guard.consolidate(proxy())
    settings = arguments(folder, max_steps=4)
    callbacks = [AnchorholdCallback(guard, **options)]
    Trainer(
        model, settings, train_dataset=texts(8, 5), data_collator=default_data_collator, callbacks=callbacks
    ).train()
    return weights(model), guard


@pytest.mark.parametrize("at_end", [True, False])
def test_a_trainer_goes_back_by_a_share(tmp_path, at_end):
    before = weights(model_without_dropout())
    whole, _ = trained(tmp_path / "whole", consolidate_at_end=at_end)
    part, guard = trained(tmp_path / "part", consolidate_at_end=at_end, share=0.25)
    assert guard.tasks == 1 + at_end
    for name, value in whole.items():
        expected = torch.lerp(before[name], value, 0.25)
        torch.testing.assert_close(part[name], expected, msg=name)
    if at_end:  # what is held from now on is where it went back to
        assert all(torch.equal(guard.anchor[name], part[name]) for name in guard.anchor)


def test_a_first_task_has_nothing_to_go_back_to(tmp_path):
    whole, _ = trained(tmp_path / "whole", first_task=True)
    part, guard = trained(tmp_path / "part", first_task=True, share=0.25)
    assert guard.tasks == 1
    assert all(torch.equal(part[name], value) for name, value in whole.items())


@pytest.mark.parametrize("at_end", [True, False])
def test_lightning_goes_back_by_a_share(at_end):
    ends = []
    for share in (None, 0.25):
        module = test_lightning.make_module()
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        guard = anchorhold.Guard(module, anchorhold.Fisher(), strength=1.0)
        guard.consolidate(test_lightning.loader(0))
        callback = LightningCallback(guard, consolidate_at_end=at_end, share=share)
        data = DataLoader(test_lightning.loader(3).dataset, batch_size=4)
        test_lightning.trainer(callbacks=[callback]).fit(module, data)
        assert guard.tasks == 1 + at_end
        ends.append({name: p.detach().clone() for name, p in module.named_parameters()})
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], torch.lerp(before[name], value, 0.25), msg=name)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "x"])
def test_a_share_that_is_none_is_refused(share):
    guard = anchorhold.Guard(model_without_dropout(), anchorhold.SOS())
    for kind in (AnchorholdCallback, LightningCallback):
        with pytest.raises(anchorhold.errors.ConfigurationError, match=r"share=.*: expected a number from 0"):
            kind(guard, share=share)
