"""A Trainer with a guard, against a loop in plain PyTorch and against its own interruption."""

import itertools
import json
import shutil
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer
from transformers.trainer_utils import HPSearchBackend

import anchorhold
from anchorhold.integrations.callbacks import STATE_NAME
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests.helpers import grouped
from tests.integrations import tiny

LENGTH = 6

SCRIPT = """
import sys
import anchorhold
assert "transformers" not in sys.modules and "accelerate" not in sys.modules
for package, module in (("transformers", "huggingface"), ("accelerate", "accelerate")):
    sys.modules[package] = None  # as if it were not installed
    try:
        __import__(f"anchorhold.integrations.{module}")
    except anchorhold.errors.MissingExtraError as error:
        print(error)
"""


def texts(rows=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, tiny.TOKENS, (rows, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def proxy(seed=9):
    return list(DataLoader(texts(8, seed), batch_size=4))


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**settings, **changes})


def train(folder, guard, model, *, data=None, callbacks=(), resume=None, at_end=False, **changes):
    trainer = Trainer(
        model,
        arguments(folder, **changes),
        train_dataset=data or texts(),
        data_collator=default_data_collator,
        callbacks=[AnchorholdCallback(guard, consolidate_at_end=at_end), *callbacks],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def model_without_dropout(**options):
    return tiny.gpt2(layers=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **options)


def guarded(measure, model=None, strength=50.0, **options):
    model = model or model_without_dropout()
    return model, anchorhold.Guard(model, measure, strength=strength, **grouped(**options))


class Seen(TrainerCallback):
    """Keeps what is logged."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, **kwargs):
        self.logs.append(dict(kwargs["logs"]))


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m)


def plain_loop(model, guard, trainer, accumulate=1, clip=1.0):
    """The same training without a Trainer: the same batches, AdamW, a linear schedule, clipping."""
    steps = trainer.args.max_steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=trainer.args.learning_rate, weight_decay=0.0)
    guard.attach(optimizer)
    torch.manual_seed(trainer.args.seed)
    batches = iter(trainer.get_train_dataloader())
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = trainer.args.learning_rate * (1 - step / steps)
        optimizer.zero_grad()
        parts = [next(batches) for _ in range(accumulate)]
        for part in parts:
            (model(**part).loss / accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


@pytest.mark.parametrize("measure", [anchorhold.SOS(), anchorhold.SI()], ids=["SOS", "SI"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_does_what_a_plain_loop_does(measure, accumulate, tmp_path):
    model, guard = guarded(anchorhold.Fisher(), watch=[measure])
    guard.consolidate(proxy())
    trainer = train(tmp_path, guard, model, gradient_accumulation_steps=accumulate, max_grad_norm=0.5)
    assert guard.gradients.path.steps == 4  # optimizer steps, not parts of batches
    other, reference = guarded(anchorhold.Fisher(), watch=[measure])
    reference.consolidate(proxy())
    plain_loop(other, reference, trainer, accumulate, clip=0.5)
    # Adam makes a step of its own out of the rounding where a gradient is 0, as it is for the keys' biases.
    assert_same(weights(model), weights(other), 1e-5)
    for state, tensors in reference.gradients.path.running[measure.name].items():
        assert_same(guard.gradients.path.running[measure.name][state], tensors, 1e-7)
    assert guard.penalty().item() == pytest.approx(reference.penalty().item(), rel=1e-4)


def test_a_model_is_protected_before_its_first_step(tmp_path):
    moved = {}
    for strength in (0.0, 1e4):
        model, guard = guarded(anchorhold.Fisher(labels="sampled", samples=8), strength=strength)
        guard.consolidate(proxy())
        before = weights(model)
        train(tmp_path, guard, model, max_steps=7)  # it is told after the eighth that this is too much
        omega = guard.importance
        moved[strength] = sum((omega[name] * (p - before[name]).square()).sum() for name, p in weights(model).items())
    assert moved[1e4] < 0.2 * moved[0.0]


@pytest.mark.parametrize(
    "changes",
    [{"bf16": True}, {"gradient_checkpointing": True}, {"optim": "adamw_torch_fused"}, {"optim": "adafactor"}],
    ids=["bf16", "checkpointing", "fused", "adafactor"],
)
def test_settings_of_the_trainer(changes, tmp_path):
    model, guard = guarded(anchorhold.SOS())
    train(tmp_path, guard, model, at_end=True, **changes)
    other, reference = guarded(anchorhold.SOS())
    same = {"optim": "adafactor"} if changes.get("optim") == "adafactor" else {}
    train(tmp_path, reference, other, at_end=True, **same)
    # bfloat16 has three digits; the others differ by rounding alone.
    tolerance = 5e-2 if "bf16" in changes else 1e-4
    for name, value in guard.importance.items():
        expected = reference.importance[name]
        assert (value - expected).norm() <= tolerance * expected.norm() + 1e-9, name
    assert guard.tasks == 1


def test_the_end_of_training_ends_the_task(tmp_path):
    given = proxy(5)
    for at_end, batches in ((True, None), (given, given)):
        model, guard = guarded(anchorhold.Fisher())
        trainer = train(tmp_path, guard, model, at_end=at_end)
        expected = anchorhold.Fisher().measure(model, batches or trainer.get_train_dataloader())
        assert_same(guard.importance, expected, 1e-5)
        assert_same(guard.anchor, weights(model))
    model, guard = guarded(anchorhold.SOS())
    train(tmp_path, guard, model)
    assert guard.tasks == 0
    train(tmp_path, guard, model, at_end=True)  # another Trainer, another optimizer, the same task
    assert guard.tasks == 1


def test_logs(tmp_path):
    model, guard = guarded(anchorhold.Fisher())
    guard.consolidate(proxy())
    seen = Seen()
    trainer = train(tmp_path, guard, model, callbacks=[seen])
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(history) == 4
    for logged in (history, seen.logs[:4]):
        penalties = [entry["anchorhold/penalty"] for entry in logged]
        assert penalties[-1] == pytest.approx(guard.penalty().item())
        assert len(set(penalties)) == 4
        everything = torch.cat([omega.flatten() for omega in guard.importance.values()])
        assert logged[0]["anchorhold/importance_mean"] == pytest.approx(everything.mean().item())
        assert logged[0]["anchorhold/importance_max"] == pytest.approx(everything.max().item())
        assert logged[0]["anchorhold/tasks"] == 1
    assert not any("anchorhold/penalty" in entry for entry in trainer.state.log_history if "loss" not in entry)
    json.dumps(trainer.state.log_history)


def test_trackers_see_the_logs_of_a_callback_that_comes_first(tmp_path):
    model, guard = guarded(anchorhold.Fisher())
    seen = Seen()
    trainer = Trainer(model, arguments(tmp_path), train_dataset=texts(), callbacks=[seen])
    trainer.callback_handler.callbacks.insert(0, AnchorholdCallback(guard))
    trainer.train()
    assert all("anchorhold/penalty" in entry for entry in seen.logs if "loss" in entry)
    assert len(seen.logs) > 4


class Interrupt(TrainerCallback):
    """Ends the process's work in the middle, after the checkpoint of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def test_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path):
    def start(folder, *, resume=None, callbacks=()):
        model, guard = guarded(anchorhold.Fisher(), tiny.gpt2(layers=1), watch=[anchorhold.SOS(), anchorhold.SI()])
        if resume is None:  # otherwise all comes from the checkpoint
            guard.consolidate(proxy())
        saving = {"save_strategy": "steps", "save_steps": 3}
        train(folder, guard, model, resume=resume, callbacks=callbacks, at_end=proxy(5), max_steps=6, **saving)
        return model, guard

    model, guard = start(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut", callbacks=[Interrupt(4)])
    resumed, restored = start(tmp_path / "cut", resume=True)
    assert_same(weights(resumed), weights(model))
    assert_same(restored.anchor, guard.anchor)
    for name in ("EWC", "SOS", "SI"):
        assert_same(restored.held.of(name), guard.held.of(name))
    assert restored.tasks == guard.tasks == 2


def test_a_checkpoint_without_the_guards_state_is_refused(tmp_path):
    model, guard = guarded(anchorhold.SOS())
    saving = {"save_strategy": "steps", "save_steps": 2}
    train(tmp_path / "a", guard, model, **saving)
    train(tmp_path / "b", *reversed(guarded(anchorhold.SOS())), data=texts(seed=5), **saving)
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "a" / "checkpoint-2", moved)
    shutil.copytree(tmp_path / "b" / "checkpoint-2", tmp_path / "a" / "checkpoint-2")
    model, guard = guarded(anchorhold.SOS())
    with pytest.raises(
        anchorhold.errors.StateError, match="resume_from_checkpoint"
    ):  # the other run's state is not taken
        train(tmp_path / "a", guard, model, resume=str(moved), **saving)
    assert guard.gradients.path.steps == 0
    train(tmp_path / "a", guard, model, resume=str(moved), resume_from_checkpoint=str(moved), **saving)
    assert guard.gradients.path.steps == 4
    (moved / STATE_NAME).unlink()
    with pytest.raises(anchorhold.errors.StateError, match="write a state into it"):
        train(tmp_path / "a", guard, model, resume=str(moved), resume_from_checkpoint=str(moved), **saving)


QUIET = {"save_strategy": "steps", "save_steps": 2, "logging_strategy": "no"}


def test_runs_without_logs_are_told_apart(tmp_path):
    for folder, seed in (("a", 0), ("b", 5)):
        train(tmp_path / folder, *reversed(guarded(anchorhold.SOS())), data=texts(seed=seed), **QUIET)
    model, guard = guarded(anchorhold.SOS())
    first = str(tmp_path / "a" / "checkpoint-2")
    with pytest.raises(anchorhold.errors.StateError, match=r"no guard's state of this run at .*b/checkpoint-2"):
        train(tmp_path / "b", guard, model, resume=first, **QUIET)
    with pytest.raises(
        anchorhold.errors.StateError, match="no guard's state of this run"
    ):  # another step of the right run
        train(tmp_path / "c", guard, model, resume=first, resume_from_checkpoint=first[:-1] + "4", **QUIET)
    assert guard.gradients.path.steps == 0
    same = [AnchorholdCallback(guard, consolidate_at_end=False)]  # one guard in two callbacks is resumed once
    train(tmp_path / "b", guard, model, resume=first, resume_from_checkpoint=first, callbacks=same, **QUIET)
    whole, expected = guarded(anchorhold.SOS())
    train(tmp_path / "c", expected, whole, **QUIET)
    assert_same(
        guard.gradients.path.running["SOS"]["second_moment"], expected.gradients.path.running["SOS"]["second_moment"]
    )
    # What was resumed from the one run and saved in the folder of the other goes on from there.
    model, guard = guarded(anchorhold.SOS())
    train(tmp_path / "b", guard, model, resume=True, max_steps=6, **QUIET)
    assert guard.gradients.path.steps == 6


def test_a_checkpoint_that_was_written_over_in_part_is_refused(tmp_path):
    train(tmp_path / "a", *reversed(guarded(anchorhold.SOS())), **QUIET)
    train(tmp_path / "b", *reversed(guarded(anchorhold.SOS())), **QUIET)
    shutil.copy(tmp_path / "a" / "checkpoint-4" / STATE_NAME, tmp_path / "b" / "checkpoint-4" / STATE_NAME)
    model, guard = guarded(anchorhold.SOS())
    with pytest.raises(anchorhold.errors.StateError, match=r"not that of the Trainer's state beside it"):
        train(tmp_path / "b", guard, model, resume=True, max_steps=6, **QUIET)
    assert guard.gradients.path.steps == 0


def test_a_checkpoint_without_a_guard_takes_a_state_that_is_written_into_it(tmp_path):
    model, guard = guarded(anchorhold.Fisher())
    guard.consolidate(proxy())
    guard.detach()  # this training is not held
    Trainer(model, arguments(tmp_path, **QUIET), train_dataset=texts()).train()
    checkpoint = tmp_path / "checkpoint-4"
    guard.save(checkpoint / STATE_NAME)
    model, restored = guarded(anchorhold.Fisher())
    with pytest.raises(anchorhold.errors.StateError, match="neither this callback's mark nor logs"):
        train(tmp_path, restored, model, resume=True, max_steps=6, **QUIET)
    train(tmp_path, restored, model, resume=True, max_steps=6, resume_from_checkpoint=str(checkpoint), **QUIET)
    assert_same(restored.importance, guard.importance)


class Stream(torch.utils.data.IterableDataset):
    """Texts without end."""

    def __iter__(self):
        yield from itertools.cycle(texts())


def test_training_data_without_end(tmp_path):
    model, guard = guarded(anchorhold.Fisher())
    with pytest.raises(
        anchorhold.errors.BatchError, match=r"EWC measures with all of the training data.*Fisher\(samples=500\)"
    ):
        train(tmp_path, guard, model, data=Stream(), at_end=True)
    assert guard.gradients.path.steps == 0  # told before training, not after it
    for measure, at_end in (
        (anchorhold.Fisher(samples=8), True),
        (anchorhold.SOS(), True),
        (anchorhold.Fisher(), proxy()),
    ):
        model, guard = guarded(measure)
        train(tmp_path, guard, model, data=Stream(), at_end=at_end)
        assert guard.tasks == 1


def test_what_would_fail_at_the_end_is_told_after_the_first_step(tmp_path):
    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            inputs = {"input_ids": inputs["tokens"], "labels": inputs["labels"]}
            return super().compute_loss(model, inputs, *args, **kwargs)

    renamed = [{"tokens": text["input_ids"], "labels": text["labels"]} for text in texts()]
    model, guard = guarded(anchorhold.Fisher(samples=8))

    def attempt(**options):
        trainer = OwnLoss(
            model,
            arguments(tmp_path, remove_unused_columns=False),
            train_dataset=renamed,
            data_collator=default_data_collator,
            callbacks=[AnchorholdCallback(guard, **options)],
        )
        trainer.train()
        return trainer

    with pytest.raises(ValueError, match="input_ids") as caught:
        attempt()
    notes = "".join(caught.value.__notes__)
    assert "stopped after its first step" in notes and "forward=" in notes and "consolidate_at_end=False" in notes
    assert guard.gradients.path.steps == 1
    with pytest.raises(ValueError, match="input_ids") as caught:  # what cannot be had beforehand is told at the end
        attempt(consolidate_at_end=(batch for batch in DataLoader(renamed, batch_size=4)))
    notes = "".join(caught.value.__notes__)
    assert "Training itself was over" in notes and "forward=" in notes
    with pytest.raises(ValueError, match="input_ids"):  # batches in a list, and a loader of one's own
        attempt(consolidate_at_end=[default_data_collator(renamed[:4])])
    with pytest.raises(ValueError, match="input_ids"):
        attempt(consolidate_at_end=DataLoader(renamed, batch_size=4))
    assert guard.gradients.path.steps == 7  # 1, 4, and 1 each
    guard.gradients.restart_task()

    def forward(model, inputs):
        return model(input_ids=inputs["tokens"]).logits

    trainer = attempt(forward=forward)
    assert guard.tasks == 1
    with pytest.raises(ValueError, match="input_ids"):  # what the error's note advises finds it out beforehand
        guard.rehearse(trainer.get_train_dataloader())
    guard.rehearse(trainer.get_train_dataloader(), forward=forward)
    for wrong in (texts()[0], None, torch.ones(2)):
        with pytest.raises(anchorhold.errors.BatchError, match="expected an iterable of batches"):
            AnchorholdCallback(guard, wrong)


def test_what_the_rehearsal_cannot_read_does_not_stop_training(tmp_path):
    def fours(rows):
        if len(rows) != 4:
            raise AssertionError("four at a time")
        return default_data_collator(rows)

    model, guard = guarded(anchorhold.Fisher())
    trainer = Trainer(
        model,
        arguments(tmp_path, per_device_train_batch_size=4),
        train_dataset=texts(),
        data_collator=fours,
        callbacks=[AnchorholdCallback(guard)],
    )
    trainer.train()
    assert guard.tasks == 1


def test_a_rehearsal_leaves_training_as_it_is(tmp_path):
    class Tearing:
        """Takes samples to pieces, and draws from random numbers of its own."""

        def __init__(self):
            self.generator = torch.Generator().manual_seed(0)

        def __call__(self, rows):
            ids = torch.stack([row.pop("input_ids") for row in rows])
            [row.pop("labels") for row in rows]
            masked = torch.rand(ids.shape, generator=self.generator) < 0.3
            return {"input_ids": ids, "labels": ids.masked_fill(masked, -100)}

    ends = []
    for at_end in (False, proxy()):
        for rehearsed in (at_end, DataLoader(proxy(), batch_size=None)):
            model, guard = guarded(anchorhold.Fisher(), tiny.gpt2(layers=1))  # with dropout
            Trainer(
                model,
                arguments(tmp_path, remove_unused_columns=False),
                train_dataset=texts(),
                data_collator=Tearing(),
                callbacks=[AnchorholdCallback(guard, at_end and rehearsed)],
            ).train()
            ends.append(weights(model))
    for other in ends[1:]:
        assert_same(other, ends[0])
    model, guard = guarded(anchorhold.Fisher(), tiny.gpt2(layers=1))
    trainer = Trainer(
        model,
        arguments(tmp_path, remove_unused_columns=False),
        train_dataset=texts(),
        data_collator=Tearing(),
        callbacks=[AnchorholdCallback(guard)],
    )
    with pytest.raises(KeyError, match="input_ids"):  # its own end, which reads what was torn: not the rehearsal
        trainer.train()
    assert guard.gradients.path.steps == 4
    assert_same(weights(model), ends[0])


def test_bf16_training_is_measured_in_float32(tmp_path):
    model, guard = guarded(anchorhold.Fisher())
    train(tmp_path, guard, model, at_end=proxy(), bf16=True)
    twin = model_without_dropout()
    twin.load_state_dict(model.state_dict())
    assert_same(guard.importance, anchorhold.Fisher().measure(twin, proxy()), 1e-7)


def test_another_model_than_the_guards_is_refused(tmp_path):
    _, guard = guarded(anchorhold.SOS())
    with pytest.raises(anchorhold.errors.OptimizerError, match="owns none"):
        train(tmp_path, guard, model_without_dropout())


def test_whoever_lacks_a_package_is_told_how_to_get_it():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'anchorhold[huggingface]'") == 2


def test_what_is_no_guard_and_two_of_them(tmp_path):
    model = tiny.gpt2()
    for wrong in (model, anchorhold.SOS, anchorhold.SOS(), None, lambda: None):
        with pytest.raises(anchorhold.errors.ConfigurationError, match=r"A guard of .*; expected a Guard"):
            AnchorholdCallback(wrong)
    first, second = (anchorhold.Guard(model, "SOS", protect=part) for part in ("*attn*", "*mlp*"))
    with pytest.raises(anchorhold.errors.ConfigurationError, match="two callbacks of type AnchorholdCallback"):
        train(tmp_path, first, model, callbacks=[AnchorholdCallback(second)])
    train(tmp_path, first, model)  # a train() of its own has no memory of that


def making(measure, strength=50.0, **options):
    """A callback that makes its guards, and the models that it has made them from."""
    made = []

    def make(model):
        made.append(model)
        return anchorhold.Guard(model, measure, strength=strength, **grouped(**options))

    return AnchorholdCallback(make), made


def test_a_guard_is_made_from_the_model_that_is_trained(tmp_path):
    callback, made = making(anchorhold.SOS())
    with pytest.raises(anchorhold.errors.OrderError, match="There is no guard yet"):
        callback.guard  # noqa: B018
    model = model_without_dropout()
    trainer = Trainer(model, arguments(tmp_path), train_dataset=texts(), callbacks=[callback])
    trainer.train()
    first = callback.guard
    assert made == [model] and first.tasks == 1
    trainer.train()  # the same model goes on with the same guard
    assert callback.guard is first and made == [model] and first.tasks == 2
    same, guard = guarded(anchorhold.SOS())
    train(tmp_path, guard, same, at_end=True).train()
    assert_same(first.importance, guard.importance)
    other = model_without_dropout()
    Trainer(other, arguments(tmp_path), train_dataset=texts(), callbacks=[callback]).train()
    assert callback.guard is not first and made == [model, other] and callback.guard.tasks == 1
    assert first.tasks == 2
    wrong = AnchorholdCallback(lambda model: model)
    trainer = Trainer(other, arguments(tmp_path), train_dataset=texts(), callbacks=[wrong])
    with pytest.raises(anchorhold.errors.ConfigurationError, match="A guard of type GPT2LMHeadModel"):
        trainer.train()


class Trial(dict):
    """What a backend of a search gives to each train()."""

    def __init__(self, number):
        self.number, self.params = number, self


def test_trials_of_a_search(tmp_path):
    def search(folder, **changes):
        callback, made = making(anchorhold.Fisher(), watch=[anchorhold.SI()])
        trainer = Trainer(
            model_init=lambda _: model_without_dropout(),
            args=arguments(folder, save_strategy="steps", save_steps=2, **changes),
            train_dataset=texts(),
            data_collator=default_data_collator,
            callbacks=[callback],
        )
        return trainer, callback, made

    trainer, callback, made = search(tmp_path)
    # As Trainer.hyperparameter_search() and its backend do.
    trainer.hp_search_backend = HPSearchBackend.OPTUNA
    trainer.hp_space = lambda trial: {"learning_rate": 10.0 ** -(2 + trial.number)}
    trainer.hp_name = None
    found = []
    for number in range(2):
        trainer.objective = None
        trainer.train(trial=Trial(number))
        found.append(callback.guard)
        assert (tmp_path / f"run-{number}" / "checkpoint-2" / STATE_NAME).is_file()
    assert len(made) == 2 and made[0] is not made[1]
    for number, guard in enumerate(found):
        assert guard.tasks == 1
        alone, its, _ = search(tmp_path / "alone", learning_rate=10.0 ** -(2 + number))
        alone.train()
        for name in ("EWC", "SI"):
            assert_same(guard.held.of(name), its.guard.held.of(name))


def test_a_guard_that_is_made_resumes(tmp_path):
    def start(folder, *, resume=None, callbacks=()):
        callback, _ = making(anchorhold.SOS(), watch=[anchorhold.SI()])
        trainer = Trainer(
            model_without_dropout(),
            arguments(folder, save_strategy="steps", save_steps=2),
            train_dataset=texts(),
            callbacks=[callback, *callbacks],
        )
        trainer.train(resume_from_checkpoint=resume)
        return callback.guard

    guard = start(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut", callbacks=[Interrupt(3)])
    resumed = start(tmp_path / "cut", resume=True)
    for name in ("SOS", "SI"):
        assert_same(resumed.held.of(name), guard.held.of(name))


def test_a_layerwise_optimizer_is_told_apart():
    model, guard = guarded(anchorhold.SOS())
    each = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}
    with pytest.raises(anchorhold.errors.OptimizerError, match=r"inside backward\(\).*optim='galore_adamw'"):
        guard.attach(LayerWiseDummyOptimizer(optimizer_dict=each))


class Normed(torch.nn.Module):
    """A classifier with batch norm, as a Trainer takes it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(tiny.TOKENS, 4)
        self.layer, self.norm, self.head = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.norm(self.layer(self.embedding(input_ids).mean(1))))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if loss is not None else logits


@pytest.mark.parametrize("batch_norm", ["freeze", "fold"])
def test_batch_norms_are_frozen_or_folded_without_further_calls(tmp_path, batch_norm):
    data = [{"input_ids": row["input_ids"], "labels": row["input_ids"][0] % 3} for row in texts()]
    model = Normed()
    model.norm.running_mean.uniform_()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm=batch_norm)
    guard.consolidate(list(DataLoader(data, batch_size=4)))
    before = model.norm.running_mean.clone()
    train(tmp_path, guard, model, data=data)
    assert torch.equal(model.norm.running_mean, before) == (batch_norm == "freeze")
    assert guard.state_dict().get("folded_norms") == ({"norm": "layer"} if batch_norm == "fold" else None)
