"""Where results are kept: a folder to which things are added and from which nothing finished is ever taken away.

::

    results.jsonl.zst            runs that were packed, which are read as if each lay in runs/
    observations.zip             what their probes have seen
    runs/<id>/spec.json          what the run is, which its result says too
              result.json        what came out, once it has finished
              observations.safetensors  what its probes have seen, where it has any
              failure-1.json     why it could not go on, each time that it could not
              lock               held by the process that runs it
              *.safetensors      its checkpoints, until it has finished
    groups/<id>/                 checkpoints of runs that train side by side
    sources/<digest>.py          the file that runs were made from, where they were
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anchorhold.errors import ConfigurationError, DamagedError, StoreError
from anchorhold.whole_files import remove_unfinished, write_whole
from anchorhold_lab.analysis.probes.registry import PROBES
from anchorhold_lab.experiments.specs.canonical import digest_of
from anchorhold_lab.experiments.specs.source_files import source_digest
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.checkpoints import has_checkpoint, remove_checkpoints
from anchorhold_lab.experiments.store.groups import MEMBERS, groups_in
from anchorhold_lab.experiments.store.locks import Lock
from anchorhold_lab.experiments.store.nested_files import Flattened
from anchorhold_lab.experiments.store.packed import OBSERVED, write_json
from anchorhold_lab.experiments.store.reading import check_belonging, is_there, parsed, sealed, unreadable, unsealed
from anchorhold_lab.experiments.store.run_files import RunFiles
from anchorhold_lab.experiments.store.run_results import Entry, Failure, Result, Status
from anchorhold_lab.user_paths import user_path

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
_ID_LENGTH = 16


class Store:
    """A folder of results. It is made when the first run begins; several processes may use it at once.

    Where a run is asked for, its spec serves, its id, or any beginning of the id that no other run has.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = user_path(folder)
        if is_there(self.folder) and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file; expected a folder, or the name of one that is yet to be made.")
        self.files = RunFiles(self.folder)

    def entries(self) -> list[Entry]:
        """Return all that is known of every run: the oldest result first, unfinished ones after, damaged ones last."""
        return sorted((self.entry(run) for run in self.ids()), key=lambda entry: entry.order)

    def entry(self, run: Spec | str) -> Entry:
        """Return all that is known of one run; what its probes have seen is only looked for, not read."""
        found = self.find(run)
        complaints: list[str] = []

        def tried(read: Callable[[], T]) -> T | None:
            try:
                return read()
            except StoreError as error:
                complaints.append(str(error))
                return None

        status = self.status(found)
        spec = None if status == "unknown" else tried(lambda: self.spec(found))
        result, failures = tried(lambda: self.get(found)), tried(lambda: self.failures(found))
        complaints += [_stray(path) for path in tried(lambda: self.files.failures(found)[1]) or ()]
        if result is not None:
            tried(lambda: self._check_observed(result))
        damage = "\n".join(dict.fromkeys(complaints))  # of a folder that cannot be read, every file says the same
        return Entry(found, "damaged" if damage else status, spec, result, tuple(failures or ()), damage)

    def results(self) -> list[Result]:
        """Return the results of all finished runs, the oldest first; refused if any run is damaged."""
        entries = self.entries()
        damaged = [entry.damage for entry in entries if entry.damage]
        if damaged:
            raise DamagedError("\n".join([*damaged, "Store.entries() has those that are not damaged."]))
        return [entry.result for entry in entries if entry.result is not None]

    def get(self, run: Spec | str) -> Result | None:
        """Return the result of a run, if it has finished."""
        found = self.find(run)
        content = self.files.read(found, "result.json")
        if content is None:
            return None
        path = self.files.where(found, "result.json")
        result = parsed(Result.from_dict, unsealed(content, path), path)
        check_belonging(result.spec, path)
        return result

    def observations(self, run: Spec | str) -> dict[str, dict[str, Any]]:
        """Return what the probes of a finished run have seen, by probe; nothing for a run that had none."""
        found, path = self.files.observations(self.find(run))
        if found is None:
            if (result := self.get(run)) is not None:
                self._check_observed(result)
            return {}
        if not isinstance(found, dict) or not set(found) <= set(PROBES):
            raise DamagedError(
                f"{path} is not what probes have seen: another file was put in its place. Restore it, or remove the "
                f"folder {path.parent} to make the run again."
            )
        return found

    def has_observations(self, run: Spec | str) -> bool:
        """Whether there is a file of what the probes of a run have seen."""
        return self.files.has_observations(self.find(run))

    def failures(self, run: Spec | str) -> list[Failure]:
        """Return why a run could not go on, each time that it could not."""
        return [self._failure(self.find(run), name) for name in self.files.failures(self.find(run))[0]]

    def _failure(self, run: str, name: str) -> Failure:
        path = self.files.where(run, name)
        return parsed(Failure.from_dict, unsealed(self.files.read(run, name) or {}, path), path)

    def ids(self) -> list[str]:
        """Return the ids of all runs that were ever begun."""
        return self.files.ids()

    def find(self, run: Spec | str) -> str:
        """Return a run's id; what is the beginning of no id here is returned as it is."""
        if isinstance(run, Spec):
            return run.id
        if len(run) >= _ID_LENGTH:
            return run
        found = [known for known in self.ids() if known.startswith(run)]
        if len(found) > 1:
            raise ConfigurationError(f"{len(found)} runs begin with {run!r}: {', '.join(found)}. Give more of the id.")
        return found[0] if found else run

    def spec(self, run: str) -> Spec:
        """Return what a run is: by its own file, or where that is missing or damaged, by its result."""
        found = self.find(run)
        try:
            return spec_of(found, self.files)
        except DamagedError:
            with contextlib.suppress(DamagedError):
                if (result := self.get(run)) is not None:
                    return result.spec
            if not self.files.known(found):
                raise StoreError(
                    f"There is no run {run!r} in {self.folder}. Its runs are listed by Store.ids()."
                ) from None
            raise

    def status(self, run: Spec | str) -> Status:
        """Return how a run stands: an unfinished one is failed, started, or not known here at all.

        It is damaged where its folder cannot be read. Whether the files in it are whole is for :meth:`entry` to say.
        """
        found = self.find(run)
        self.files.packed()  # if that is damaged, any run may be in it: no status then, not even "unknown"
        try:
            if self.files.has(found, "result.json"):
                return "finished"
            if self.files.has(found, "failure-1.json"):
                return "failed"
            return "started" if self.files.has(found, "spec.json") else "unknown"
        except DamagedError:
            return "damaged"

    def frame(self) -> "pd.DataFrame":
        """Return a pandas table with one row a run: its spec, its figures, and where they come from."""
        from anchorhold_lab.experiments.store.frames import runs_frame  # noqa: PLC0415 (pandas is an extra)

        return runs_frame(self)

    def curves(self) -> "pd.DataFrame":
        """Return a pandas table with one row for each accuracy ever measured in a finished run."""
        from anchorhold_lab.experiments.store.frames import curves_frame  # noqa: PLC0415 (pandas is an extra)

        return curves_frame(self)

    def claim(self, spec: Spec) -> "RunClaim | None":
        """Return the right to make a run, unless another process has it."""
        folder = self.run_folder(spec.id)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder / "lock")
            if not lock.take():
                return None
        try:
            return RunClaim(spec, self.files, lock)
        except BaseException:
            lock.release()
            raise

    def tidy(self, spec: Spec) -> None:
        """Remove the checkpoints of a finished run whose process was killed before it could, and mend its spec."""
        folder = self.run_folder(spec.id)
        if not _holds(spec, self.files):
            with contextlib.suppress(StoreError):  # its result says the same
                if (claim := self.claim(spec)) is not None:
                    claim.release()
        if has_checkpoint(folder) and (claim := self.claim(spec)) is not None:
            try:
                with writing(folder):
                    remove_checkpoints(folder)
            finally:
                claim.release()

    def tidy_groups(self) -> None:
        """Remove what is left of groups whose runs have all finished."""
        for group in groups_in(self.folder):
            if not group.damage and all(self.status(run) == "finished" for run in group.ids):
                with contextlib.suppress(OSError):  # it does no harm where it is
                    remove_checkpoints(group.folder)
                    (group.folder / MEMBERS).unlink()
                    group.folder.rmdir()

    def keep_source(self, content: bytes) -> None:
        """Add the file that runs are made from, unless it is there."""
        path = self.source_path(source_digest(content))
        if self.source(path.stem) is None:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)

    def source(self, digest: str) -> bytes | None:
        """Return the file that runs were made from, as it was; ``None`` if it is not here. It is read, and not run."""
        path = self.source_path(digest)
        try:
            content = path.read_bytes() if is_there(path) else None
        except OSError as error:
            raise unreadable(path, error) from error
        if content is not None and source_digest(content) != digest:
            raise DamagedError(
                f"{path} is not the file that its name says (its content has the digest {source_digest(content)}): it "
                "was changed from outside. Restore it, or remove it and name the file that runs are made from again."
            )
        return content

    def source_path(self, digest: str) -> Path:
        """Return where the file with a digest is kept."""
        return self.folder / "sources" / f"{digest}.py"

    def run_folder(self, id: str) -> Path:
        """Return the folder of a run."""
        return self.files.run_folder(id)

    def checkpoint_folder(self, ids: Sequence[str]) -> Path:
        """Return the folder for the checkpoints of some runs that train together; the caller has claimed them."""
        if len(ids) == 1:
            return self.run_folder(ids[0])
        folder = self.folder / "groups" / digest_of(ids)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
            write_whole(folder / MEMBERS, write_json(list(ids)))
        return folder

    def begun_groups(self) -> list[tuple[str, ...]]:
        """Return the ids of runs that have a checkpoint together, in the order in which they train."""
        return [group.ids for group in groups_in(self.folder) if not group.damage and group.has_checkpoint]

    def group_damage(self) -> list[str]:
        """Return which groups of runs that were begun together cannot go on so, and why."""
        return [group.damage for group in groups_in(self.folder) if group.damage]

    def _check_observed(self, result: Result) -> None:
        """Refuse a run that had probes where nothing is left of what they have seen."""
        path = self.run_folder(result.spec.id) / OBSERVED
        if result.spec.probes and not self.files.has_observations(result.spec.id):
            raise DamagedError(
                f"{path} is missing: it was removed from outside. The run's result is whole. Restore the file, or "
                f"remove the folder {path.parent} to make the run again."
            )


def as_store(store: Store | str | os.PathLike[str]) -> Store:
    """Return a store, of which the folder alone may be given."""
    return store if isinstance(store, Store) else Store(store)


class RunClaim:
    """The right to make a run, for as long as it is held."""

    def __init__(self, spec: Spec, files: RunFiles, lock: Lock) -> None:
        self.spec = spec
        self._files = files
        self._folder = files.run_folder(spec.id)
        self._lock = lock
        with writing(self._folder):
            remove_unfinished(self._folder)
            if not _holds(spec, files):
                write_whole(self._folder / "spec.json", write_json(spec.to_dict()))

    def finish(self, result: Result, observations: Mapping[str, Any] | None = None) -> None:
        """Add the run's result, of which there is only ever one, and what its probes have seen."""
        path = self._folder / "result.json"
        if self._files.has(self.spec.id, path.name):
            raise StoreError(f"{path} exists already; a result is never overwritten. Was its lock file removed?")
        with writing(path):
            if observations:  # before the result, whose presence says that all is there
                Flattened.of(dict(observations)).write(self._folder / OBSERVED)
            write_whole(path, write_json(sealed(result.to_dict())))

    def fail(self, failure: Failure) -> None:
        """Add why the run could not go on."""
        number = 1
        while self._files.has(self.spec.id, f"failure-{number}.json"):
            number += 1
        path = self._folder / f"failure-{number}.json"
        with writing(path):
            write_whole(path, write_json(sealed(failure.to_dict())))

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong while writing into an error that says where."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path} could not be written: {error.strerror or error}. Every result before it is safe. Make room, or "
            "make the store writable, and start again: runs go on from their last checkpoints."
        ) from error


def spec_of(run: str, files: RunFiles) -> Spec:
    """Return what a run is by the file that says so."""
    content, path = files.read(run, "spec.json"), files.where(run, "spec.json")
    if content is None:
        raise DamagedError(f"{path} is missing: it was removed from outside. Restore it, or remove the folder.")
    spec = parsed(Spec.from_dict, content, path)
    check_belonging(spec, path)
    return spec


def _holds(spec: Spec, files: RunFiles) -> bool:
    """Whether a file says what a run is."""
    try:
        return spec_of(spec.id, files) == spec
    except DamagedError:
        return False


def _stray(path: Path) -> str:
    return f"{path} is none of the run's files: it was copied there from outside. Remove it."
