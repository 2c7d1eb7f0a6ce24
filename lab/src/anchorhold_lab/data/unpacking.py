"""Taking known files out of an archive, and nothing else."""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO

from anchorhold.errors import DataError
from anchorhold.whole_files import whole_file

_LARGEST = 2**28
"""No file of these data sets is larger."""
_LARGEST_TOTAL = 2**29
"""No archive of these data sets unpacks to more; a larger one is left before it fills the disk or the day."""


def unpack(archive: Path, folder: Path, members: Collection[str]) -> None:
    """Put some members of a gzipped tar archive into a folder, each whole or absent.

    Only what is named is written, only where it is named, and only if it is a plain file.
    """
    missing = set(members)
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                total += entry.size
                if total > _LARGEST_TOTAL:
                    raise DataError(f"{archive} unpacks to more than {_LARGEST_TOTAL} bytes; expected a data set.")
                if entry.name not in missing:
                    continue
                content = tar.extractfile(entry) if entry.isreg() and entry.size <= _LARGEST else None
                if content is None:
                    raise DataError(f"{entry.name} in {archive} is a link, a folder or too large; expected a file.")
                with content:
                    _write(folder / entry.name, content)
                missing.remove(entry.name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{archive} is not a whole archive ({error}). Download it again.") from error
    if missing:
        raise DataError(f"{archive} lacks {', '.join(sorted(missing))}. Download it again.")


def _write(target: Path, content: IO[bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as file:
        shutil.copyfileobj(content, file)
