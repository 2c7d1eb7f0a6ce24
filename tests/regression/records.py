"""What cases came to: a digest of the bits and some projections of every group of tensors, and the file of them.

``python -m tests.regression.records`` adds what the file lacks and names what has changed. ``--replace NAME ...``
takes what these cases come to now, ``--replace all`` what all do, and removes cases that are gone. ``--file PATH``
writes another file: that of a commit before a change, for ``ANCHORHOLD_REGRESSION=PATH``.
"""

import argparse
import hashlib
import json
import math
import sys
import warnings
from pathlib import Path

import torch

FILE = Path(__file__).with_name("records.json")
PROJECTIONS = 2


def fingerprint(groups):
    """Return what is recorded of a case: of each group a digest, its size, its norm and projections."""
    found = {}
    for name, vector in groups.items():
        along = [] if name == "bases" else [vector.norm(), *(vector @ each for each in directions(len(vector)))]
        digest = hashlib.sha256(vector.numpy().tobytes()).hexdigest()[:12]
        found[name] = [digest, len(vector), *(float(f"{float(number):.13g}") for number in along)]
    return found


def directions(size):
    """Return vectors of signs that are the same on every machine."""
    drawn = hashlib.shake_256(b"anchorhold").digest(PROJECTIONS * size)
    signs = torch.tensor(list(drawn), dtype=torch.float64).view(PROJECTIONS, size)
    return 1 - 2 * (signs % 2)


def differences(found, expected, share, *, bits=False):
    """Return what a case came to that is not as it was recorded, a line for each group.

    Args:
        found: the fingerprint now.
        expected: the one that was recorded.
        share: how far projections may be apart, as a share of the norm.
        bits: whether digests have to be the same too.
    """
    lines = [f"{name}: only in one of both" for name in sorted(found.keys() ^ expected.keys())]
    for name in sorted(found.keys() & expected.keys()):
        (digest, size, *now), (digest_then, size_then, *then) = found[name], expected[name]
        if size != size_then:
            lines.append(f"{name}: {size} numbers, and {size_then} were recorded")
        elif then:
            apart, norm = max(abs(a - b) for a, b in zip(now, then, strict=True)), max(then[0], 1e-12)
            if not apart <= share * norm:  # NaN is not, either
                lines.append(f"{name}: {apart / norm:.1e} of the norm apart")
        if bits and digest != digest_then:
            lines.append(f"{name}: other bits")
    return lines


def read(path=FILE):
    return json.loads(path.read_text()) if path.exists() else {}


def write(records, path=FILE):
    lines = [f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(records.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    from tests.regression.cases import CASES  # noqa: PLC0415
    from tests.regression.playing import Play  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replace", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    records, refused = read(options.file), 0
    every = options.replace == ["all"]
    for name, case in CASES.items():
        found = fingerprint(Play(case).run())
        if not all(math.isfinite(number) for _, _, *numbers in found.values() for number in numbers):
            raise SystemExit(f"{name}: not finite; nothing was written.")
        wrong = differences(found, records[name], case.apart, bits=True) if name in records else ["new"]
        if wrong:
            print(f"{name}: {'; '.join(wrong)}")
        if wrong == ["new"] or every or name in options.replace:
            records[name] = found
        else:
            refused += bool(wrong)
    for name in sorted(records.keys() - CASES.keys()):
        print(f"{name}: no such case any more")
        if every or name in options.replace:
            del records[name]
        else:
            refused += 1
    write(records, options.file)
    if refused:
        sys.exit(f"{refused} records stay as they were: --replace NAME ... takes what they are now.")


if __name__ == "__main__":
    main()
