"""Run the benchmarks named on the command line, or all of them."""

import argparse
from pathlib import Path

from benchmarks import importance, memory, rules, step

BENCHMARKS = {"importance": importance.run, "rules": rules.run, "memory": memory.run, "step": step.run}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument(
        "--quick", action="store_true", help="a rehearsal: small sizes, one repetition, nothing written"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    for name in options.names or BENCHMARKS:
        for report in BENCHMARKS[name](options.quick):
            report.show()
            if not options.quick:
                report.write(options.results)


main()
