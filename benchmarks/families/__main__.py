"""Try the library on every family of models, optimisers and trainers: ``python -m benchmarks.families``.

Names choose some of them, by any part of a family's or a section's name, and nothing is written then::

    python -m benchmarks.families lstm "mixture of experts"

Without names, the table goes to ``results/families.md`` and ``results/families.json``. The command fails if anything is
WRONG or crashed. Packages that are missing (transformers, peft, schedulefree, lomo-optim, galore-torch,
pytorch-optimizer) make rows that say so.
"""

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path

import torch

from benchmarks.families.everything import rows_of, wanted
from benchmarks.families.table import counts, write
from benchmarks.families.verdicts import BAD


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help="only families that have this in their name")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    chosen = wanted(options.names)
    if not chosen:
        parser.exit(2, f"No family has {' or '.join(map(repr, options.names))} in its name.\n")
    start, rows = time.perf_counter(), []
    for row in rows_of(chosen):
        rows.append(row)
        difference = "" if row.outcome.difference is None else f"{row.outcome.difference:.0e}"
        notes = "; ".join(row.outcome.notes) if options.names or row.outcome.verdict in BAD else ""
        print(f"{row.name:40} {row.outcome.verdict:16} {difference:6} {notes}", flush=True)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts(rows).items())
    print(f"{len(rows)} families in {time.perf_counter() - start:.0f} s: {told}")
    if not options.names:
        write(options.results, rows)
    sys.exit(any(row.outcome.verdict in BAD for row in rows))


main()
