"""Run the benchmarks named on the command line, or all of them."""

import argparse
import importlib
from pathlib import Path

NAMES = ("importance", "rules", "memory", "step", "state")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(NAMES)}; all by default")
    parser.add_argument(
        "--quick", action="store_true", help="a rehearsal: small sizes, one repetition, nothing written"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    for name in options.names or NAMES:
        # Some of them need other libraries, to compare with.
        benchmark = importlib.import_module(f"benchmarks.{name}")
        for report in benchmark.run(options.quick):
            report.show()
            if not options.quick:
                report.write(options.results)


main()
