"""Audit other libraries: ``python -m benchmarks.audit``, in an environment that ``make audit`` has made."""

import argparse
import logging
import time
from pathlib import Path

import torch

from benchmarks.audit.problem import digits_problem
from benchmarks.audit.rows import Library, adapter_names, library, rows
from benchmarks.audit.rwalk_section import version_rows
from benchmarks.audit.table import add, markdown, replace_rwalk, write

BATCHES = (1, 8, 32, 128, 512)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="adapter", help="only these, printed and not written")
    parser.add_argument("--add", action="store_true", help="put these into the audit that there is")
    parser.add_argument("--rwalk", action="store_true", help="only make its section on RWalk anew; needs no library")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    if options.rwalk:
        replace_rwalk(options.results, version_rows(digits_problem()))
        return
    wanted = [library(name) for name in options.names or adapter_names()]
    libraries = [one for one in wanted if isinstance(one, Library)]
    if len(libraries) < len(wanted):  # a table without them would take the place of one that has them
        missing = "\n".join(why for why in wanted if isinstance(why, str))
        parser.exit(
            1, f"{missing}\nNothing was measured or written. To install all libraries and audit them: make audit\n"
        )
    problem, found, batches = digits_problem(), [], list(BATCHES)
    for audited in libraries:
        start = time.perf_counter()
        found += rows(problem, audited.package, audited.version, audited.cases, batches)
        print(f"{audited.package} {audited.version}: {time.perf_counter() - start:.0f} s", flush=True)
    found.sort(key=lambda row: (row.library != "anchorhold", row.library.lower()))
    print("\n".join(markdown(found, batches)))
    if not options.names:
        write(options.results, found, version_rows(problem))
    elif options.add:
        add(options.results, found)


main()
