"""Tolerances, and what is lost of kept inputs, in every trainer."""

import csv

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader
from transformers import Trainer, default_data_collator

import anchorhold
from anchorhold import Tolerance
from anchorhold.integrations.accelerate import log_guard, prepare_guard
from anchorhold.integrations.callbacks import BestWithin, seen
from anchorhold.integrations.huggingface import AnchorholdCallback
from anchorhold.integrations.lightning import AnchorholdCallback as LightningCallback
from tests.integrations import test_accelerate, test_lightning
from tests.integrations.test_accelerate import settings_of_ones_own  # noqa: F401 (a fixture)
from tests.integrations.test_huggingface import Seen, arguments, model_without_dropout, proxy, texts, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
]

PREDICTED = "anchorhold/second_order_prediction"
LOGGED = {"anchorhold/kl", "anchorhold/kl_step", "anchorhold/kl/old", "anchorhold/strength"}


def of_text(nats=0.01, **options):
    """A language model and its guard, which keeps some old text."""
    model = model_without_dropout()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=Tolerance(nats, every=1, **options))
    guard.consolidate(proxy())
    guard.keep(list(DataLoader(texts(12, seed=40), batch_size=4)), "old")
    return model, guard


def trainer(folder, model, callbacks, **changes):
    settings = arguments(folder, **{"max_steps": 12, **changes})
    return Trainer(model, settings, train_dataset=texts(8, 5), data_collator=default_data_collator, callbacks=callbacks)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_trainer_logs_what_is_lost_and_ends_within_the_tolerance(tmp_path, at_end):
    model, guard = of_text(0.003, start=1e-4)
    seen = Seen()
    trainer(tmp_path, model, [AnchorholdCallback(guard, consolidate_at_end=at_end), seen]).train()
    logs = [log for log in seen.logs if "loss" in log]
    assert all(log.keys() >= LOGGED | {PREDICTED} for log in logs)
    assert logs[-1]["anchorhold/kl"] > 0.003
    assert 0.0025 < guard.retention().kl <= 0.003
    assert guard.tasks == 1 + at_end


def test_a_trainer_stops_where_too_much_is_lost(tmp_path):
    model, guard = of_text(1.0)
    callback = AnchorholdCallback(guard, consolidate_at_end=False, stop_at=0.01)
    run = trainer(tmp_path, model, [callback], max_steps=60)
    with pytest.warns(anchorhold.AnchorholdWarning) as told:
        run.train()
    assert "stop_at=0.01 with tolerance=1: " in str(told[0].message)
    assert f"Training stops at step {run.state.global_step} of the task: " in str(told[1].message)
    beyond = [point.step for point in guard.control.trace if point.kl > 0.01]
    assert run.state.global_step == beyond[2] < 60
    assert callback.stop.stopped_at == guard.control.trace[-1].kl > 0.01


def only_watched():
    """A language model that nothing holds, and a guard that watches what is lost."""
    model = model_without_dropout()
    guard = anchorhold.Guard(model, "fine-tune")
    guard.keep(list(DataLoader(texts(12, seed=40), batch_size=4)), "old")
    return model, guard


def evaluated(folder, limit, metric):
    """Train, ending with the best of six checkpoints by a metric; return what was lost at each and in the end."""
    model, guard = only_watched()
    data = texts(8, 5)
    often = dict.fromkeys(("eval_strategy", "save_strategy"), "steps") | {"eval_steps": 2, "save_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": metric}
    settings = arguments(folder, max_steps=12, **often, **best)
    callback = AnchorholdCallback(guard, consolidate_at_end=False, best_within=limit)
    lost = []

    class Losing(Seen):
        def on_evaluate(self, args, state, control, **kwargs):
            lost.append(guard.retention().kl)

    given = {"train_dataset": data, "eval_dataset": data, "data_collator": default_data_collator}
    run = Trainer(model, settings, callbacks=[callback, Losing()], **given)
    run.train()
    return lost, guard.retention().kl, [log for log in run.state.log_history if "eval_loss" in log]


def test_a_trainer_ends_with_the_best_checkpoint_that_has_lost_little(tmp_path):
    lost, end, _ = evaluated(tmp_path / "loss", None, "eval_loss")
    assert end == pytest.approx(lost[-1])  # by the loss alone, the one that has lost most
    limit = (lost[2] + lost[3]) / 2
    _, end, logs = evaluated(tmp_path / "within", limit, "eval_within_loss")
    assert end == pytest.approx(lost[2])
    assert [log["eval_within_loss"] == log["eval_loss"] for log in logs] == [True] * 3 + [False] * 3
    assert logs[-1]["eval_within_loss"] == pytest.approx(1e3 + lost[-1], rel=1e-9)


def test_where_no_checkpoint_has_lost_little_the_least_lost_is_best_and_that_is_told(tmp_path):
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"No evaluation was within best_within=1e-09: .* had lost least"
    ):
        lost, end, _ = evaluated(tmp_path, 1e-9, "eval_within_loss")
    assert end == pytest.approx(min(lost))


def test_scores_of_evaluations_order_them_whatever_their_metrics_are():
    _, guard = only_watched()
    best = BestWithin(0.1)
    odd = {"eval_loss": 2e6, "aux_loss": None, "classes_loss": torch.ones(2), "eval_runtime": 1.0}
    assert best.scores(odd, guard) == {"eval_within_loss": 2e6}  # nothing is lost yet
    assert best.scores({"eval_loss": float("nan")}, guard) == {"eval_within_loss": float("inf")}
    with torch.no_grad():
        for parameter in guard.parameters.values():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    lost = guard.retention().kl
    assert lost > 0.1
    assert best.scores({"eval_loss": 2e6}, guard)["eval_within_loss"] > 2e6
    assert best.scores({"eval_loss": 3.0}, guard)["eval_within_loss"] == 1000 + lost
    assert BestWithin(None).scores(odd, guard) == {}


def test_a_search_that_does_not_see_what_is_lost_is_told_of(tmp_path):
    often = dict.fromkeys(("eval_strategy", "save_strategy"), "steps") | {"eval_steps": 2, "save_steps": 2}
    model, guard = only_watched()
    settings = arguments(tmp_path, max_steps=2, load_best_model_at_end=True, **often)
    given = {"train_dataset": texts(8, 5), "eval_dataset": texts(8, 5), "data_collator": default_data_collator}
    callback = AnchorholdCallback(guard, consolidate_at_end=False, best_within=10.0)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"compared by 'loss', which knows nothing of what is lost"):
        Trainer(model, settings, callbacks=[callback], **given).train()
    settings.metric_for_best_model, settings.greater_is_better = "eval_within_loss", True
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"greater_is_better=True with .* has lost most would be"
    ):
        Trainer(model, settings, callbacks=[callback], **given).train()


LIMITS = ("stop_at", "best_within")


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("limit", [0, -1, float("nan"), "x"])
def test_a_limit_that_is_none_is_refused(limit, name):
    _, guard = of_text()
    for kind in (AnchorholdCallback, LightningCallback):
        with pytest.raises(
            anchorhold.errors.ConfigurationError, match=rf"{name}=.*: expected a number of nats above 0"
        ):
            kind(guard, **{name: limit})


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_without_kept_inputs_is_refused(tmp_path, name):
    model, guard = of_text()
    guard.kept.drop("old")
    with pytest.raises(anchorhold.errors.OrderError, match=rf"{name}=0.1 and no inputs to measure it on"):
        trainer(tmp_path, model, [AnchorholdCallback(guard, **{name: 0.1})]).train()


def test_a_resumed_trainer_goes_on_with_the_controls_state(tmp_path):
    """A script that is started again keeps its inputs with the model of before, and then resumes."""
    ends = []
    for folder in ("whole", "parts"):
        model, guard = of_text()
        run = trainer(tmp_path / folder, model, [AnchorholdCallback(guard, False)], save_strategy="steps", save_steps=5)
        run.train()
        if folder == "parts":
            model, guard = of_text()
            run = trainer(tmp_path / folder, model, [AnchorholdCallback(guard, False)])
            run.train(resume_from_checkpoint=str(tmp_path / folder / "checkpoint-5"))
        ends.append((weights(model), guard.strength, guard.control.trace))
    assert ends[0][1:] == ends[1][1:]
    for name, value in ends[0][0].items():
        assert torch.equal(value, ends[1][0][name]), name


def of_module(nats, **options):
    module = test_lightning.make_module()
    guard = anchorhold.Guard(module, anchorhold.Fisher(), tolerance=Tolerance(nats, every=1, **options))
    guard.consolidate(test_lightning.loader(0))
    guard.keep(test_lightning.loader(7), "old")
    return module, guard


def changed(seed):
    """A loader of another task."""
    x, y = test_lightning.loader(seed).dataset.tensors
    return DataLoader(torch.utils.data.TensorDataset(x, (y + 1) % 3), batch_size=4)


@pytest.mark.parametrize("at_end", [True, False])
def test_lightning_logs_what_is_lost_and_ends_within_the_tolerance(tmp_path, at_end):
    module, guard = of_module(0.005, start=1e-4)
    callback = LightningCallback(guard, consolidate_at_end=at_end)
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    test_lightning.trainer(callbacks=[callback], logger=logger, log_every_n_steps=2).fit(module, changed(1))
    with (tmp_path / "lightning_logs/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() >= LOGGED | {PREDICTED}
    assert float(rows[1]["anchorhold/kl"]) > 0
    assert 0.004 < guard.retention().kl <= 0.005
    assert guard.tasks == 1 + at_end


def test_lightning_stops_where_too_much_is_lost():
    module, guard = of_module(1.0)
    callback = LightningCallback(guard, consolidate_at_end=False, stop_at=0.002)
    fit = test_lightning.trainer(callbacks=[callback], max_epochs=20, min_epochs=0)
    with pytest.warns(anchorhold.AnchorholdWarning) as told:
        fit.fit(module, changed(1))
    own = [str(each.message) for each in told if each.category is anchorhold.AnchorholdWarning]
    assert [message[:16] for message in own] == ["stop_at=0.002 wi", "Training stops a"]
    assert callback.stop.stopped_at is not None
    assert fit.global_step == guard.control.trace[-1].step < 20 * 6


def test_lightning_keeps_the_best_checkpoint_that_has_lost_little(tmp_path):
    """Validation is the same data as training, so that by the loss alone the last epoch is best."""

    def fitted(folder, monitor, limit):
        module, guard = of_module(1.0)
        lost = []

        class Losing(Callback):
            def on_validation_end(self, trainer, pl_module):
                if not trainer.sanity_checking:
                    lost.append(guard.retention().kl)

        best = ModelCheckpoint(folder, monitor=monitor, filename="{epoch}")
        callback = LightningCallback(guard, consolidate_at_end=False, best_within=limit)
        fit = test_lightning.trainer(callbacks=[callback, Losing(), best], max_epochs=5, enable_checkpointing=True)
        module.validation_step = lambda batch: module.log("val_loss", test_lightning.loss_of(module, batch))
        fit.fit(module, changed(1), changed(1))
        return lost, best.best_model_path

    lost, chosen = fitted(tmp_path / "loss", "val_loss", None)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"No evaluation was within best_within=1e-08"):
        assert "epoch=0" in fitted(tmp_path / "none", "val_within_loss", 1e-8)[1]
    assert "epoch=4" in chosen
    _, chosen = fitted(tmp_path / "within", "val_within_loss", (lost[1] + lost[2]) / 2)
    assert "epoch=1" in chosen


def test_a_loss_that_lightning_is_told_too_late_is_refused(tmp_path):
    """What the module logs in its own hook comes after callbacks, which would see the validation before."""
    module, guard = of_module(1.0)
    module.validation_step = lambda batch: None
    module.on_validation_epoch_end = lambda: module.log("val_loss", torch.ones(()))
    callback = LightningCallback(guard, consolidate_at_end=False, best_within=0.1)
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"no loss was logged before callbacks look at it"):
        test_lightning.trainer(callbacks=[callback]).fit(module, changed(1), changed(1))


def test_an_accelerators_trackers_and_tensorboard_see_it(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run")
    model = test_accelerate.net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = DataLoader(test_accelerate.data(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, data)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), tolerance=Tolerance(0.01, every=1))
    guard.consolidate([test_accelerate.data().tensors])
    guard.keep([test_accelerate.data(16).tensors[0] + 1], "old")
    prepare_guard(accelerator, guard, optimizer)
    test_accelerate.epoch(accelerator, model, optimizer, loader)
    log_guard(accelerator, guard, step=4)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= LOGGED | {PREDICTED}
    assert events.Scalars(PREDICTED)[0].value == pytest.approx(guard.control.trace[-1].predicted)
    assert events.Scalars("anchorhold/kl")[0].value == pytest.approx(guard.control.trace[-1].kl)


def test_a_prediction_is_logged_of_the_look_that_it_was_made_at_alone():
    model, guard = of_text(0.05)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    guard.attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(**next(iter(DataLoader(texts(4, 5), batch_size=4)))).loss.backward()
        optimizer.step()
    assert seen(guard)[PREDICTED] == guard.control.trace[-1].predicted > 0
    guard.pull_back(0.5 * guard.retention().kl)
    assert PREDICTED not in seen(guard)  # which was of the weights before they went back
    assert seen(guard)["anchorhold/kl"] == pytest.approx(guard.retention().kl)
