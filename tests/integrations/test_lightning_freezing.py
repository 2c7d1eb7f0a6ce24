"""Lightning's ways of freezing a part of a module for a while: what is measured must not depend on when."""

import lightning.pytorch as lightning_pytorch
import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.integrations.lightning import AnchorholdCallback

pytestmark = [
    # Advice that Lightning gives about small data and about its own next version.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
]


class Module(lightning_pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.02)


class Toggled(Module):
    """Lightning's recipe for several optimizers: each step freezes what the others train."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=0.02) for part in (self.backbone, self.head)]


class LateBackbone(Toggled):
    """An optimizer all of whose parameters are frozen when training starts."""

    def __init__(self):
        super().__init__()
        self.backbone.requires_grad_(False)

    def training_step(self, batch, batch_idx):
        of_backbone, of_head = self.optimizers()
        self.backbone.requires_grad_(batch_idx >= 2)
        of_backbone.zero_grad()
        of_head.zero_grad()
        self.manual_backward(Module.training_step(self, batch, batch_idx))
        of_head.step()
        if batch_idx >= 2:
            of_backbone.step()


def loader(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()), batch_size=4)


def two_tasks(module, measure, protect, callbacks, strength=3.0):
    guard = anchorhold.Guard(module, measure, strength=strength, protect=protect)
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    for seed in (1, 2):
        fit = lightning_pytorch.Trainer(
            max_epochs=2, accelerator="cpu", callbacks=[*callbacks(), AnchorholdCallback(guard)], **quiet
        )
        fit.fit(module, loader(seed))
    return guard


CASES = {
    "toggled": (Toggled, list),
    "late backbone": (LateBackbone, list),
    "BackboneFinetuning": (Module, lambda: [BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False)]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("measure", ["SI", "SOS", "EWC"])
def test_what_is_frozen_for_a_while_is_measured_and_held_as_if_it_had_been_named(measure, case):
    module, callbacks = CASES[case]
    named, guard = (two_tasks(module(), measure, protect, callbacks) for protect in ("*", None))
    assert guard.tasks == named.tasks == 2
    assert guard.importance.keys() == named.importance.keys()
    assert all(float(omega.max()) > 0 for omega in guard.importance.values())
    for name, omega in named.importance.items():
        assert torch.equal(guard.importance[name], omega), name
        assert torch.equal(guard.anchor[name], named.anchor[name]), name


@pytest.mark.parametrize("measure", ["SI", "SOS", "EWC"])
def test_a_backbone_that_alone_is_protected_is_waited_for(measure):
    """No optimizer has any of it when training starts; unheld, both go the same way."""
    callbacks = CASES["BackboneFinetuning"][1]
    alone, all_of_it = (two_tasks(Module(), measure, protect, callbacks, 0.0) for protect in ("backbone.*", "*"))
    assert alone.tasks == 2
    assert set(alone.importance) == {"backbone.0.weight", "backbone.0.bias"}
    for name, omega in alone.importance.items():
        assert float(omega.max()) > 0
        assert torch.equal(omega, all_of_it.importance[name]), name


def test_a_class_of_guards_makes_them():
    class Guard(anchorhold.Guard):
        def __init__(self, module):
            super().__init__(module, "SOS")

    assert AnchorholdCallback(Guard)
    for wrong in (anchorhold.SOS, anchorhold.Guard):
        with pytest.raises(anchorhold.errors.ConfigurationError, match="A guard of the class"):
            AnchorholdCallback(wrong)
