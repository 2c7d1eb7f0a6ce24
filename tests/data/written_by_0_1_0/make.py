"""Write files of every kind with version 0.1.0, and the numbers that are computed from them.

The networks, guards and steps below are also what the tests go through with today's code. So nothing here names the
library: it is ``library``, ``holdfast`` for the files and ``anchorhold`` for the tests.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 3
HERE = Path(__file__).parent


def numbers(generator, *shape):
    """Return numbers that are the same on every machine: drawing others rounds as the processor does."""
    return torch.randint(-(2**20), 2**20, shape, generator=generator).double() / 2**19


def with_given_weights(model):
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(numbers(drawn, *p.shape) / 2)
    return model


def mlp():
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, CLASSES))


def normed():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, CLASSES))


def adapted():
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 (two cases need it)

    config = LoraConfig(r=2, lora_alpha=3, target_modules=["0", "2"], init_lora_weights=False)
    return get_peft_model(mlp(), config)


@dataclasses.dataclass(frozen=True)
class Case:
    """A guard whose state is saved.

    Args:
        measure: its name.
        options: ``options(library)`` gives further arguments of the guard.
        network: ``network()`` makes the model.
        stop: where the state is saved: ``"middle"`` of the second task, ``"end"`` of the first, ``"start"``, in the
            first, or ``"watched"``, between ``watch_only`` and the end of the second.
        optimizer: its class in torch.optim.
    """

    measure: str
    options: Callable[[Any], dict[str, Any]] = lambda library: {}
    network: Callable[[], nn.Module] = mlp
    stop: str = "middle"
    optimizer: str = "SGD"


def option(**given):
    return lambda library: given


def form(name, **settings):
    return lambda library: {"form": named(library, name)(**settings)}


def hold(name, *args, **settings):
    return lambda library: {"holds": [named(library, name)(*args, **settings)]}


def filled(name, kind, **settings):
    """A hold with a buffer of its own."""
    return lambda library: {"holds": [named(library, name)(named(library, kind)(8), size=4, **settings)]}


STATES = {
    "SI": Case("SI"),
    "SI-first-task": Case("SI", stop="start"),
    "SI-bfloat16": Case("SI", option(state_dtype=torch.bfloat16)),
    "SI-float32-end": Case("SI", option(state_dtype=torch.float32), stop="end"),
    "ALASSO": Case("ALASSO", option(holds=["asymmetric"])),
    "RWalk": Case("RWalk-batch"),
    "SOS": Case("SOS"),
    "posterior": Case("posterior", option(relative_strength=0.1)),
    "MAS": Case("MAS", stop="end"),
    "EWC": Case("EWC", option(decay=0.9, watch=["SI", "SOS"])),
    "EWC-end": Case("EWC", stop="end"),
    "EWC-adam": Case("EWC", optimizer="Adam"),
    "EWC-gradient": Case("EWC", option(implicit=False)),
    "EWC-patterns": Case("EWC", option(strength={"0.*": 5.0, "*": 1.0})),
    "EWC-relative": Case("EWC", option(relative_strength=2.0)),
    "EWC-watched": Case("EWC-empirical", stop="watched"),
    "EWC-kept": Case("EWC", lambda library: {"tolerance": library.Tolerance(0.01, every=1)}),
    "online-EWC": Case("online-EWC"),
    "mean": Case("EWC", option(anchor="mean")),
    "mean-rotated": Case("EWC", option(anchor="mean", form="rotated")),
    "gradient-term": Case("EWC", option(anchor="mean", gradient_term=True)),
    "diagonal-damped": Case("EWC", form("Diagonal", damping=0.01)),
    "rotated": Case("EWC", option(form="rotated")),
    "rotated-exact": Case("EWC", form("Rotated", sums="exact")),
    "rotated-blocks": Case("EWC", form("Rotated", outputs="blocks", inputs="lowrank", largest_block=2, rank=2)),
    "rotated-MAS": Case("MAS", option(form="rotated"), stop="end"),
    "rotated16": Case("EWC", option(form="rotated16")),
    "kronecker": Case("EWC", option(form="kronecker")),
    "kronecker-exact": Case("EWC", form("Kronecker", sums="exact")),
    "kronecker-nearest": Case("EWC", form("Kronecker", sums="nearest", outputs="identity", damping=0.1)),
    "kronecker-diagonal": Case("EWC", form("Kronecker", sums="factors", outputs="diagonal", inputs="blocks")),
    "kronecker16": Case("EWC", option(form="kronecker16")),
    "lowrank": Case("EWC", form("LowRank", rank=3)),
    "lowrank-exact": Case("EWC", form("LowRank", rank=2, sums="exact", span="layers", damping=0.01)),
    "dense": Case("EWC", option(form="dense")),
    "dense-layers": Case("EWC", form("Dense", span="layers", damping=0.01), stop="end"),
    "replay": Case("EWC", filled("Replay", "Reservoir"), stop="end"),
    "replay-ring": Case("fine-tune", filled("Replay", "Ring")),
    "distillation": Case("EWC", filled("Distillation", "Reservoir")),
    "distillation-outputs": Case("EWC", filled("Distillation", "Reservoir", teacher="outputs")),
    "dark-experience": Case("fine-tune", filled("DarkExperience", "Reservoir")),
    "averaged-gradient": Case("fine-tune", filled("AveragedGradient", "Reservoir")),
    "projection": Case("EWC", hold("Projection", threshold=0.5)),
    "variational": Case(
        "fine-tune",
        lambda library: {"holds": [named(library, "Variational")(samples=16)]},
    ),
    "batch-norm-freeze": Case("EWC", option(batch_norm="freeze"), normed),
    "batch-norm-fold": Case("EWC", option(batch_norm="fold"), normed),
    "adapters": Case("EWC", option(space="weights"), adapted),
    "adapters-merged": Case("EWC", option(form="kronecker"), adapted),
    "adapters-merged-diagonal": Case("EWC", option(space="merged"), adapted, stop="end"),
}


class Run:
    """A guard that learns two short tasks, and the numbers that show how it goes on."""

    def __init__(self, library, name):
        self.case = STATES[name]
        torch.manual_seed(0)
        self.model = with_given_weights(self.case.network().double())
        if name == "variational":
            self.model = named(library, "mean_field")(self.model, log_variance=-3.0)
        options = {"strength": 3.0, "from_scratch": True} | self.case.options(library)
        if {"relative_strength", "tolerance"} & options.keys():
            del options["strength"]
        if not takes_relative_strengths(library):
            options.pop("relative_strength", None)  # the state has what it became
        self.guard = guard_of(library, self.model, self.case.measure, **options)
        drawn = torch.Generator().manual_seed(1)
        self.batches = [(numbers(drawn, 8, 3), torch.randint(CLASSES, (8,), generator=drawn)) for _ in range(3)]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = getattr(torch.optim, self.case.optimizer)(trained, lr=0.02)
        self.guard.attach(self.optimizer)

    def train(self, task=0, steps=3):
        for x, y in self.batches[:steps]:
            torch.manual_seed(7)  # for a model that draws its weights
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x + task), y).backward()
            self.optimizer.step()

    def to_the_file(self):
        """Train as far as the file."""
        self.train()
        if self.case.stop != "start":
            if self.guard.tolerance is not None:
                self.guard.keep([self.batches[0][0] + 2], "first")
            self.guard.consolidate(self.batches)
        if self.case.stop in ("middle", "watched"):
            self.train(task=1)
        if self.case.stop == "watched":
            watch_only = getattr(self.guard, "watch_only", None) or self.guard.gradients.microbatches
            watch_only(self.batches[:2])
        return self

    def beside(self, folder, name):
        """Return what is saved beside the state, each with its path."""
        holds = self.guard.holds if hasattr(self.guard, "holds") else self.guard.options.holds
        sources = [getattr(hold, "buffer", None) for hold in holds]
        buffers = [(source, folder / f"{name}.buffer.safetensors") for source in sources if source is not None]
        kept = [(self.guard.kept, folder / f"{name}.kept.safetensors")] if self.guard.tolerance is not None else []
        return buffers + kept

    def weights(self):
        """Return all of the model's own state that is trained, and batch norms' statistics, in one vector."""
        return flat(value for value in self.model.state_dict().values() if value.is_floating_point())

    def take_weights(self, vector):
        state, start = self.model.state_dict(), 0
        for value in state.values():
            if value.is_floating_point():
                value.copy_(vector[start : start + value.numel()].view_as(value))
                start += value.numel()

    def numbers(self):
        """Return what shows that a state was taken over and how it goes on, from the weights that are there."""
        before, found = self.weights(), {}
        importance_of = getattr(self.guard, "importance_of", None) or self.guard.held.of
        for measure in self.guard.measures:
            found[f"importance of {measure}"] = by_name(importance_of(measure))
        with torch.no_grad():
            for number, p in enumerate(self.model.parameters()):
                p.add_(0.05 * torch.cos(number + torch.arange(p.numel(), dtype=p.dtype)).view_as(p))
        if self.guard.tasks:
            found["penalty"] = flat([self.guard.penalty(batches=False).detach()])
        self.take_weights(before)
        self.train(task=1, steps=1)
        found["step"] = self.weights()
        if self.case.stop != "watched":
            self.guard.consolidate(self.batches)
            found["importance later"] = by_name(self.guard.importance)
        return found


def flat(tensors):
    return torch.cat([torch.empty(0).double(), *(value.detach().double().flatten() for value in tensors)])


def by_name(tensors):
    return flat(value for _, value in sorted(tensors.items()))


def load(library, name, folder, weights):
    """Return a run whose guard has taken over what lies in a folder, with the weights of then."""
    run = Run(library, name)
    run.take_weights(weights)
    for source, path in run.beside(folder, name):
        source.load(path)
    run.guard.load(folder / f"{name}.safetensors")
    return run


def write_states(library, folder):
    from safetensors.torch import save_file  # noqa: PLC0415

    folder.mkdir()
    every = {}
    for name in STATES:
        run = Run(library, name).to_the_file()
        weights = run.weights()
        for source, path in run.beside(folder, name):
            source.save(path)
        run.guard.save(folder / f"{name}.safetensors")
        found = {"weights": weights, **load(library, name, folder, weights).numbers()}
        every |= {f"{name}/{key}": value for key, value in found.items()}
    save_file(every, folder / "numbers.safetensors")


def takes_relative_strengths(library):
    """Return whether it is the version that the files are of, or one soon after."""
    return "relative_strength" in inspect.signature(kind_of_guard(library)).parameters


def kind_of_guard(library):
    return getattr(library, "Guard", None) or library.Consolidator


def named(library, name):
    """Return what has a name in the library, or in one of the packages where later versions have the rarer names."""
    packages = ("holds", "forms", "variational") if hasattr(library, "GuardOptions") else ()
    every = [library, *(importlib.import_module(f"{library.__name__}.{package}") for package in packages)]
    return next(getattr(place, name) for place in every if hasattr(place, name))


def guard_of(library, *args, **options):
    rarer = getattr(library, "GuardOptions", None)  # in which later versions have some arguments together
    if rarer is not None:
        names = {field.name for field in dataclasses.fields(rarer)} & options.keys()
        options |= {"options": rarer(**{name: options.pop(name) for name in names})} if names else {}
    return kind_of_guard(library)(*args, **options)


def callback(library, trainer):
    """Return the class of callbacks for "huggingface" or "lightning"."""
    module = importlib.import_module(f"{library.__name__}.integrations.{trainer}")
    return getattr(module, f"{library.__name__.title()}Callback")


# Shared importance

SHARED = {
    "diagonal": {"measure": "EWC"},
    "kronecker": {"measure": "EWC", "form": "kronecker"},
    "batch-norm": {"measure": "MAS", "batch_norm": "freeze"},
}


def shared_model(name):
    torch.manual_seed(0)
    return with_given_weights((normed if name == "batch-norm" else mlp)().double())


def share(library, folder, name):
    guard = guard_of(library, shared_model(name), **SHARED[name], strength=1.0)
    drawn = torch.Generator().manual_seed(1)
    guard.consolidate([numbers(drawn, 8, 3)])
    hub = importlib.import_module(f"{library.__name__}.integrations.hub")
    hub.save_pretrained(guard, folder / name, measured_from="eight drawn samples", base_model="user/tiny")
    return guard


# A language model's own text


class Table(nn.Module):
    """The next token depends on the last one alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter((torch.arange(36).view(6, 6) * 7 % 13 - 6).double() / 2)

    def forward(self, tokens):
        return self.table[tokens]


def text(library, store, pieces=6):
    return library.write_text(Table(), pieces, 5, start=1, end=0, seed=3, keep_top=2, batch_size=4, store=store)


# Trainers' checkpoints


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=7, n_positions=8, n_embd=4, n_layer=1, n_head=2, **special, **none))


def huggingface(library, folder, resume=None):
    """Train a tiny language model with the Trainer, four steps of which two lie behind the checkpoint."""
    from transformers import Trainer, TrainingArguments, default_data_collator  # noqa: PLC0415

    drawn = torch.Generator().manual_seed(2)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(3, 7, (8, 5), generator=drawn)]
    model = gpt2()
    guard = guard_of(library, model, "SI", strength=5.0, protect="*mlp*", from_scratch=True)
    task_free = library.TaskFree(guard)
    settings = {"max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "save_steps": 2, "seed": 3}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    trainer = Trainer(
        model,
        TrainingArguments(output_dir=str(folder), logging_steps=1, **settings, **quiet),
        train_dataset=rows,
        data_collator=default_data_collator,
        callbacks=[callback(library, "huggingface")(guard, consolidate_at_end=False, task_free=task_free)],
    )
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return {
        "steps of task_free": torch.tensor([float(task_free.steps)]),
        "weights": flat(model.parameters()),
        "gathered": by_name(guard.state_dict()["tensors"]),
    }


def lightning(library, folder, resume=None):
    """Fit with Lightning, two epochs of which one lies behind the checkpoint."""
    import lightning.pytorch as pl  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = with_given_weights(mlp().double())

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02)

    drawn = torch.Generator().manual_seed(1)
    x, y = numbers(drawn, 12, 3), torch.randint(CLASSES, (12,), generator=drawn)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    module = Module()
    guard = guard_of(library, module, "SI", strength=3.0, watch=["SOS"], from_scratch=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    own = callback(library, "lightning")(guard, consolidate_at_end=False)
    trainer = pl.Trainer(max_epochs=2 if resume else 1, enable_checkpointing=False, callbacks=[own], **quiet)
    trainer.fit(module, loader, ckpt_path=resume, **({"weights_only": True} if resume else {}))
    if resume is None:
        trainer.save_checkpoint(folder / "lightning.ckpt")
    return {"weights": flat(module.parameters()), "gathered": by_name(guard.state_dict()["tensors"])}


def accelerate(library, folder, resume=None):
    """Train in a loop with Accelerate, two epochs of which one lies behind the checkpoint."""
    from accelerate import Accelerator  # noqa: PLC0415

    prepare_guard = importlib.import_module(f"{library.__name__}.integrations.accelerate").prepare_guard
    accelerator = Accelerator(cpu=True)
    run = Run(library, "SI")
    run.guard.detach()
    model, optimizer = accelerator.prepare(run.model, run.optimizer)
    prepare_guard(accelerator, run.guard, optimizer)
    if resume is not None:
        accelerator.load_state(str(resume))
    for x, y in run.batches:
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
    if resume is None:
        accelerator.save_state(str(folder / "accelerate"))
    return {"weights": run.weights(), "gathered": by_name(run.guard.state_dict()["tensors"])}


TRAINERS = {
    "huggingface": (huggingface, "checkpoint-2"),
    "lightning": (lightning, "lightning.ckpt"),
    "accelerate": (accelerate, "accelerate"),
}
OPTIONAL = ("rng_state.pth", "training_args.bin", "random_states_0.pkl", "config.json", "generation_config.json")
"""Files of a checkpoint that a trainer does without."""


# Runs


def specs(lab):
    """Return two runs that finish, and one that is stopped in its second task; ``lab`` is the laboratory's name."""
    protocol = importlib.import_module(f"{lab}.training.protocol")
    spec = importlib.import_module(f"{lab}.experiments").Spec
    settings = protocol.Settings(epochs=2, batch_size=256, learning_rate=0.03, samples=20)
    usual = {"tasks": 2, "hidden": (3,), "settings": settings, "strength": 10.0}
    return [
        spec("permuted-digits", seed=0, measure="SI", watch=("SOS",), **usual),
        spec("permuted-digits", seed=0, measure="EWC", **usual),
        spec("permuted-digits", seed=1, measure="SI", engine="plain", **usual),
    ]


def write_checkpoints(library, folder):
    from safetensors.torch import save_file  # noqa: PLC0415

    folder.mkdir()
    every = {}
    for name, (run, place) in TRAINERS.items():
        run(library, folder)
        shutil.rmtree(folder / "checkpoint-4", ignore_errors=True)
        for path in folder.rglob("*"):
            if path.name in OPTIONAL:
                path.unlink()
        with tempfile.TemporaryDirectory() as elsewhere:
            copy = shutil.copytree(folder, Path(elsewhere) / "copy")
            every |= {f"{name}/{key}": value for key, value in run(library, copy, copy / place).items()}
    save_file(every, folder / "numbers.safetensors")


class Stop:
    """Asks to stop once so much progress was made."""

    def __init__(self, count):
        self.left = count

    def on_event(self, event):
        self.left -= type(event).__name__ == "RunProgress"

    def __call__(self):
        return self.left <= 0


def write_runs(folder):
    from holdfast.lab import experiments  # noqa: PLC0415
    from holdfast.lab.experiments.store.listing import reading_rows  # noqa: PLC0415

    first, second, stopped = specs("holdfast.lab")
    execute = functools.partial(experiments.execute, device="cpu", checkpoint_seconds=0.0)
    with tempfile.TemporaryDirectory() as elsewhere:
        execute([first, second, stopped], elsewhere)
        ended = {run.spec.id: [run.state_digest, run.matrix] for run in experiments.Store(elsewhere).results()}
    execute([first, second], folder)
    stop = Stop(3)
    execute(stopped, folder, on_event=stop.on_event, stop=stop)
    time.sleep(3)  # what was changed a moment ago is not taken into an index
    reading_rows.MANY = reading_rows.FEW = 0
    reading_rows.rows_in(folder)
    (folder.parent / "runs.json").write_text(json.dumps(ended, indent=1))


def main():
    import holdfast  # noqa: PLC0415 (the tests do without)

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_states(holdfast, folder / "states")
        for name in SHARED:
            share(holdfast, folder / "shared", name)
        text(holdfast, folder / "text")
        write_checkpoints(holdfast, folder / "trainers")
        write_runs(folder / "runs")


if __name__ == "__main__":
    main()
