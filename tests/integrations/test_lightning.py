"""Lightning's loop, watched, against the plain loop that does the same steps."""

import csv
import subprocess
import sys
from functools import partial
from pathlib import Path

import lightning.pytorch as lightning_pytorch
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.multiprocessing import ProcessRaisedException
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.integrations.lightning import AnchorholdCallback
from tests import helpers
from tests.docs.pages import run_page
from tests.helpers import grouped

pytestmark = [
    # Advice that Lightning gives about small data and about its own next version.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

MEASURES = {"SI": anchorhold.SI(damping=0.01), "SOS": anchorhold.SOS(), "EWC": anchorhold.Fisher()}
network = partial(helpers.network, 4, 6, 3, dtype=torch.float32)


def loader(seed, n=24):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()), batch_size=4)


def loss_of(net, batch):
    return nn.functional.cross_entropy(net(batch[0]).float(), batch[1])


def make_module(package=lightning_pytorch, **options):
    """A LightningModule of either package, as its users write them."""

    class Module(package.LightningModule):
        def __init__(self, fused=False):
            super().__init__()
            self.net = network()
            self.fused = fused

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            return loss_of(self, batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02, fused=self.fused)

    return Module(**options)


def trainer(package=lightning_pytorch, **options):
    settings = {
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    return package.Trainer(**{**settings, **options})


def plain_loop(net, guard, batches, *, epochs=2, accumulate=1, clip=None, dtype=None, scale=None, fused=False):
    """The same task in one's own loop."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02, fused=fused)
    guard.detach()
    guard.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    for _ in range(epochs):
        for i, batch in enumerate(batches):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = loss_of(net, batch) / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0:
                if clip is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    guard.consolidate(batches)


def assert_same(module, guard, net, plain, rtol=1e-5, atol=1e-7):
    assert guard.tasks == plain.tasks
    for name, value in net.named_parameters():
        torch.testing.assert_close(module.net.get_parameter(name), value, rtol=rtol, atol=atol)
        torch.testing.assert_close(guard.anchor[f"net.{name}"], plain.anchor[name], rtol=rtol, atol=atol)
        torch.testing.assert_close(guard.importance[f"net.{name}"], plain.importance[name], rtol=rtol, atol=atol)


def test_a_fit_that_trains_nothing_is_told_of():
    """A Trainer that has reached its max_epochs does nothing in its next fit, and does not say so."""
    module = make_module()
    guard = anchorhold.Guard(module, anchorhold.SOS(), strength=1.0, from_scratch=True)
    fit = trainer(max_epochs=1, callbacks=[AnchorholdCallback(guard)])
    fit.fit(module, loader(1))
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"fit\(\) took no step.*epoch 1 of max_epochs=1.*new Trainer"
    ):
        fit.fit(module, loader(2))
    assert guard.tasks == 1


@pytest.mark.parametrize("package", [lightning_pytorch, pytorch_lightning], ids=["lightning", "pytorch_lightning"])
@pytest.mark.parametrize("name", MEASURES)
def test_two_tasks_with_accumulation_and_clipping(name, package):
    module, net = make_module(package), network()
    guard = anchorhold.Guard(module, MEASURES[name], strength=3.0)
    plain = anchorhold.Guard(net, MEASURES[name], strength=3.0)
    fit = trainer(package, accumulate_grad_batches=2, gradient_clip_val=0.3, callbacks=[AnchorholdCallback(guard)])
    for task in (1, 2):
        fit.fit_loop.max_epochs = 2 * task
        fit.fit(module, loader(task))
        plain_loop(net, plain, loader(task), accumulate=2, clip=0.3)
    assert guard.tasks == 2
    assert_same(module, guard, net, plain)


@pytest.mark.parametrize(("precision", "fused"), [("bf16-mixed", False), ("16-mixed", False), ("16-mixed", True)])
def test_mixed_precision(precision, fused):
    """What Lightning does with autocast and the scaler, against the same by hand."""
    half = precision == "16-mixed"
    module, net = make_module(fused=fused), network()
    guard = anchorhold.Guard(module, anchorhold.SI(), strength=3.0, watch=["SOS"])
    plain = anchorhold.Guard(net, anchorhold.SI(), strength=3.0, watch=["SOS"])
    if half:
        plugin = lightning_pytorch.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
        fit = trainer(plugins=[plugin], callbacks=[AnchorholdCallback(guard)])
    else:
        fit = trainer(precision=precision, callbacks=[AnchorholdCallback(guard)])
    fit.fit(module, loader(1))
    dtype = torch.float16 if half else torch.bfloat16
    plain_loop(net, plain, loader(1), dtype=dtype, scale=2.0**16 if half else None, fused=fused)
    assert_same(module, guard, net, plain, rtol=1e-4, atol=1e-6)


def test_manual_optimisation_with_several_optimizers():
    class Manual(lightning_pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = network()
            self.critic = nn.Linear(3, 1)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            *of_net, of_critic = self.optimizers()
            for optimizer in of_net:
                optimizer.zero_grad()
            self.manual_backward(loss_of(self, batch))
            for optimizer in of_net:
                optimizer.step()
            of_critic.zero_grad()
            self.manual_backward(self.critic(self.net(batch[0]).detach()).square().mean())
            of_critic.step()

        def configure_optimizers(self):
            trained = (self.net[0], self.net[2], self.critic)
            return [torch.optim.Adam(part.parameters(), lr=0.02) for part in trained]

    module, net = Manual(), network()
    guard = anchorhold.Guard(module, anchorhold.SI(), strength=3.0, protect="net.*")
    plain = anchorhold.Guard(net, anchorhold.SI(), strength=3.0)
    fit = trainer(callbacks=[AnchorholdCallback(guard)])
    for task in (1, 2):
        fit.fit_loop.max_epochs = 2 * task
        fit.fit(module, loader(task))
        plain_loop(net, plain, loader(task))
    assert_same(module, guard, net, plain)


@pytest.mark.parametrize("name", MEASURES)
def test_a_fit_resumed_in_the_middle_of_a_task_ends_as_if_it_had_not_stopped(name, tmp_path):
    def second_task(module, guard, epochs, **options):
        keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        fit = trainer(max_epochs=epochs, enable_checkpointing=True, callbacks=[AnchorholdCallback(guard), keep])
        fit.fit(module, loader(2), **options)

    def after_first_task():
        module = make_module()
        guard = anchorhold.Guard(module, MEASURES[name], strength=3.0)
        trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, loader(1))
        return module, guard

    whole, whole_guard = after_first_task()
    second_task(whole, whole_guard, 3)
    resumed = make_module()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.zero_()  # all that it knows comes from the checkpoint
    guard = anchorhold.Guard(resumed, MEASURES[name], strength=3.0)
    second_task(resumed, guard, 3, ckpt_path=tmp_path / "epoch=0.ckpt", weights_only=True)
    assert guard.tasks == whole_guard.tasks == 2
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key
    expected, found = whole_guard.state_dict(), guard.state_dict()
    assert {k: v for k, v in found.items() if k != "tensors"} == {k: v for k, v in expected.items() if k != "tensors"}
    for key, value in expected["tensors"].items():
        assert torch.equal(found["tensors"][key], value), key


def test_a_checkpoint_of_a_finished_fit_is_no_new_task(tmp_path):
    module = make_module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    fit = trainer(callbacks=[AnchorholdCallback(guard)])
    fit.fit(module, loader(1))
    fit.save_checkpoint(tmp_path / "end.ckpt")
    again = make_module()
    other = anchorhold.Guard(again, anchorhold.Fisher())
    trainer(callbacks=[AnchorholdCallback(other)]).fit(again, loader(1), ckpt_path=tmp_path / "end.ckpt")
    assert other.tasks == 1
    assert torch.equal(other.importance["net.0.weight"], guard.importance["net.0.weight"])


def test_a_checkpoint_without_the_guard_is_noticed(tmp_path):
    fit = trainer(max_epochs=1)
    fit.fit(make_module(), loader(1))
    fit.save_checkpoint(tmp_path / "bare.ckpt")
    module = make_module()
    callback = AnchorholdCallback(anchorhold.Guard(module, anchorhold.SOS()))
    with pytest.warns(anchorhold.AnchorholdWarning, match="without this callback"):
        trainer(callbacks=[callback]).fit(module, loader(1), ckpt_path=tmp_path / "bare.ckpt")


def test_a_checkpoint_that_is_only_evaluated_leaves_the_guard_as_it_is(tmp_path):
    """The best checkpoint of a fit is from before the task was consolidated."""
    module = make_module()
    module.test_step = lambda batch, batch_idx: None
    guard = anchorhold.Guard(module, anchorhold.SOS())
    callback = AnchorholdCallback(guard)
    options = {"enable_checkpointing": True, "callbacks": [callback, ModelCheckpoint(tmp_path, filename="best")]}
    fit = trainer(max_epochs=1, **options)
    fit.fit(module, loader(1))
    best = tmp_path / "best.ckpt"
    fit.test(module, loader(1), ckpt_path=best, verbose=False)
    assert guard.tasks == 1
    assert guard.gradients.path.steps == 0
    callback.consolidate_at_end = False
    trainer(max_epochs=2, **options).fit(module, loader(1), ckpt_path=best)
    assert guard.tasks == 0  # the task goes on where the checkpoint left it
    assert guard.gradients.path.steps == 12


def test_what_is_logged(tmp_path):
    module = make_module()
    guard = anchorhold.Guard(module, anchorhold.L2(), strength=2.0)
    guard.consolidate()
    penalties = []

    class Witness(lightning_pytorch.Callback):
        def on_train_batch_end(self, *_):
            penalties.append(guard.penalty().item())

    log = CSVLogger(tmp_path)
    fit = trainer(max_epochs=1, logger=log, log_every_n_steps=2, callbacks=[AnchorholdCallback(guard), Witness()])
    fit.fit(module, loader(1))
    with (Path(log.log_dir) / "metrics.csv").open(encoding="utf-8") as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    assert [row["anchorhold/penalty"] for row in rows[:3]] == pytest.approx(penalties[1::2])
    assert rows[-1] == {
        "step": 6,
        "anchorhold/penalty": 0.0,  # the anchor is where the task has ended
        "anchorhold/importance_mean": 1.0,
        "anchorhold/importance_max": 1.0,
        "anchorhold/tasks": 2.0,
    }
    assert float(fit.callback_metrics["anchorhold/penalty"]) == pytest.approx(penalties[-1])


def test_tasks_that_end_within_a_fit_and_batches_of_another_form():
    class Dictionary(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            x, y = loader(1).dataset[i]
            return {"pixels": x, "label": y}

    class Module(lightning_pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return {**batch, "pixels": batch["pixels"] + 1}

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return {**batch, "pixels": batch["pixels"] * 2}

        def training_step(self, batch, batch_idx):
            return loss_of(self.net, (batch["pixels"], batch["label"]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_epoch_end(self):
            found.append(callback.consolidate(self.trainer)["EWC"])

    found = []
    module = Module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    callback = AnchorholdCallback(
        guard,
        consolidate_at_end=False,
        prepare=lambda batch: (batch["pixels"], batch["label"]),
        forward=lambda module, pixels: module.net(pixels),
    )
    trainer(callbacks=[callback]).fit(module, DataLoader(Dictionary(), batch_size=4))
    assert guard.tasks == 2
    expected = anchorhold.Fisher().measure(
        module.net, [2 * (x + 1) for x in loader(1).dataset.tensors[0][:16].split(4)]
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[-1].importance[f"net.{name}"], value)


def test_data_that_cannot_be_measured_with_is_refused_after_the_first_batch():
    class Module(type(make_module())):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch.pop(0)[:, :4], batch.pop(0)), batch_idx)

    x, y = loader(1).dataset.tensors
    wide = DataLoader(TensorDataset(torch.cat([x, x], 1), y), batch_size=4)  # the training step takes what it needs
    module = Module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    fit = trainer(callbacks=[AnchorholdCallback(guard)])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        fit.fit(module, wide)
    assert fit.global_step == 1 and guard.tasks == 0
    notes = "".join(caught.value.__notes__)
    assert "After the first batch" in notes and "prepare=" in notes

    def prepare(batch):  # as careless as the training step
        return batch.pop(0)[:, :4], batch.pop(0)

    module = Module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    trainer(callbacks=[AnchorholdCallback(guard, prepare=prepare)]).fit(module, wide)
    assert guard.tasks == 1


def test_what_the_first_training_step_sets_up_is_there_for_the_rehearsal():
    class Module(type(make_module())):
        scale = None

        def training_step(self, batch, batch_idx):
            self.scale = 1.0
            return super().training_step(batch, batch_idx)

        def forward(self, x):
            return self.net(x * self.scale)

    module = Module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, loader(1))
    assert guard.tasks == 1


def test_what_fails_at_the_end_says_that_training_is_done():
    module = make_module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    for wrong, error in (([torch.randn(4, 9)], RuntimeError), ([], anchorhold.errors.BatchError)):
        with pytest.raises(error) as caught:
            trainer(callbacks=[AnchorholdCallback(guard, wrong)]).fit(module, loader(1))
        assert "Training itself was over" in "".join(caught.value.__notes__)
    for wrong in (next(iter(loader(1))), loader(1).dataset, None):
        with pytest.raises(anchorhold.errors.BatchError, match="expected"):
            AnchorholdCallback(guard, wrong)


def test_a_rehearsal_leaves_training_as_it_was():
    found = []
    for measure in (anchorhold.SOS(), anchorhold.Fisher()):
        torch.manual_seed(5)
        module = make_module()
        guard = anchorhold.Guard(module, measure, strength=0.0)
        torch.manual_seed(5)
        shuffled = DataLoader(loader(1).dataset, batch_size=4, shuffle=True)
        trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, shuffled)
        found.append(module.state_dict())
    assert all(torch.equal(found[0][name], value) for name, value in found[1].items())


def test_an_independent_gradient_from_the_training_step():
    class Module(type(make_module())):
        def training_step(self, batch, batch_idx):
            x, y = batch
            guard.gradients.independent(loss_of(self, (x[2:], y[2:])))
            return loss_of(self, (x[:2], y[:2]))

    module = Module()
    guard = anchorhold.Guard(module, anchorhold.SIU())
    trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, loader(1))
    net = network()
    plain = anchorhold.Guard(net, anchorhold.SIU())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    plain.attach(optimizer)
    for _ in range(2):
        for x, y in loader(1):
            optimizer.zero_grad()
            plain.gradients.independent(loss_of(net, (x[2:], y[2:])))
            loss_of(net, (x[:2], y[:2])).backward()
            optimizer.step()
    plain.consolidate()
    assert_same(module, guard, net, plain)


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None.")
def test_a_batch_that_the_training_step_skips_is_no_step():
    class Module(type(make_module())):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 2 else loss_of(self, batch)

    module, net = Module(), network()
    guard = anchorhold.Guard(module, anchorhold.SI(), strength=3.0, watch=["SOS"])
    plain = anchorhold.Guard(net, anchorhold.SI(), strength=3.0, watch=["SOS"])
    fit = trainer(callbacks=[AnchorholdCallback(guard)])
    for task in (1, 2):
        fit.fit_loop.max_epochs = 2 * task
        fit.fit(module, loader(task))
        plain_loop(net, plain, list(loader(task))[::2])
    assert_same(module, guard, net, plain)
    torch.testing.assert_close(guard.held.of("SOS")["net.0.weight"], plain.held.of("SOS")["0.weight"])


def test_a_module_that_is_built_when_training_starts(tmp_path):
    class Late(type(make_module())):
        def __init__(self):
            super().__init__()
            del self.net

        def configure_model(self):
            if not hasattr(self, "net"):
                self.net = network()

    def make_guard(module):
        return anchorhold.Guard(module, anchorhold.SOS(), strength=3.0)

    callback = AnchorholdCallback(make_guard)
    with pytest.raises(anchorhold.errors.OrderError, match="no guard yet"):
        _ = callback.guard
    fit = trainer(callbacks=[callback])
    fit.fit(Late(), loader(1))
    fit.save_checkpoint(tmp_path / "end.ckpt")
    again = AnchorholdCallback(make_guard)
    trainer(max_epochs=3, callbacks=[again]).fit(Late(), loader(2), ckpt_path=tmp_path / "end.ckpt")
    assert again.guard.tasks == 2


def test_the_average_is_consolidated_when_it_is_what_the_fit_leaves():
    module = make_module()
    guard = anchorhold.Guard(module, anchorhold.SOS())
    trainer(callbacks=[EMAWeightAveraging(decay=0.5), AnchorholdCallback(guard)]).fit(module, loader(1))
    for name, value in module.named_parameters():
        assert torch.equal(guard.anchor[name], value)


def test_mistakes_are_explained():
    two = _TwoLoaders()
    callback = AnchorholdCallback(anchorhold.Guard(two, anchorhold.Fisher()))
    with pytest.raises(anchorhold.errors.BatchError, match=r"dict of training DataLoaders.*consolidate_at_end=batches"):
        trainer(callbacks=[callback]).fit(two, {"a": loader(1), "b": loader(2)})
    stranger = AnchorholdCallback(anchorhold.Guard(network(), anchorhold.SOS()))
    with pytest.raises(anchorhold.errors.OptimizerError, match="owns none"):
        trainer(callbacks=[stranger]).fit(make_module(), loader(1))
    module = make_module()
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match="A guard of the class SOS; expected a Guard, guard ="
    ):
        AnchorholdCallback(anchorhold.SOS)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="A guard of type function; expected"):
        AnchorholdCallback(lambda: anchorhold.Guard(module, anchorhold.SOS()))
    for given in (module, anchorhold.SOS(), "SOS"):
        with pytest.raises(
            anchorhold.errors.ConfigurationError, match=rf"A guard of type {type(given).__name__}; expected a Guard,"
        ):
            AnchorholdCallback(given)
    with pytest.raises(anchorhold.errors.ConfigurationError, match="A guard of type NoneType"):
        trainer(callbacks=[AnchorholdCallback(lambda module: None)]).fit(module, loader(1))
    callback = AnchorholdCallback(anchorhold.Guard(module, anchorhold.Fisher()))
    with pytest.raises(anchorhold.errors.OrderError, match="has not met its module yet"):
        callback.consolidate(trainer(callbacks=[callback]), loader(1))
    with pytest.raises(anchorhold.errors.ConfigurationError, match="given a DataLoader as the trainer"):
        callback.consolidate(loader(1))


def test_no_more_batches_are_measured_than_were_trained_with():
    module = make_module()
    guard = anchorhold.Guard(module, anchorhold.Fisher())
    callback = AnchorholdCallback(guard, consolidate_at_end=False)
    fit = trainer(callbacks=[callback], limit_train_batches=2)
    fit.fit(module, loader(1))
    assert callback.consolidate(fit)["EWC"].samples == 8
    assert callback.consolidate(fit, loader(1))["EWC"].samples == 24


def test_training_is_not_disturbed_by_a_guard_that_holds_nothing_yet():
    """A DataLoader draws from the random state each time that somebody starts to read it."""

    def fitted(with_guard):
        module = make_module()
        guard = anchorhold.Guard(module, anchorhold.Fisher())
        torch.manual_seed(3)
        shuffled = DataLoader(loader(1).dataset, batch_size=4, shuffle=True)
        trainer(callbacks=[AnchorholdCallback(guard)] if with_guard else []).fit(module, shuffled)
        return module.net[0].weight

    assert torch.equal(fitted(with_guard=True), fitted(with_guard=False))


class Stream(torch.utils.data.IterableDataset):
    """Data that never end."""

    def __iter__(self):
        while True:
            yield from loader(1).dataset


@pytest.mark.parametrize(
    ("measure", "options", "samples"),
    [(anchorhold.Fisher(samples=10), {}, 10), (anchorhold.Fisher(), {"limit_train_batches": 3}, 12)],
)
def test_a_stream_without_end_is_measured_as_far_as_was_said(measure, options, samples):
    module = make_module()
    guard = anchorhold.Guard(module, measure)
    callback = AnchorholdCallback(guard, consolidate_at_end=False)
    fit = trainer(callbacks=[callback], max_steps=4, **options)
    fit.fit(module, DataLoader(Stream(), batch_size=4))
    assert callback.consolidate(fit)["EWC"].samples == samples


@pytest.mark.parametrize(
    ("settings", "whose"),
    [({"watch": ["EWC"]}, "EWC"), ({"anchor": "mean", "gradient_term": True}, "gradient_term=True")],
)
def test_a_stream_without_end_is_refused_before_training(settings, whose):
    module = make_module()
    before = module.net[0].weight.detach().clone()
    callback = AnchorholdCallback(anchorhold.Guard(module, anchorhold.SOS(), **grouped(**settings)))
    with pytest.raises(
        anchorhold.errors.BatchError, match=f"{whose} measures with all of the training data, which has no"
    ):
        trainer(callbacks=[callback], max_steps=4).fit(module, DataLoader(Stream(), batch_size=4))
    assert torch.equal(module.net[0].weight, before)


@pytest.mark.parametrize("strategy", ["ddp_notebook", "ddp_spawn"])
def test_fits_in_other_processes_are_refused(strategy):
    """Their guard would be another one, and end with them."""
    module = _TwoLoaders()
    guard = anchorhold.Guard(module, anchorhold.SOS(), protect="*")
    fit = trainer(strategy=strategy, devices=1, callbacks=[AnchorholdCallback(guard)])
    # A forked process has its error told by torch, with its text.
    with pytest.raises((anchorhold.errors.ConfigurationError, ProcessRaisedException), match=r"Use strategy='ddp'"):
        fit.fit(module, {"a": loader(1)})


class _TwoLoaders(lightning_pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, batch_idx):
        return loss_of(self.net, batch["a"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


MISSING = """
import sys
import anchorhold
assert "lightning" not in sys.modules and "pytorch_lightning" not in sys.modules
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None  # as if they were not installed
try:
    import anchorhold.integrations.lightning
except anchorhold.errors.MissingExtraError as error:
    print(error)
"""


def test_whoever_lacks_lightning_is_told_how_to_get_it():
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    assert "pip install 'anchorhold[lightning]'" in done.stdout


def test_the_page():
    assert run_page("guides/lightning.md")["guard"].tasks == 1


EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_fit.py"


@pytest.mark.nightly
def test_the_example_forgets_less_with_the_lines_that_it_marks(capsys):
    """Run as it stands, and again without the lines that anchorhold adds."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    bare = [line for line in lines if not line.endswith("# anchorhold")]
    assert 0 < len(lines) - len(bare) < 10

    def first_task_in_the_end(source):
        exec(compile("\n".join(source), EXAMPLE.name, "exec"), {"__name__": "__main__"})
        return [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()][2]

    assert first_task_in_the_end(lines) > 0.85
    assert first_task_in_the_end(bare) < 0.75


class Normed(lightning_pytorch.LightningModule):
    """A module with batch norm, and with validation, which puts modes back by its own way."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return loss_of(self, batch)

    def validation_step(self, batch, batch_idx):
        assert not self.training

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


@pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode at the start of training")
@pytest.mark.parametrize("batch_norm", ["freeze", "fold"])
def test_batch_norms_are_frozen_or_folded_without_further_calls(batch_norm):
    module = Normed()
    guard = anchorhold.Guard(module, anchorhold.Fisher(), from_scratch=True, batch_norm=batch_norm)
    trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, loader(1), loader(3))
    before = module.net[1].running_mean.clone()
    assert bool(before.any())
    trainer(callbacks=[AnchorholdCallback(guard)]).fit(module, loader(2), loader(3))
    assert torch.equal(module.net[1].running_mean, before) == (batch_norm == "freeze")
    assert guard.state_dict().get("folded_norms") == ({"net.1": "net.0"} if batch_norm == "fold" else None)
