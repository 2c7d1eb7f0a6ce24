"""Consolidation by itself in TRL's trainers: those that let the model compute its loss, and those that do not."""

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import anchorhold
from anchorhold.errors import OrderError
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests.integrations import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL's and of transformers' own

QUIET = {
    "max_steps": 4,
    "per_device_train_batch_size": 2,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
}


def made():
    torch.manual_seed(0)
    disable_progress_bars()
    model = tiny.gpt2(layers=1)
    guard = anchorhold.Guard(model, anchorhold.MAS(average=True), strength=1.0, from_scratch=True)
    return model, guard, anchorhold.TaskFree(guard, every=2, hard=3)


def test_fine_tuning_consolidates_on_the_way(tmp_path):
    model, guard, task_free = made()
    rows = [{"input_ids": [3 + (n + i) % 4 for i in range(5)]} for n in range(8)]
    trainer = SFTTrainer(
        model,
        SFTConfig(str(tmp_path), **QUIET),
        train_dataset=Dataset.from_list(rows),
        processing_class=tiny.tokenizer(),
        callbacks=[AnchorholdCallback(guard, consolidate_at_end=False, task_free=task_free)],
    )
    trainer.train()
    assert task_free.steps == 4 and task_free.consolidated == [2, 4] and guard.tasks == 2
    assert max(float(omega.max()) for omega in guard.importance.values()) > 0
    assert len(task_free.samples.hard) == 3


class Telling(DPOTrainer):
    """Computes its loss past the model, and so tells of it itself."""

    def __init__(self, *args, task_free=None, **settings):
        super().__init__(*args, **settings)
        self.task_free = task_free

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.task_free is not None:
            self.task_free.step(loss.detach(), inputs)
        return loss


def test_preferences_are_refused_and_can_be_told_of(tmp_path):
    pair = {"prompt": "a b", "chosen": " c", "rejected": " d"}
    model, guard, task_free = made()

    def trainer(callback, **settings):
        return Telling(
            model,
            tiny.gpt2(layers=1),
            DPOConfig(str(tmp_path), **QUIET),
            train_dataset=Dataset.from_list([pair] * 8),
            processing_class=tiny.tokenizer(),
            callbacks=[callback],
            **settings,
        )

    with pytest.raises(OrderError, match="computes its loss past the model"):
        trainer(AnchorholdCallback(guard, consolidate_at_end=False, task_free=task_free)).train()
    assert guard.tasks == 0
    guard.gradients.restart_task()
    trainer(AnchorholdCallback(guard, consolidate_at_end=False), task_free=task_free).train()
    assert task_free.steps == 4 and guard.tasks == 2
