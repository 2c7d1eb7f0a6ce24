"""Replay and distillation in every trainer, against loops by hand with the same mixed loss."""

import copy

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from datasets import Dataset, disable_progress_bars
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader
from trl import SFTTrainer

import anchorhold
from anchorhold import DarkExperience, Distillation, Replay
from anchorhold.holds import Reservoir
from anchorhold.integrations.accelerate import prepare_guard
from anchorhold.integrations.huggingface import AnchorholdCallback
from anchorhold.integrations.lightning import AnchorholdCallback as LightningCallback
from tests.helpers import grouped
from tests.integrations import test_accelerate, test_lightning, tiny
from tests.integrations.test_accelerate import settings_of_ones_own  # noqa: F401 (a fixture)
from tests.integrations.test_huggingface import (
    Interrupt,
    Seen,
    assert_same,
    model_without_dropout,
    proxy,
    train,
    weights,
)
from tests.integrations.test_huggingface_adapters import adapted, filled, sft

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

OLD = [tiny.text(seed=20), tiny.text(seed=21), tiny.text(seed=22)]
SHARE, STRENGTH = 0.25, 3.0
SGD = {"optim": "sgd", "learning_rate": 0.3}
"""Adam would make steps of its own out of the rounding where gradients are tiny."""


def holds():
    return [Replay(OLD, share=SHARE), Distillation(OLD, STRENGTH, name="distilled")]


def guarded(model, **options):
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=holds(), **grouped(**options))
    guard.consolidate()
    return guard


def text_losses(model, before, step, *, bf16=False):
    """The loss of the old text, as the model has it, and the divergence from the old model on it, both weighted."""
    replayed, distilled = (hold.source.draw(32, step).batch for hold in holds())
    precision = torch.autocast("cpu", torch.bfloat16, enabled=bf16)  # each pass rounds its own gradient
    with torch.no_grad(), precision:
        then = before(**distilled).logits[:, :-1].float().log_softmax(-1)
    with precision:
        now = model(**distilled).logits[:, :-1].float().log_softmax(-1)
    with precision:
        again = model(**replayed).loss
    counted = distilled["labels"][:, 1:] != -100
    moved = (then.exp() * (then - now)).sum(-1)[counted].mean()
    return SHARE * again, STRENGTH * moved


def mixed(parameters, *values, share=SHARE):
    """Put the gradients of a mixed loss in the place of the task's."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    added = [torch.autograd.grad(value, parameters) for value in values]
    for parameter, *extra in zip(parameters, *added, strict=True):
        parameter.grad = (1 - share) * parameter.grad + sum(extra)


def by_hand(model, trainer, batches=None, *, accumulate=1, clip=1.0, bf16=False):
    """The Trainer's loop: SGD, a linear schedule, clipping of the task's gradient, and then the holds'."""
    before, args = copy.deepcopy(model).eval(), trainer.args
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    torch.manual_seed(args.seed)
    batches = iter(batches or trainer.get_train_dataloader())
    model.train()
    for step in range(args.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * (1 - step / args.max_steps)
        optimizer.zero_grad()
        parts = [next(batches) for _ in range(accumulate)]
        items = sum(int((part["labels"] != -100).sum()) for part in parts)  # as the Trainer counts them
        for part in parts:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**part, num_items_in_batch=items).loss
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        mixed(model.parameters(), *text_losses(model, before, step, bf16=bf16))
        optimizer.step()


@pytest.mark.parametrize(
    "changes",
    [{"gradient_accumulation_steps": 2}, {"bf16": True}, {"gradient_checkpointing": True}],
    ids=["accumulation", "bf16", "checkpointing"],
)
def test_a_trainer_mixes_as_a_loop_by_hand(changes, tmp_path):
    model, seen = model_without_dropout(), Seen()
    guard = guarded(model)
    trainer = train(tmp_path, guard, model, max_grad_norm=0.5, callbacks=[seen], **SGD, **changes)
    assert guard.gradients.path.steps == 4  # of the optimizer: holds act once in each
    assert all(entry["anchorhold/replay"] > 0 for entry in seen.logs if "loss" in entry)
    other = model_without_dropout()
    by_hand(other, trainer, accumulate=changes.get("gradient_accumulation_steps", 1), clip=0.5, bf16="bf16" in changes)
    assert_same(weights(model), weights(other), 1e-5)


def test_an_adapter_is_held_to_what_it_was(tmp_path):
    def start():
        torch.manual_seed(5)
        return filled(adapted())

    model = start()
    guard = guarded(model)
    assert all("lora_" in name for name in guard.options.holds[1].before)  # the old model is the adapter's state alone
    trainer = train(tmp_path, guard, model, **SGD)
    other = start()
    by_hand(other, trainer)
    assert_same(weights(model), weights(other), 1e-5)


def test_supervised_fine_tuning_mixes_as_a_loop_by_hand(tmp_path):
    disable_progress_bars()
    data = Dataset.from_list([{"prompt": "a b", "completion": " c d a"}, {"prompt": "b", "completion": " a d"}] * 4)
    model = model_without_dropout()
    guard = guarded(model)
    trainer = SFTTrainer(
        model, sft(tmp_path, **SGD), train_dataset=data, processing_class=tiny.tokenizer(),
        callbacks=[AnchorholdCallback(guard, consolidate_at_end=False)],
    )  # fmt: skip
    trainer.train()
    other = model_without_dropout()
    torch.manual_seed(trainer.args.seed)
    by_hand(other, trainer, [{k: b[k] for k in ("input_ids", "labels")} for b in trainer.get_train_dataloader()])
    assert_same(weights(model), weights(other), 1e-5)


def test_new_inputs_are_those_of_the_trainers_batches(tmp_path):
    """Learning without Forgetting: with accumulation, on the last of a step's batches."""
    model = model_without_dropout()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Distillation("new")])
    guard.consolidate()
    train(tmp_path, guard, model, max_steps=2, gradient_accumulation_steps=2)
    assert guard.options.holds[0].last > 0


class TestResuming:
    """Buffers are saved and loaded by the user; the rest goes with the trainer's checkpoints."""

    def make(self, model, buffer=None, task=None):
        buffered = [Replay(Reservoir(6), share=0.5, size=2), Distillation(OLD, name="distilled")]
        guard = anchorhold.Guard(model, "EWC", strength=5.0, holds=buffered, watch=["SI"])
        if buffer is None:
            guard.consolidate(task or proxy())
        elif buffer:
            guard.options.holds[0].buffer.load(buffer)
        return guard

    def test_hugging_face(self, tmp_path):
        def start(folder, *, resume=None, buffer=None, callbacks=()):
            model = tiny.gpt2(layers=1)  # with dropout
            guard = self.make(model, buffer)
            if buffer is None:
                guard.options.holds[0].buffer.save(tmp_path / "buffer")
            saving = {"save_strategy": "steps", "save_steps": 2}
            train(folder, guard, model, resume=resume, callbacks=callbacks, at_end=proxy(5), **saving)
            return model, guard

        model, guard = start(tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "cut", callbacks=[Interrupt(3)])
        with pytest.raises(anchorhold.errors.OrderError, match="a guard's file carries no training data"):
            start(tmp_path / "cut", resume=True, buffer=False)
        again, restored = start(tmp_path / "cut", resume=True, buffer=tmp_path / "buffer")
        assert_same(weights(again), weights(model))
        assert_same(restored.importance, guard.importance)
        assert repr(restored.options.holds[0].buffer) == repr(
            guard.options.holds[0].buffer
        )  # filled once more, at the end

    def test_accelerate(self, tmp_path):
        batches = [tuple(part[:8] for part in test_accelerate.data().tensors)]

        def start(buffer=None):
            accelerator = Accelerator(cpu=True)
            model = test_accelerate.net()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            loader = DataLoader(test_accelerate.data(), batch_size=4)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            guard = anchorhold.Guard(
                model, "fine-tune", strength=0.0, holds=[Replay(Reservoir(6), share=0.5, size=2), Distillation("new")]
            )
            prepare_guard(accelerator, guard, optimizer)
            if buffer is None:
                guard.consolidate(batches)
            else:
                accelerator.load_state(str(tmp_path / "state"))
            return accelerator, model, optimizer, loader, guard

        accelerator, model, optimizer, loader, guard = start()
        test_accelerate.epoch(accelerator, model, optimizer, loader, steps=2)
        accelerator.save_state(str(tmp_path / "state"))
        guard.options.holds[0].buffer.save(tmp_path / "buffer")
        test_accelerate.epoch(accelerator, model, optimizer, loader)
        expected = weights(model)
        accelerator, model, optimizer, loader, guard = start(tmp_path / "buffer")
        before = weights(model)
        with pytest.raises(anchorhold.errors.OrderError, match="carries no training data"):
            test_accelerate.epoch(accelerator, model, optimizer, loader)
        assert_same(weights(model), before)
        optimizer.zero_grad()
        guard.options.holds[0].buffer.load(tmp_path / "buffer")
        test_accelerate.epoch(accelerator, model, optimizer, loader)
        assert_same(weights(model), expected)

    def test_lightning(self, tmp_path):
        def start(epochs, *, buffer=None, path=None, fill=True):
            module = test_lightning.make_module()
            guard = anchorhold.Guard(
                module, "fine-tune", strength=0.0, holds=[Replay(Reservoir(6), share=0.5, size=2), Distillation("new")]
            )
            if fill:
                guard.consolidate(test_lightning.loader(7))
                guard.options.holds[0].buffer.save(tmp_path / "buffer")
            elif buffer is not None:
                guard.options.holds[0].buffer.load(buffer)
            saving = ModelCheckpoint(tmp_path / "kept", filename="{epoch}", save_top_k=-1)
            callbacks = [LightningCallback(guard, consolidate_at_end=False), saving]
            fit = test_lightning.trainer(max_epochs=epochs, callbacks=callbacks, enable_checkpointing=True)
            fit.fit(module, test_lightning.loader(1), ckpt_path=path)
            return module, guard

        module, guard = start(2)

        first = tmp_path / "kept" / "epoch=0.ckpt"
        with pytest.raises(anchorhold.errors.OrderError, match="carries no training data"):
            start(2, path=first, fill=False)
        again, restored = start(2, path=first, fill=False, buffer=tmp_path / "buffer")
        assert restored.gradients.path.steps == guard.gradients.path.steps
        assert_same(weights(again), weights(module))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_accelerated_loop_mixes_as_a_loop_by_hand(accumulate):
    old = [tuple(part[:8] for part in test_accelerate.data().tensors)]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = test_accelerate.net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(test_accelerate.data(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Replay(old, share=0.5), Distillation(old)])
    guard.consolidate()
    prepare_guard(accelerator, guard, optimizer)
    test_accelerate.epoch(accelerator, model, optimizer, loader)
    other = test_accelerate.net()
    before, plain = copy.deepcopy(other), torch.optim.Adam(other.parameters(), lr=0.01)
    batches = list(DataLoader(test_accelerate.data(), batch_size=4))
    for first in range(0, 4, accumulate):
        plain.zero_grad()
        for x, y in batches[first : first + accumulate]:
            (F.cross_entropy(other(x), y) / accumulate).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.3)
        mixed(other.parameters(), classes_loss(other, before, *old[0]), share=0.5)
        plain.step()
    assert_same(weights(model), weights(other), 1e-5)


def classes_loss(model, before, x, y):
    then, now = before(x).detach().log_softmax(-1), model(x).log_softmax(-1)
    return 0.5 * F.cross_entropy(model(x), y) + (then.exp() * (then - now)).sum(-1).mean()


def test_lightnings_loop_mixes_as_a_loop_by_hand():
    """Its optimizers are given closures, and its clipping happens inside."""
    old = [next(iter(test_lightning.loader(7)))]
    module = test_lightning.make_module()
    guard = anchorhold.Guard(module, "fine-tune", strength=0.0, holds=[Replay(old, share=0.5), Distillation(old)])
    guard.consolidate()
    fit = test_lightning.trainer(
        callbacks=[LightningCallback(guard, consolidate_at_end=False)], accumulate_grad_batches=2, gradient_clip_val=0.3
    )
    fit.fit(module, test_lightning.loader(1))
    net = test_lightning.network()
    before, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(2):
        for place, batch in enumerate(test_lightning.loader(1)):
            (test_lightning.loss_of(net, batch) / 2).backward()
            if place % 2:
                nn.utils.clip_grad_norm_(net.parameters(), 0.3)
                mixed(net.parameters(), classes_loss(net, before, *old[0]), share=0.5)
                optimizer.step()
                optimizer.zero_grad()
    assert_same(weights(module.net), weights(net), 1e-5)


def test_lightnings_closures_draw_as_plain_steps_do():
    """And a buffer beside a measure that looks at data is filled at the end of the fit: both read the loader."""
    module, net = test_lightning.make_module(), test_lightning.network()
    made = [
        anchorhold.Guard(
            model, "EWC", strength=2.0, holds=[Replay(Reservoir(6), 0.5, size=2), DarkExperience(6, size=2)]
        )
        for model in (module, net)
    ]
    callback = LightningCallback(made[0])
    for task in (1, 2):
        test_lightning.trainer(callbacks=[callback], max_epochs=1).fit(module, test_lightning.loader(task))
        test_lightning.plain_loop(net, made[1], test_lightning.loader(task), epochs=1)
    assert len(made[0].options.holds[0].buffer) == 6 and made[0].options.holds[0].buffer.tasks == 2
    test_lightning.assert_same(module, made[0], net, made[1])


def test_data_that_never_end_fill_no_buffer():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.randn(4), torch.tensor(1)

    module = test_lightning.make_module()
    guard = anchorhold.Guard(module, "fine-tune", strength=0.0, holds=[Replay(10)], from_scratch=True)
    fit = test_lightning.trainer(max_epochs=1, max_steps=2, callbacks=[LightningCallback(guard)])
    with pytest.raises(anchorhold.errors.BatchError, match="the hold 'replay' chooses from all of it"):
        fit.fit(module, DataLoader(Endless(), batch_size=4))
