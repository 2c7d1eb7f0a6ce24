"""Training that ends with the best of its checkpoints: what was gathered goes back to it as the weights do."""

import shutil
from pathlib import Path

import pytest
from transformers import Trainer, TrainerCallback, default_data_collator

import anchorhold
from anchorhold.integrations.callbacks import STATE_NAME
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests.integrations.test_huggingface import arguments, assert_same, guarded, texts, weights
from tests.integrations.test_huggingface_adapters import adapted, filled

BEST = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_chosen",
    "greater_is_better": True,
}


class Judged(Trainer):
    """Its best checkpoint is the one of a step that is given."""

    best = 2

    def evaluate(self, *args, **kwargs):
        metrics = {"eval_chosen": -abs(self.state.global_step - self.best), "eval_loss": 0.0}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def run(folder, guard, model, *, at_end=True, callbacks=(), resume=None, **changes):
    callback = AnchorholdCallback(guard, consolidate_at_end=at_end)
    trainer = Judged(
        model,
        arguments(folder, **{**BEST, **changes}),
        train_dataset=texts(),
        eval_dataset=texts(2),
        data_collator=default_data_collator,
        callbacks=[callback, *callbacks],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class Stop(TrainerCallback):
    """Ends training after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def stopped(folder, model_and_guard, step=2):
    """The same training that ends where the best checkpoint is."""
    model, guard = model_and_guard
    run(folder, guard, model, callbacks=[Stop(step)], load_best_model_at_end=False)
    return model, guard


WATCHED = {"watch": [anchorhold.SI(), anchorhold.Fisher()]}


@pytest.mark.parametrize("at_end", [True, False])
def test_what_was_gathered_is_that_of_the_best_checkpoint(at_end, tmp_path):
    model, guard = guarded(anchorhold.SOS(), **WATCHED)
    run(tmp_path / "best", guard, model, at_end=at_end)
    if not at_end:
        assert guard.gradients.path.steps == 2
        guard.consolidate(Judged(model, arguments(tmp_path), train_dataset=texts()).get_train_dataloader())
    expected_model, expected = stopped(tmp_path / "stopped", guarded(anchorhold.SOS(), **WATCHED))
    assert_same(weights(model), weights(expected_model))
    for name in ("SOS", "SI", "EWC"):
        assert_same(guard.held.of(name), expected.held.of(name), 1e-6)
    assert_same(guard.anchor, expected.anchor)


def test_the_best_one_may_be_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(Judged, "best", 4)
    model, guard = guarded(anchorhold.SI())
    run(tmp_path / "best", guard, model)
    other, expected = guarded(anchorhold.SI())
    run(tmp_path / "last", expected, other, load_best_model_at_end=False)
    assert_same(guard.importance, expected.importance)


def test_checkpoints_of_adapters_alone(tmp_path):
    def start():
        model = filled(adapted())
        return model, anchorhold.Guard(model, anchorhold.SI(), strength=5.0, protect="*lora_*")

    model, guard = start()
    run(tmp_path / "best", guard, model)
    expected_model, expected = stopped(tmp_path / "stopped", start())
    assert_same(weights(model), weights(expected_model))
    assert_same(guard.importance, expected.importance)


def test_the_best_one_of_a_run_that_was_resumed(tmp_path):
    model, guard = guarded(anchorhold.SI())
    run(tmp_path, guard, model, callbacks=[Stop(3)], at_end=False, load_best_model_at_end=False)
    model, resumed = guarded(anchorhold.SI())
    run(tmp_path, resumed, model, resume=True)
    _, expected = stopped(tmp_path / "stopped", guarded(anchorhold.SI()))
    assert_same(resumed.importance, expected.importance)


class Spoil(TrainerCallback):
    """Does something to the best checkpoint before the end."""

    def __init__(self, spoil):
        self.spoil = spoil

    def on_epoch_end(self, args, state, control, **kwargs):
        self.spoil(args.output_dir, kwargs["model"])


def without_state(folder, _model):
    Path(folder, "checkpoint-2", STATE_NAME).unlink()


def of_another_step(folder, _model):
    shutil.copy(f"{folder}/checkpoint-3/{STATE_NAME}", f"{folder}/checkpoint-2/{STATE_NAME}")


def of_another_run(folder, _model):
    model, guard = guarded(anchorhold.SI())
    run(f"{folder}/other", guard, model)
    shutil.copytree(f"{folder}/other/checkpoint-2", f"{folder}/checkpoint-2", dirs_exist_ok=True)


SPOILED = {
    "has no guard's state": without_state,
    "not that of the Trainer's state beside it": of_another_step,
    "is of another run": of_another_run,
}


@pytest.mark.parametrize(("message", "spoil"), SPOILED.items(), ids=["none", "step", "run"])
def test_a_best_checkpoint_that_does_not_belong_is_refused(message, spoil, tmp_path):
    model, guard = guarded(anchorhold.SI())
    with pytest.raises(
        anchorhold.errors.StateError, match=rf"{message}.* gathered is of all steps.*restart_task"
    ) as caught:
        run(tmp_path, guard, model, callbacks=[Spoil(spoil)])
    assert "Training itself was over" in "".join(caught.value.__notes__)
    assert guard.tasks == 0 and guard.gradients.path.steps == 4
    model, guard = guarded(anchorhold.SI())
    with pytest.warns(anchorhold.AnchorholdWarning, match=message):
        run(tmp_path / "left", guard, model, callbacks=[Spoil(spoil)], at_end=False)
    model, guard = guarded(anchorhold.Fisher())  # what looks at data looks at the best weights in any case
    if spoil is without_state:
        run(tmp_path / "data", guard, model, callbacks=[Spoil(spoil)])
        assert guard.tasks == 1


def test_weights_that_were_not_loaded_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Judged, "_load_best_model", lambda self: None)  # as when its files are not found
    model, guard = guarded(anchorhold.SI())
    with pytest.raises(anchorhold.errors.StateError, match="weights are not those of the best checkpoint"):
        run(tmp_path, guard, model)


def test_an_optimizer_that_went_on_is_forgotten(tmp_path):
    model, guard = guarded(anchorhold.SI())
    trainer = run(tmp_path, guard, model)
    model(**default_data_collator(texts(2))).loss.backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match="attached to no optimizer"):
        trainer.optimizer.step()  # what it remembers is not of these weights
    assert guard.gradients.path.steps == 0
    trainer.train()
    assert guard.tasks == 2
