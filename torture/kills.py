"""Kills, and faults of the file system: nothing is lost, and what goes on ends as if nothing had been.

``python -m torture.kills``. Each trial lets one process die, or one of its file-system calls fail, at a place that the
seed chooses; then another process looks at what is left, and goes on. The seeds of kills after some time repeat the
time, which is not quite the place.
"""

import errno
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anchorhold
from anchorhold.errors import AnchorholdError
from anchorhold_lab.experiments import Failure, Result, Spec, Store, execute
from anchorhold_lab.experiments.store.packing import pack, unpack
from anchorhold_lab.training.protocol import Settings
from torture.armed_children import Ended, child, with_faults
from torture.outcome import Outcome, Verdict, main

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.EROFS)


@dataclass
class Victim:
    """Some work in a folder, and who judges what is left of it."""

    name: str
    begin: Callable[[Path], object]
    """Puts into a new folder what the work finds there."""
    work: Callable[[Path], object]
    look: Callable[[Path], object]
    """Reads what is there, whatever was interrupted; returns something that can be compared."""
    allowed: Callable[[object], bool]
    """Whether what is there after an interruption is right."""
    refusals: tuple[type[BaseException], ...] = (AnchorholdError,)
    """What it may raise where a call fails: of a file that a user saves, the error of the system itself, too."""
    calls: int = 0
    whole: list[object] = field(default_factory=list)
    """What is there at its end."""

    def count(self) -> None:
        """Do the work once without any harm, to know its calls, and what comes of it."""
        with _Folder() as folder:
            self.begin(folder)
            self.calls = _quiet(lambda: self.work(folder), folder).calls
            self.whole = [_told(lambda: self.look(folder), folder)]

    def tried(self, seed: int) -> Outcome:
        """Harm it once, and judge what is left."""
        draws = random.Random(seed)
        how = draws.choice(("killed", "failing", "failing", "later"))
        call, error = draws.randrange(self.calls), draws.choice(ERRORS) if how == "failing" else 0
        after = draws.uniform(0.0, 0.4) if how == "later" else None
        kind = f"{self.name}, {'a call fails' if how == 'failing' else 'killed'}"
        where = f"call {call} of {self.calls}" + (f": {errno.errorcode[error]}" if error else "")
        with _Folder() as folder:
            self.begin(folder)
            chosen = -1 if how == "later" else call
            ended = child(lambda: self.work(folder), folder, chosen, error, after=after, refusals=self.refusals)
            verdict, said = self._judged(folder, ended)
        return Outcome(kind, seed, verdict, f"{f'after {after:.3f} s' if after is not None else where}: {said}")

    def _judged(self, folder: Path, ended: Ended) -> tuple[Verdict, str]:
        """Return what became of the work: what is left has to be right, and doing it again has to end it as usual."""
        if ended.how in ("TRACEBACK", "HUNG"):
            return ended.how, ended.said  # type: ignore[return-value]
        try:
            left = _told(lambda: self.look(folder), folder)
            if not self.allowed(left) or (ended.how == "done" and left != self.whole[0]):
                return "LOST", f"it ended as {ended.how}, and left {left!r:.300}"
            _quiet(lambda: self.work(folder), folder)
            left = _told(lambda: self.look(folder), folder)
        except RuntimeError as error:
            return "TRACEBACK", f"after it ended as {ended.how}: {error}"
        if left != self.whole[0]:
            return "SILENT CHANGE", f"gone on to {left!r:.300}"
        return "recovered", ended.said


def trials(seed: int) -> Iterator[Outcome]:
    """Harm one victim after the other, without end; trial k has the seed ``seed + k``."""
    torch.set_num_threads(1)
    victims = [a_run(), a_guards_file(), a_buffers_file(), a_store_to_pack(), a_store_to_unpack()]
    for victim in victims:
        victim.count()
    for number in itertools.count(seed):
        yield victims[number % len(victims)].tried(number)


def a_run() -> Victim:
    """Two runs in a store, with a checkpoint at every opportunity."""
    settings = Settings(epochs=1, batch_size=256, learning_rate=0.03, reinitialise=True, samples=50)
    specs = [
        Spec("permuted-digits", seed=seed, settings=settings, measure=measure, strength=10.0, tasks=2, hidden=(16,))
        for seed, measure in enumerate(("SI", "EWC"))
    ]

    def look(folder: Path) -> object:
        return sorted((r.spec.id, r.matrix, r.untrained, r.state_digest) for r in Store(folder).results())

    def allowed(left: object) -> bool:
        assert isinstance(left, list)
        return all(result in victim.whole[0] for result in left)  # type: ignore[operator]

    victim = Victim(
        "runs in a store",
        lambda _folder: None,
        lambda folder: execute(specs, Store(folder), checkpoint_seconds=0),
        look,
        allowed,
    )
    return victim


def a_store_to_pack() -> Victim:
    """A store with runs of which some are packed already, which is packed."""
    return _moved("a store that is packed", _half_packed, lambda folder: pack(Store(folder)))


def a_store_to_unpack() -> Victim:
    """The same store, packed whole, which is unpacked."""

    def begin(folder: Path) -> None:
        _half_packed(folder)
        pack(Store(folder))

    def work(folder: Path) -> None:
        if Store(folder).files.packed() is not None:
            unpack(Store(folder))

    return _moved("a store that is unpacked", begin, work)


def _moved(name: str, begin: Callable[[Path], object], work: Callable[[Path], object]) -> Victim:
    """Return a store whose runs move: whatever is interrupted, it says what it said."""

    def look(folder: Path) -> object:
        store = Store(folder)
        return [(str(entry), repr(store.observations(entry.id))) for entry in store.entries()]

    victim = Victim(name, begin, work, look, lambda left: left == victim.whole[0])
    return victim


def _half_packed(folder: Path) -> None:
    """Make a store of a packed run, a packed one that failed and was tried again, and two loose ones; one has begun."""
    store, settings = Store(folder), Settings(epochs=1, batch_size=256, samples=50)
    specs = [
        Spec(
            *("permuted-digits", "SI"),
            seed=seed,
            settings=settings,
            strength=10.0,
            tasks=2,
            hidden=(4,),
            probes=("importances",),
        )
        for seed in range(5)
    ]
    row = (0.5, 0.5)
    origin = ("d" * 64, "a device", None, {"torch": "2"}, "2026-01-01T00:00:00")
    for number, spec in enumerate(specs):
        claim = store.claim(spec)
        assert claim is not None
        if number == 1:
            claim.fail(Failure("too bad", origin[-1], "a device", None, {"torch": "2"}))
        elif number < 4:
            claim.finish(Result(spec, (row, row), row, 1.0, 2.0, 1, 0, *origin), {"importances": {"seen": number}})
        claim.release()
        if number == 1:
            pack(store)
            claim = store.claim(spec)
            assert claim is not None
            claim.fail(Failure("once more", origin[-1], "a device", None, {"torch": "2"}))
            claim.release()


def a_guards_file() -> Victim:
    """A guard's state, saved over that of the task before."""
    before, after = (_guard(tasks) for tasks in (1, 2))

    def look(folder: Path) -> object:
        guard = _guard(0)
        guard.load(folder / "guard.safetensors")
        return guard.tasks, float(sum(omega.double().sum() for omega in guard.importance.values()))

    return _one_file("a guard's file", "guard.safetensors", before.save, after.save, look)


def a_buffers_file() -> Victim:
    """The samples of a buffer, saved over those of the task before."""
    buffers = []
    for tasks in (1, 2):
        buffer = anchorhold.holds.Reservoir(20)
        for task in range(tasks):
            buffer.fill(_batches(task), task)
        buffers.append(buffer)

    def look(folder: Path) -> object:
        buffer = anchorhold.holds.Reservoir(20)
        buffer.load(folder / "samples.safetensors")
        return buffer.tasks, float(sum(sample.leaves[0].double().sum() for sample in buffer.samples))

    return _one_file("a buffer's file", "samples.safetensors", buffers[0].save, buffers[1].save, look)


def _one_file(
    name: str, file: str, before: Callable[[Path], Any], after: Callable[[Path], Any], look: Callable[[Path], object]
) -> Victim:
    """Return a file that is replaced: what is there is the old one or the new one."""
    with _Folder() as folder:
        before(folder / file)
        old = look(folder)
        after(folder / file)
        either = old, look(folder)
    return Victim(
        name,
        lambda folder: before(folder / file),
        lambda folder: after(folder / file),
        look,
        lambda left: left in either,
        (AnchorholdError, OSError),
    )


def _guard(tasks: int) -> anchorhold.Guard:
    torch.manual_seed(0)
    guard = anchorhold.Guard(nn.Linear(40, 20), "EWC", strength=1.0, form="rotated")
    for task in range(tasks):
        guard.consolidate(_batches(task))
    return guard


def _batches(task: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(task)
    return [(torch.randn(30, 40, generator=generator), torch.randint(0, 20, (30,), generator=generator))]


class _Folder:
    """A new folder, gone at the end."""

    def __enter__(self) -> Path:
        self.path = Path(tempfile.mkdtemp(prefix="anchorhold-torture-"))
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _quiet(work: Callable[[], object], folder: Path) -> Ended:
    ended = child(work, folder)
    if ended.how != "done":
        raise RuntimeError(f"without any harm it ended as {ended.how}: {ended.said}")
    return ended


def _told(look: Callable[[], object], folder: Path) -> object:
    """Return what a look at a folder finds, made in a process of its own."""
    import pickle

    with tempfile.TemporaryDirectory(prefix="anchorhold-torture-") as aside:
        answer = Path(aside, "answer")
        _quiet(lambda: answer.write_bytes(pickle.dumps(look())), folder)
        return pickle.loads(answer.read_bytes())  # noqa: S301


if __name__ == "__main__":
    with_faults()
    main(trials, __doc__ or "")
