"""Where a worker keeps its runs while it makes them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anchorhold_lab.experiments.store.locks import Lock
from anchorhold_lab.experiments.store.store import Store, writing


@contextlib.contextmanager
def workplace() -> Iterator[Store]:
    """Give an empty store in the folder for temporary files, and remove it, and those of workers that were killed."""
    prefix = f"anchorhold-worker-{os.getuid()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_abandoned(left)
    with writing(Path(tempfile.gettempdir())):
        while not (lock := Lock(Path(tempfile.mkdtemp(prefix=prefix)) / "lock")).take():
            pass  # another worker took it for one that was abandoned
    try:
        yield Store(lock.path.parent)
    finally:
        shutil.rmtree(lock.path.parent, ignore_errors=True)
        lock.release()


def _remove_if_abandoned(folder: Path) -> None:
    lock = Lock(folder / "lock")
    with contextlib.suppress(OSError):  # somebody else may be removing it as well
        if lock.path.exists() and lock.take():
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
