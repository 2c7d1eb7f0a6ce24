"""One bit of one kept file is flipped: it is refused, or nothing has changed. ``python -m torture.bit_flips``."""

import random
from collections.abc import Iterator

from torture.kept_files import kept_files
from torture.outcome import Outcome, main


def trials(seed: int) -> Iterator[Outcome]:
    """Flip a bit of every kind of file in turn, without end; trial k has the seed ``seed + k``."""
    with kept_files() as files:
        while True:
            file = files[seed % len(files)]
            content = bytearray(file.path.read_bytes())
            bit = random.Random(seed).randrange(8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            yield file.tried(seed, bytes(content), f"bit {bit % 8} of byte {bit // 8}")
            seed += 1


if __name__ == "__main__":
    main(trials, __doc__ or "")
