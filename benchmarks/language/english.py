"""The first part: learn English, and measure what each weight is worth for it."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.optim import SGD

from anchorhold import L2, MAS, SOS, Fisher, Guard
from anchorhold.measures import Measure
from anchorhold.seeding import derive_seed, generator_for
from anchorhold.whole_files import read_tensors, write_tensors
from benchmarks.language.corpus import Corpus
from benchmarks.language.gpt import BYTES, GPT
from benchmarks.language.lora import adapt
from benchmarks.language.pretrained import Pretrained, load
from benchmarks.language.settings import FORMS, MEASURES, WAYS, Settings
from benchmarks.language.training import Device, batches, schedule

DECAY = 0.1
Network = GPT | Pretrained


def measure(name: str, settings: Settings) -> Measure:
    """Return a measure of the study.

    The Fisher draws one label a position, which is unbiased; MAS takes the squared norms of a sample's outputs as one
    score. Both so cost one backward pass a sample, where every label of every position would be 131,072.
    """
    samples = settings.measured
    fisher = Fisher(samples, labels="sampled")
    return {"L2": L2(), "EWC": fisher, "SOS": SOS(), "MAS": MAS(samples), **dict.fromkeys(FORMS, fisher)}[name]


def new_guard(model: Network, way: str, name: str, settings: Settings) -> Guard:
    """Return a guard that has found nothing yet."""
    form = FORMS.get(name, "diagonal")
    return Guard(model, measure(name, settings), protect=protected(way), form=form)


def _new_guards(model: Network, way: str, settings: Settings) -> dict[str, Guard]:
    """Return one for every measure that has to look at English."""
    return {name: new_guard(model, way, name, settings) for name in MEASURES if name in settings.compared[way]}


def protected(way: str) -> str:
    """Return the pattern of the weights that are held."""
    return "*lora_*" if way == "lora" else "*"


@dataclass
class Taught:
    """A network that has learned English, in one of the two ways of going on, and where its guards are."""

    model: Network
    start: dict[str, torch.Tensor]
    """Its weights now, to go back to after each run."""
    guards: Path
    network: str
    """A name for exactly these weights and guards."""
    tuned: dict[str, torch.Tensor] | None = None
    """Its weights after fine-tuning, once that has been done."""
    ready: tuple[str, Guard] | None = None
    """The guard that was asked for last, with its name: most lessons want the one before with another strength."""

    def restart(self) -> None:
        """Put the weights back."""
        self.model.load_state_dict(self.start)

    def average(self, share: float) -> None:
        """Take weights between those at the start and those after fine-tuning.

        An adapter is part of the weights that it is added to, so that of its product BA a share is B's.
        """
        mixed = {
            name: tensor if name.endswith("lora_a") else torch.lerp(self.start[name], tensor, share)
            for name, tensor in (self.tuned or {}).items()
        }
        self.model.load_state_dict(mixed)

    def guard(self, way: str, name: str, strength: float, settings: Settings) -> Guard:
        """Return what a measure found for English, holding with a relative strength."""
        if name == "L2 of B":  # needs no English
            guard = Guard(self.model, L2(), strength=strength, protect="*lora_b")
            guard.consolidate()
            return guard
        if self.ready is None or self.ready[0] != name:
            self.ready = None  # before another is read: they are large
            guard = new_guard(self.model, way, name, settings)
            guard.load(self.guards / f"{way}-{name}.safetensors")
            self.ready = name, guard
        guard = self.ready[1]
        importance = torch.cat([omega.flatten() for omega in guard.importance.values()])
        guard.strength = strength / float(importance.mean())
        return guard


def learn_english(settings: Settings, corpus: Corpus, device: Device, seed: int, folder: Path) -> None:
    """Train a network on English, or take one that others have trained; measure, and leave all of it in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder / "complete", *folder.glob("*.safetensors")):  # which are another network's
        path.unlink(missing_ok=True)
    model = new_model(settings, device, seed)
    guards = _new_guards(model, "full", settings)
    if not settings.pretrained:
        _train(model, guards, settings, corpus, device, seed)
    _consolidate("full", guards, settings, corpus, seed, folder)

    write_tensors(folder / "model.safetensors", model.state_dict(), {"kind": kind_of(settings)})
    if "lora" in settings.compared:
        adapted = start_python(settings, device, seed, folder, "lora").model
        guards = _new_guards(adapted, "lora", settings)
        _watch_adapter(guards["SOS"], adapted, settings, corpus, device, seed)
        _consolidate("lora", guards, settings, corpus, seed, folder)
    (folder / "complete").touch()


def _train(
    model: Network,
    guards: dict[str, Guard],
    settings: Settings,
    corpus: Corpus,
    device: Device,
    seed: int,
) -> None:
    """Teach English from the beginning; SOS watches the last steps."""
    optimizer = device.optimizer(model, settings.english_rate, DECAY)
    rates = schedule(optimizer, settings.english_steps)
    text = corpus.of("english", "train")
    given = batches(text, settings.english_steps, settings.english_batch, settings.context, seed, "english")
    for step, batch in enumerate(given):
        if step == settings.english_steps - settings.watched and "SOS" in guards:
            guards["SOS"].attach(optimizer)
        optimizer.zero_grad()
        device.loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    if "SOS" in guards:
        guards["SOS"].detach()


def start_python(settings: Settings, device: Device, seed: int, folder: Path, way: str) -> Taught:
    """Return the network as it was after English, with an adapter if it goes on with one."""
    model = new_model(settings, device, seed)
    tensors, _ = read_tensors(folder / "model.safetensors")
    model.load_state_dict(tensors)
    weights = hashlib.sha256()
    for name in sorted(tensors):
        weights.update(tensors[name].numpy().tobytes())
    if settings.pretrained:
        weights.update(f"seed {seed}".encode())  # which has other batches, and the same weights
    if way == "lora":
        adapt(model.cpu(), settings.rank, generator_for(seed, "adapter"))
        model.to(device.device)
    return Taught(model, weights_of(model), folder, f"{kind_of(settings)}-{weights.hexdigest()[:8]}")


def weights_of(model: Network) -> dict[str, torch.Tensor]:
    """Return a copy of a network's weights as they are."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_learned(settings: Settings, folder: Path) -> bool:
    """Whether a folder has a network that learned English with these settings."""
    if not (folder / "complete").exists():
        return False
    _, metadata = read_tensors(folder / "model.safetensors")
    return metadata.get("kind") == kind_of(settings)


def new_model(settings: Settings, device: Device, seed: int) -> Network:
    """Return a network that has learned nothing, or what others' has."""
    if settings.pretrained:
        return load(settings.pretrained).to(device.device)
    torch.manual_seed(derive_seed(seed, "model"))
    sizes = settings.width, settings.layers, settings.heads, settings.context, settings.vocabulary
    return GPT(*sizes).to(device.device)


def _watch_adapter(guard: Guard, model: Network, settings: Settings, corpus: Corpus, device: Device, seed: int) -> None:
    """Show SOS the English gradients of an adapter, which has no training behind it to watch.

    With a learning rate of 0 the steps change nothing.
    """
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    guard.attach(optimizer)
    text = corpus.of("english", "train")
    for batch in batches(text, settings.adapter_steps, settings.python_batch, settings.context, seed, "watched"):
        optimizer.zero_grad()
        device.loss(model, batch).backward()
        optimizer.step()
    guard.detach()


def _consolidate(
    way: str, guards: dict[str, Guard], settings: Settings, corpus: Corpus, seed: int, folder: Path
) -> None:
    """Let every measure look at the same English samples, and save what each found."""
    text = corpus.of("english", "train")
    samples = list(batches(text, -(-settings.measured // 64), 64, settings.context, seed, "measured"))
    for name, guard in guards.items():
        found = guard.consolidate([sample[:, :-1] for sample in samples])
        slow = [parameter for task in found.values() for parameter in task.fallback]
        if slow:
            print(f"{name}: no layer rule covers {', '.join(slow)}; measuring them takes long", flush=True)
        guard.save(folder / f"{way}-{name}.safetensors")


def kind_of(settings: Settings) -> str:
    """Return a name for the settings that make a network and its guards what they are."""
    later = ("python_steps", "python_rate", "windows", "strengths", "unguarded", "compared", "seeds", "lesson", "start")
    kept = {name: value for name, value in asdict(settings).items() if name not in later}
    kept["pretrained"] = Path(settings.pretrained).name
    if not settings.pretrained:
        del kept["pretrained"]
    if settings.vocabulary == BYTES:  # as it was when there was no other
        del kept["vocabulary"]
    if settings.read == Settings().read:  # likewise
        del kept["read"]
    looked = {way: [name for name in MEASURES if name in names] for way, names in settings.compared.items()}
    if looked != {way: list(MEASURES) for way in WAYS}:  # as it was when the first networks were named
        kept["looked"] = looked
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:8]
