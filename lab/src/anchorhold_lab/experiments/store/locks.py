"""A lock that a run's process holds, and that the system frees when the process ends, however it ends.

Who makes a run has its lock (:class:`~anchorhold_lab.experiments.store.store.RunClaim`), who packs or unpacks a store
has that of the store, and a worker of Ray has that of the folder it works in. The locking itself is filelock's, which
torch needs too: ``flock`` on Unix, ``LockFile`` on Windows.
"""

import errno
import os
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout


class Lock:
    """An exclusive lock on a file, which stays where it is: removing it would let two processes lock two files.

    Only who holds it may remove it, before they release it: filelock takes no lock of a file without a name.

    It keeps out other processes, and other locks on the same file in this one. Another thread than the one that took it
    may release it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BaseFileLock = FileLock(path, thread_local=False)

    def take(self) -> bool:
        """Take the lock if nobody has it, not even through this object."""
        if self._lock.is_locked:
            return False
        self.path.parent.stat()  # filelock would make a folder that somebody has removed
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        except NotImplementedError as error:
            raise self._unsupported() from error
        if isinstance(self._lock, SoftFileLock):
            # What filelock makes do with where the system cannot lock: a file that a killed process would leave behind.
            self._lock.release()
            raise self._unsupported()
        return True

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()

    def is_held(self) -> bool | None:
        """Whether anybody has it; ``None`` where that cannot be found out, as in a folder that may only be read."""
        if self._lock.is_locked:
            return True
        try:
            if not self.path.exists():  # nobody has ever taken it, and looking leaves nothing behind
                return False
            if not self.take():
                return True
        except OSError:
            return None
        self.release()
        return False

    def _unsupported(self) -> OSError:
        return OSError(errno.ENOLCK, f"{os.strerror(errno.ENOLCK)}: the file system has no locks", str(self.path))
