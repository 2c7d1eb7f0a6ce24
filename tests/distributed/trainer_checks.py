"""The Hugging Face Trainer with several processes: what it shards is what its replicas have, also after a stop."""

import torch
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import holdfast
from holdfast.integrations.huggingface import HoldfastCallback
from tests.distributed.accelerate_checks import as_torchrun, shard_with
from tests.distributed.problem import whole
from tests.integrations.tiny import TOKENS, gpt2


class Sentences(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        words = torch.randint(3, TOKENS, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Sharding(Trainer):
    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        shard_with(self.accelerator, "GPT2Block")
        self.is_fsdp_enabled = True


def trained(here, kind, folder, **options):
    """Return the guard of a Trainer that has fine-tuned a protected model."""
    as_torchrun(here)
    model = gpt2()
    group = distributed.group.WORLD
    guard = holdfast.Consolidator(model, holdfast.Fisher(), strength=50.0, watch=["SOS", "SI"], group=group)
    arguments = TrainingArguments(
        str(here.folder / folder),
        use_cpu=True,
        per_device_train_batch_size=2,
        max_steps=4,
        save_steps=2,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = kind(model=model, args=arguments, train_dataset=Sentences(), callbacks=[HoldfastCallback(guard)])
    trainer.train(**options)
    return guard


def assert_alike(guard, expected, tolerance):
    assert guard.tasks == expected.tasks == 1
    for label in expected.measures:
        for name, value in expected.importance_of(label).items():
            found = whole(guard.importance_of(label)[name])
            torch.testing.assert_close(found, whole(value), rtol=tolerance, atol=tolerance * float(whole(value).max()))
    for name, value in expected.anchor.items():
        torch.testing.assert_close(whole(guard.anchor[name]), whole(value), rtol=0, atol=tolerance)


def trainer_shards_give_what_replicas_give(here):
    replicas = trained(here, Trainer, "replicas")
    sharded = trained(here, Sharding, "sharded")
    assert all(isinstance(omega, DTensor) for omega in sharded.importance.values())
    assert_alike(sharded, replicas, tolerance=1e-4)
    resumed = trained(here, Sharding, "sharded", resume_from_checkpoint=str(here.folder / "sharded" / "checkpoint-2"))
    assert_alike(resumed, sharded, tolerance=1e-6)


CHECKS = [trainer_shards_give_what_replicas_give]
