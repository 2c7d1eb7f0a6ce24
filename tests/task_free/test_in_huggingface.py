"""Consolidation by itself in Hugging Face's Trainer, against a loop of one's own."""

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, default_data_collator

import anchorhold
from anchorhold.errors import AnchorholdWarning, ConfigurationError, OrderError
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests.integrations.test_huggingface import arguments, model_without_dropout, texts
from tests.integrations.test_huggingface_checkpoints import BEST, Judged


def made():
    torch.manual_seed(0)
    model = model_without_dropout()
    guard = anchorhold.Guard(model, anchorhold.MAS(average=True), strength=1.0, from_scratch=True)
    return model, guard, anchorhold.TaskFree(guard, every=2, hard=3)


def trained(folder, model, callback, resume=None, **changes):
    trainer = Trainer(
        model,
        arguments(folder, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0, **changes),
        train_dataset=texts(),
        data_collator=default_data_collator,
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("parts", [1, 2])
def test_it_is_that_of_a_plain_loop(tmp_path, parts):
    """With gradients that are accumulated too: one loss an optimizer step, and all of its batches."""
    watched, other, own = made()
    seen = []

    def note(model, _, batch):
        if model.training:
            seen.append({name: torch.as_tensor(value).clone() for name, value in batch.items()})

    noting = watched.register_forward_pre_hook(note, with_kwargs=True)
    callback = AnchorholdCallback(other, consolidate_at_end=False, task_free=own)
    trained(tmp_path, watched, callback, gradient_accumulation_steps=parts)
    noting.remove()
    assert len(seen) == 4 * parts
    model, guard, task_free = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    guard.attach(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        some = seen[step * parts : (step + 1) * parts]
        losses = [model(**batch).loss for batch in some]  # each a part, as the Trainer counts labels itself
        for loss in losses:
            loss.backward()
        optimizer.step()
        *others, last = [{name: batch[name] for name in ("input_ids", "labels")} for batch in some]
        for batch in others:
            task_free.samples.take(batch)
        task_free.step(sum(losses), last)
    assert own.consolidated == task_free.consolidated == [2, 4]
    assert other.tasks == 2 and len(own.samples.hard) == 3
    for name, value in guard.importance.items():
        torch.testing.assert_close(other.importance[name], value, rtol=1e-4, atol=1e-7)


def test_holds_that_run_the_model_are_not_taken_for_steps(tmp_path):
    model = model_without_dropout()
    old = list(DataLoader(texts(4, 9), batch_size=2))
    guard = anchorhold.Guard(model, "fine-tune", holds=[anchorhold.Replay(old)], from_scratch=True)
    callback = AnchorholdCallback(
        guard, consolidate_at_end=False, task_free=lambda guard: anchorhold.TaskFree(guard, every=3, recent=2)
    )
    trained(tmp_path, model, callback)
    assert callback.task_free.steps == 4 and callback.task_free.consolidated == [3]
    assert not model._forward_hooks  # it leaves the model alone in the end


def test_options_that_are_no_part_of_a_sample_are_left_out_of_it(tmp_path):
    class Told(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs, logits_to_keep=0, output_hidden_states=True).loss

    model, guard, task_free = made()
    callback = AnchorholdCallback(guard, consolidate_at_end=False, task_free=task_free)
    Told(
        model,
        arguments(tmp_path),
        train_dataset=texts(),
        data_collator=default_data_collator,
        callbacks=[callback],
    ).train()
    assert task_free.consolidated == [2, 4]


def test_what_returns_no_loss_is_refused(tmp_path):
    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(input_ids=inputs["input_ids"]).logits.square().mean()

    model, guard, task_free = made()
    trainer = OwnLoss(
        model,
        arguments(tmp_path),
        train_dataset=texts(),
        data_collator=default_data_collator,
        callbacks=[AnchorholdCallback(guard, consolidate_at_end=False, task_free=task_free)],
    )
    with pytest.raises(OrderError, match="computes its loss past the model"):
        trainer.train()
    _, _, other = made()
    with pytest.raises(ConfigurationError, match="task_free of another guard"):
        AnchorholdCallback(guard, task_free=other)
    with pytest.raises(ConfigurationError, match="task_free=True; expected"):
        AnchorholdCallback(guard, task_free=True)
    with pytest.raises(ConfigurationError, match="a function that returned None"):
        trained(tmp_path, model, AnchorholdCallback(guard, task_free=lambda guard: None))


def test_training_that_resumes_goes_on_where_it_was(tmp_path):
    """After 3 of 6 steps, one of which was since it had consolidated: next after one more, not after two."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    model, guard, whole = made()
    trained(tmp_path, model, AnchorholdCallback(guard, False, task_free=whole), max_steps=6, **saving)
    assert whole.consolidated == [2, 4, 6]
    checkpoint = str(tmp_path / "checkpoint-3")
    model, guard, _ = made()
    callback = AnchorholdCallback(guard, False, task_free=lambda guard: anchorhold.TaskFree(guard, every=2))
    trained(tmp_path, model, callback, resume=checkpoint, max_steps=6, **saving)
    assert callback.task_free.consolidated == [2, 4, 6] and guard.tasks == 3

    model, guard, _ = made()
    trained(tmp_path / "without", model, AnchorholdCallback(guard, False), max_steps=3, **saving)
    model, guard, task_free = made()
    with pytest.warns(AnchorholdWarning, match="says nothing of task_free"):
        trained(
            tmp_path / "without",
            model,
            AnchorholdCallback(guard, False, task_free=task_free),
            resume=str(tmp_path / "without" / "checkpoint-3"),
            max_steps=6,
        )
    assert task_free.consolidated == [2]


def test_it_goes_back_to_the_best_checkpoint_as_the_guard_does(tmp_path):
    model, guard, task_free = made()
    trainer = Judged(
        model,
        arguments(tmp_path, **{**BEST, "optim": "sgd", "max_steps": 6}),
        train_dataset=texts(),
        eval_dataset=texts(2),
        data_collator=default_data_collator,
        callbacks=[AnchorholdCallback(guard, False, task_free=task_free)],
    )
    trainer.best = 3
    trainer.train()
    assert task_free.steps == 3 and task_free.consolidated == [2] and guard.tasks == 1
