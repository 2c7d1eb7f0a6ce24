"""The files that anchorhold keeps, each real, small, and with someone who reads it: what trials damage.

Used by ``bit_flips`` and ``mutated_files``.
"""

import gzip
import hashlib
import json
import pickle
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anchorhold
from anchorhold.errors import AnchorholdError
from anchorhold_lab.data import cifar, mnist
from anchorhold_lab.data.images import checked_images
from anchorhold_lab.experiments import Failure, RunProgress, Spec, Store, execute
from anchorhold_lab.experiments.specs.source_files import source_digest
from anchorhold_lab.experiments.store.checkpoints import Checkpoints
from anchorhold_lab.experiments.store.packed import OBSERVATIONS, RESULTS
from anchorhold_lab.experiments.store.packing import pack
from anchorhold_lab.training.protocol import Settings
from tests.helpers import grouped
from torture.outcome import Outcome, Verdict


@dataclass(frozen=True)
class KeptFile:
    """A file, and how it is read."""

    kind: str
    path: Path
    look: Callable[[], object]
    """Reads it, and returns all that was understood; what cannot be used is refused with the library's own error."""
    undo: Callable[[], None] = lambda: None
    """Makes whoever reads it what they were before they looked."""
    kept: Callable[[], object] = lambda: None
    """What the reader knew before they looked, and still has to know after a refusal."""
    recovers: bool = False
    """Whether the content can be had from elsewhere, so that it may be right in spite of the damage."""

    def tried(self, seed: int, content: bytes, change: str) -> Outcome:
        """Return what becomes of a changed content; the file is as it was afterwards."""
        whole = self.path.read_bytes()
        self.undo()
        expected, known = self.look(), None
        self.undo()
        known = self.kept()
        try:
            self.path.write_bytes(content)
            verdict, said = self._judged(expected)
            if verdict == "refused" and self.kept() != known:
                verdict, said = "LOST", f"what was there before was changed by a refusal ({said})"
            if verdict == "unchanged" and self.recovers and content != whole:
                verdict = "recovered"
        finally:
            self.path.write_bytes(whole)
            self.undo()
        return Outcome(self.kind, seed, verdict, f"{change}: {said}")

    def _judged(self, expected: object) -> tuple[Verdict, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = self.look()
            except AnchorholdError as error:
                return "refused", str(error)
            except Exception as error:  # noqa: BLE001 (whatever else a reader raises is a defect)
                return "TRACEBACK", f"{type(error).__name__}: {str(error)[:200]}"
        return ("unchanged", "the same") if found == expected else ("SILENT CHANGE", _difference(found, expected))


@contextmanager
def kept_files() -> Iterator[list[KeptFile]]:
    """Make one file of every kind, in a folder that goes when this ends."""
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = Path(folder)
        yield [*_guards(place), *_store_files(place), *_data_files(place)]


def fingerprint(state: dict[str, Any]) -> tuple[str, str]:
    """Return all of a guard's state as text and a digest."""
    rest = json.dumps({key: value for key, value in state.items() if key != "tensors"}, sort_keys=True)
    found = hashlib.sha256()
    for name, tensor in sorted(state["tensors"].items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return rest, found.hexdigest()


# Guards


def _guards(place: Path) -> Iterator[KeptFile]:
    for name, measure, options in (
        ("a guard's file", "SI", {"watch": ["SOS", "EWC"], "decay": 0.9}),
        ("a guard's file (factors)", "EWC", {"form": "kronecker"}),
    ):
        path = place / f"{measure}.safetensors"
        _trained(measure, tasks=2, **options).save(path)
        yield _guard_file(name, path, _trained(measure, tasks=1, **options))


def _guard_file(kind: str, path: Path, reader: anchorhold.Guard) -> KeptFile:
    before = {**reader.state_dict(), "tensors": {n: t.clone() for n, t in reader.state_dict()["tensors"].items()}}

    def look() -> object:
        reader.load(path)
        return fingerprint(reader.state_dict())

    return KeptFile(kind, path, look, lambda: reader.load_state_dict(before), lambda: fingerprint(reader.state_dict()))


def _trained(measure: str, tasks: int, **options: Any) -> anchorhold.Guard:
    torch.manual_seed(tasks)
    model = torch.nn.Sequential(torch.nn.Linear(3, 24), torch.nn.ReLU(), torch.nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, measure, strength=3.0, **grouped(**options))
    guard.attach(optimizer)
    data = [(torch.randn(8, 3), torch.randint(2, (8,))) for _ in range(3)]
    for task in range(tasks + 1):
        for x, y in data:
            optimizer.zero_grad()
            guard.gradients.independent(torch.nn.functional.cross_entropy(model(x.flip(0) + 1), y), samples=8)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if task < tasks:
            guard.consolidate(data)
    return guard


# A store


def _spec(seed: int, **changes: Any) -> Spec:
    settings = Settings(epochs=2, batch_size=256, learning_rate=0.03, reinitialise=True, samples=50)
    usual = {"measure": "SI", "strength": 10.0, "tasks": 2, "hidden": (8,)}
    return Spec("permuted-digits", seed=seed, settings=settings, **usual | changes)


class _StopAfter:
    """Asks for a stop after some progress."""

    def __init__(self, count: int) -> None:
        self.left = count

    def on_event(self, event: object) -> None:
        self.left -= isinstance(event, RunProgress)

    def __call__(self) -> bool:
        return self.left <= 0


def _store_files(place: Path) -> Iterator[KeptFile]:
    store = Store(place / "store")
    finished, failed, begun, one, two = (
        _spec(0, probes=("importances",)),
        _spec(1),
        _spec(2),
        _spec(3),
        _spec(4),
    )
    execute(finished, store, device="cpu")
    for specs in ([begun], [one, two]):
        stop = _StopAfter(3)
        execute(specs, store, device="cpu", side_by_side=2, checkpoint_seconds=0, on_event=stop.on_event, stop=stop)
    claim = store.claim(failed)
    assert claim is not None
    result = store.get(finished)
    assert result is not None
    failure = Failure("Out of memory.", result.finished_at, "cpu", None, {"torch": "2"})
    claim.fail(failure)
    claim.release()
    folder = store.run_folder(finished.id)

    def result_read() -> object:
        entry = store.entry(finished.id)
        if entry.damage:
            raise anchorhold.errors.DamagedError(entry.damage)
        assert entry.result is not None
        return entry.result, entry.result.seconds, repr(entry.result.metrics)

    yield KeptFile("result.json", folder / "result.json", result_read)
    yield KeptFile("spec.json (finished)", folder / "spec.json", lambda: store.spec(finished.id), recovers=True)
    yield KeptFile("spec.json (begun)", store.run_folder(begun.id) / "spec.json", lambda: store.spec(begun.id))
    yield KeptFile("failure-1.json", store.run_folder(failed.id) / "failure-1.json", lambda: store.failures(failed.id))
    (members,) = store.folder.glob("groups/*/members.json")

    def groups_read() -> object:
        found = store.begun_groups()
        if not found:
            raise anchorhold.errors.DamagedError("the group is left out")
        return found

    yield KeptFile("members.json", members, groups_read, recovers=True)
    observations = folder / "observations.safetensors"
    yield KeptFile("observations", observations, lambda: _frozen(store.observations(finished.id)))
    yield from _checkpoints(place, store, begun)
    source = b"import anchorhold\n" * 8
    store.keep_source(source)
    digest = source_digest(source)
    yield KeptFile("sources/*.py", store.source_path(digest), lambda: store.source(digest))
    whole = Store(place / "packed")
    shutil.copytree(folder, whole.run_folder(finished.id))
    shutil.copytree(store.run_folder(failed.id), whole.run_folder(failed.id))
    pack(whole)

    def packed_read() -> object:
        found = Store(whole.folder)
        return [str(entry) for entry in found.entries()], _frozen(found.observations(finished.id))

    for name in (RESULTS, OBSERVATIONS):
        yield KeptFile(name, whole.folder / name, packed_read)


def _checkpoints(place: Path, store: Store, spec: Spec) -> Iterator[KeptFile]:
    """Give the checkpoint of a run, the only one in a folder of its own: looking sets aside what cannot be used."""
    for name in ("finished-task", "within-task"):
        there = store.run_folder(spec.id) / f"{name}.safetensors"
        if not there.exists():
            continue
        folder = place / name
        folder.mkdir()
        path = folder / there.name
        shutil.copy(there, path)

        def look(folder: Path = folder) -> object:
            checkpoints = Checkpoints(folder, [spec.id], torch.device("cpu"))
            found, rejected = checkpoints.load()
            checkpoints.close()
            if rejected:
                raise anchorhold.errors.StateError(rejected[0].reason)
            return _frozen(vars(found))

        def undo(folder: Path = folder) -> None:
            for aside in folder.glob("rejected-*"):
                aside.unlink()

        yield KeptFile(f"checkpoint ({name})", path, look, undo)


# Data sets


def _data_files(place: Path) -> Iterator[KeptFile]:
    """Give files of the forms of CIFAR and MNIST, few images each, whose own digests are the published ones here."""
    numbers = np.random.default_rng(0)
    pixels, labels = numbers.integers(0, 256, (4, 3072), np.uint8), numbers.integers(0, 10, 4, np.uint8)
    digests = hashlib.sha256(pixels.tobytes()).hexdigest(), hashlib.sha256(labels.tobytes()).hexdigest()
    for protocol in (2, 4):
        path = place / f"batch-{protocol}"
        content = {b"data": pixels, b"labels": labels.tolist(), b"filenames": [b"a.png", b"b.png"] * 2}
        path.write_bytes(pickle.dumps(content, protocol=protocol))

        def look(path: Path = path) -> object:
            found = cifar._read([path], 10, digests)  # noqa: SLF001 (the published files are large)
            return found.pixels.numpy().tobytes(), found.labels.tolist()

        yield KeptFile(f"a CIFAR pickle ({protocol})", path, look)
    path = place / "batch.bin"
    path.write_bytes(np.column_stack([labels, pixels]).tobytes())
    yield KeptFile("CIFAR's binary version", path, lambda: look(place / "batch.bin"))
    small = numbers.integers(0, 256, (5, 6, 6), np.uint8)
    path = place / "images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", *small.shape) + small.tobytes()))
    of_these = hashlib.sha256(small.tobytes()).hexdigest(), hashlib.sha256(labels.tobytes()).hexdigest()

    def look_at_images() -> object:
        found = mnist.read_idx(path, 3)
        return checked_images(found[:, None], labels, 10, of_these, str(path)).pixels.numpy().tobytes(), found.shape

    yield KeptFile("an idx file", path, look_at_images)


def _frozen(value: Any) -> Any:
    """Return nested values in a form in which they can be compared, tensors by their bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return [_frozen(inner) for inner in value] if isinstance(value, list | tuple) else repr(value)


def _difference(found: object, expected: object) -> str:
    one, two = repr(found), repr(expected)
    place = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"…{one[max(0, place - 20) : place + 40]}… instead of …{two[max(0, place - 20) : place + 40]}…"
