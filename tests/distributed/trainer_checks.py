"""The Hugging Face Trainer with several processes: what it shards is what its replicas have, also after a stop."""

import torch
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, default_data_collator

import anchorhold
from anchorhold.integrations.huggingface import AnchorholdCallback
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
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=50.0, watch=["SOS", "SI"], options=anchorhold.GuardOptions(group=group)
    )
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
    trainer = kind(model=model, args=arguments, train_dataset=Sentences(), callbacks=[AnchorholdCallback(guard)])
    trainer.train(**options)
    return guard


def assert_alike(guard, expected, tolerance):
    assert guard.tasks == expected.tasks == 1
    for label in expected.measures:
        for name, value in expected.held.of(label).items():
            found = whole(guard.held.of(label)[name])
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


def a_rehearsal_that_one_process_cannot_do_is_left_out_by_all(here):
    as_torchrun(here)

    def collate(rows):
        if here.rank == 1 and len(rows) < 4:
            raise ValueError("not so few")
        return default_data_collator(rows)

    def start(**options):
        model = gpt2()
        guard = anchorhold.Guard(
            model, anchorhold.Fisher(), options=anchorhold.GuardOptions(group=distributed.group.WORLD)
        )
        arguments = TrainingArguments(
            str(here.folder / "rehearsed"),
            use_cpu=True,
            per_device_train_batch_size=4,
            max_steps=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        callbacks = [AnchorholdCallback(guard, **options)]
        trainer = Trainer(model, arguments, train_dataset=Sentences(), data_collator=collate, callbacks=callbacks)
        return trainer, guard

    trainer, guard = start()
    trainer.train()
    assert guard.tasks == 1
    refused = [{"input_ids": torch.ones(2, 6, dtype=torch.long) if here.rank == 0 else torch.ones(6, dtype=torch.long)}]
    trainer, guard = start(consolidate_at_end=refused)
    try:
        trainer.train()
    except anchorhold.errors.BatchError as error:  # one process refuses, and all of them stop
        assert "a single text" in str(error) and "after its first step" in "".join(error.__notes__)  # noqa: PT017
        assert guard.gradients.path.steps == 1
    else:
        raise AssertionError("Training went on")


def documents_of_packed_rows_are_counted_over_all_processes(here):
    rows = [[(3, 4, 5), (6, 3)], [(5, 6), (4,), (3, 3, 6, 4), (6, 5)]][here.rank]
    packed = {
        "input_ids": torch.tensor([[token for row in rows for token in row]]),
        "position_ids": torch.tensor([[place for row in rows for place in range(len(row))]]),
    }
    model = gpt2().eval()
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(samples=3), options=anchorhold.GuardOptions(group=distributed.group.WORLD)
    )
    guard.rehearse([packed])
    assert guard.consolidate([packed])["EWC"].samples == 3
    first = [{"input_ids": torch.tensor([row])} for row in ((3, 4, 5), (6, 3), (5, 6))]
    for name, value in anchorhold.Fisher().measure(model, first).items():
        torch.testing.assert_close(guard.importance[name], value, rtol=1e-4, atol=1e-7)


CHECKS = [
    trainer_shards_give_what_replicas_give,
    a_rehearsal_that_one_process_cannot_do_is_left_out_by_all,
    documents_of_packed_rows_are_counted_over_all_processes,
]
