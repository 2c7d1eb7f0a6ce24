"""Consolidation by itself in Lightning's loop, against a loop of one's own."""

import lightning.pytorch as lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.integrations.lightning import AnchorholdCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader():
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4)


def made():
    module = Module()
    guard = anchorhold.Guard(module, anchorhold.MAS(average=True), strength=1.0, from_scratch=True)
    return module, guard, anchorhold.TaskFree(guard, every=2, hard=3)


def test_it_is_that_of_a_plain_loop(tmp_path):
    module, guard, task_free = made()
    optimizer = module.configure_optimizers()
    guard.attach(optimizer)
    for batch in loader():
        optimizer.zero_grad()
        loss = module.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        task_free.step(loss, tuple(batch))
    watched, other, own = made()
    callback = AnchorholdCallback(other, consolidate_at_end=False, task_free=own)
    trainer = lightning.Trainer(
        max_epochs=1,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(watched, loader())
    assert own.consolidated == task_free.consolidated == [2, 4, 6]
    for name, value in guard.importance.items():
        torch.testing.assert_close(other.importance[name], value)
        torch.testing.assert_close(dict(watched.named_parameters())[name], dict(module.named_parameters())[name])


def test_that_of_another_guard_is_refused():
    _, guard, _ = made()
    _, _, other = made()
    with pytest.raises(ConfigurationError, match="task_free of another guard"):
        AnchorholdCallback(guard, task_free=other)
    with pytest.raises(ConfigurationError, match="task_free=3; expected"):
        AnchorholdCallback(guard, task_free=3)


def test_training_that_resumes_goes_on_where_it_was(tmp_path):
    """After an epoch of 6 steps, two of which were since it had consolidated: next after two more, not after four."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    for epochs, path, consolidated in ((1, None, [4]), (2, tmp_path / "after-1.ckpt", [4, 8, 12])):
        module, guard, _ = made()
        task_free = anchorhold.TaskFree(guard, every=4)
        callback = AnchorholdCallback(guard, consolidate_at_end=False, task_free=task_free)
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=[callback], enable_checkpointing=False, **quiet
        )
        trainer.fit(module, loader(), ckpt_path=path)
        assert task_free.consolidated == consolidated and guard.tasks == len(consolidated)
        trainer.save_checkpoint(tmp_path / f"after-{epochs}.ckpt")
