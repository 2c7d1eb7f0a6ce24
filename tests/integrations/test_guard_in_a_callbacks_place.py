"""What people give a trainer, or a guard, in the place of what is expected: each says what to give."""

import pytest
import torch
from lightning.pytorch import Trainer as LightningTrainer
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import Trainer, TrainingArguments

import anchorhold
from anchorhold.integrations import huggingface, lightning
from tests.integrations import test_lightning


def test_a_guard_is_no_callback_and_says_which_is(tmp_path):
    guard = anchorhold.Guard(nn.Linear(3, 2), "EWC")
    with pytest.raises(
        AttributeError, match=r"AnchorholdCallback\(guard\)\], from anchorhold\.integrations\.huggingface"
    ):
        Trainer(guard.model, TrainingArguments(tmp_path, report_to=[], use_cpu=True), callbacks=[guard])
    with pytest.raises(
        AttributeError, match=r"AnchorholdCallback\(guard\)\], from anchorhold\.integrations\.lightning"
    ):
        LightningTrainer(callbacks=[guard], logger=False, enable_checkpointing=False, accelerator="cpu")
    assert not any(hasattr(guard, name) for name in ("on_init_end", "on_train_begin", "state_key"))


def test_nor_one_that_is_given_later(tmp_path):
    guard = anchorhold.Guard(nn.Linear(3, 2), "EWC")
    arguments = TrainingArguments(tmp_path, max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(guard.model, arguments, train_dataset=[{"input": torch.zeros(3)}])
    trainer.add_callback(guard)
    with pytest.raises(
        AttributeError, match=r"AnchorholdCallback\(guard\)\], from anchorhold\.integrations\.huggingface"
    ):
        trainer.train()


def test_the_callback_of_another_trainer_says_which_to_import(tmp_path):
    guard = anchorhold.Guard(nn.Linear(3, 2), "EWC")
    theirs = huggingface.AnchorholdCallback(guard), lightning.AnchorholdCallback(guard)
    own = test_lightning.trainer(callbacks=[theirs[0]])
    with pytest.raises(AttributeError, match=r"Lightning's Trainer its own: from anchorhold\.integrations\.lightning"):
        own.fit(test_lightning.make_module(), test_lightning.loader(1))
    with pytest.raises(AttributeError, match=r"Face's Trainer its own: from anchorhold\.integrations\.huggingface"):
        Trainer(guard.model, TrainingArguments(tmp_path, report_to=[], use_cpu=True), callbacks=[theirs[1]])


def test_a_file_is_loaded_into_a_guard():
    guard = anchorhold.Guard(nn.Linear(3, 2), "EWC")
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"of no guard: .* guard\.load\('guard\.safetensors'\)"
    ):
        anchorhold.Guard.load("guard.safetensors")
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"load\(dict\): expected the path .* load_state_dict"
    ):
        guard.load(guard.state_dict())


def test_an_adapter_that_was_loaded_frozen_is_told_of(tmp_path):
    get_peft_model(nn.Sequential(nn.Linear(3, 2)), LoraConfig(target_modules=["0"])).save_pretrained(tmp_path)
    model = PeftModel.from_pretrained(nn.Sequential(nn.Linear(3, 2)), tmp_path)
    with pytest.raises(anchorhold.errors.ProtectError, match=r"adapters, all of them frozen.*give is_trainable=True"):
        anchorhold.Guard(model, "EWC")
