"""Code that people copy and nobody packages: run from the checkout that the user has made of it.

The folder with the checkouts is named by the environment variable ANCHORHOLD_AUDIT_CHECKOUTS, or by ``make audit
CHECKOUTS=folder``. A checkout has to have, byte for byte, the file of the commit that the audit describes.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = "ANCHORHOLD_AUDIT_CHECKOUTS"


@dataclass(frozen=True)
class Checkout:
    """A repository at one commit, and the file of it that is audited.

    Args:
        repository: its owner and name on GitHub; the checkout is a folder of that name.
        commit: the commit.
        file: the file that computes the importance.
        sha256: the digest of that file's bytes.
    """

    repository: str
    commit: str
    file: str
    sha256: str

    @property
    def name(self) -> str:
        return self.repository.partition("/")[2]

    @property
    def version(self) -> str:
        """Return the commit as a reader writes it."""
        return self.commit[:7]

    def folder(self) -> Path:
        """Return where it lies. Raise ImportError if it is not there, or not at that commit."""
        given = os.environ.get(FOLDER)
        wanted = f"https://github.com/{self.repository} at commit {self.commit} in the folder {self.name}"
        if not given:
            raise ImportError(f"{FOLDER} is not set. It names the folder that holds {wanted}.")
        file = Path(given) / self.name / self.file
        if not file.is_file():
            raise ImportError(f"no file {file}. {FOLDER} is to hold {wanted}.")
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != self.sha256:
            raise ImportError(
                f"{file} has the SHA-256 {found}, that of commit {self.version} is {self.sha256}. Check out {wanted}."
            )
        return file.parents[len(Path(self.file).parts) - 1]


@contextmanager
def importable(folder: Path, *packages: str) -> Iterator[None]:
    """Let the block import what lies in ``folder``; ``packages`` of it are forgotten afterwards.

    Their names are everybody's, such as ``utils``, and would stand in the way of others'.
    """
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
