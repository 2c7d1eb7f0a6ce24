"""What the tests of reliability let other processes do."""

import itertools
import os
import resource
import signal
import tempfile
from pathlib import Path

import torch

from anchorhold.errors import StoreError
from anchorhold_lab.experiments import RunFinished, Store, execute
from anchorhold_lab.experiments.store.locks import Lock
from tests.forked import CONTEXT


class Child:
    """A process that runs a function, which is given a connection to tell things through."""

    def __init__(self, function, *args):
        self.told, end = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=function, args=(end, *args), daemon=True)
        self.process.start()
        end.close()

    def hear(self):
        """Return the next thing it tells; ``None`` once it has ended."""
        try:
            return self.told.recv()
        except EOFError:
            return None

    def end(self):
        """Wait for its end, and return how it ended."""
        self.process.join()
        self.told.close()
        return self.process.exitcode


def run_all(connection, folder, specs, barrier=None, most=None):
    """Run specs with a checkpoint at every opportunity, telling of each event by name; after the most events, wait."""
    torch.set_num_threads(1)
    if barrier is not None:
        barrier.wait()
    events = itertools.count()

    def tell(event):
        if next(events) == most:
            signal.pause()
        connection.send((type(event).__name__, event.result.spec.id if isinstance(event, RunFinished) else None))

    execute(specs, Store(folder), checkpoint_seconds=0, on_event=tell)


def run_within_file_size(connection, folder, specs, limit):
    """Run specs where no file can be larger than a limit, as on a disk that is nearly full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    _run_into_error(connection, folder, specs)


def run_without_rights(connection, folder, specs):
    """Run specs as a user who may read the store and not write it."""
    with tempfile.TemporaryDirectory() as elsewhere:
        execute(specs[:1], Store(elsewhere))  # loads what that user may have no right to read
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        Path(folder, "test").touch()
    except PermissionError:
        connection.send("writing fails")
    connection.send(len(Store(folder).results()))
    _run_into_error(connection, folder, specs)


def run_within_memory(connection, folder, specs, more):
    """Run specs with so many bytes more than the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    summary = execute(specs, Store(folder))
    connection.send([failed.reason for failed in summary.failed])


def _run_into_error(connection, folder, specs):
    torch.set_num_threads(1)
    try:
        execute(specs, Store(folder))
    except StoreError as error:
        connection.send(str(error))


def hold(connection, path):
    """Take a lock, tell whether that was possible, and keep it until killed."""
    lock = Lock(path)
    connection.send(lock.take())
    signal.pause()
