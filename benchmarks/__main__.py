"""Run the benchmarks named on the command line, or the usual ones."""

import argparse
import importlib
from pathlib import Path

MODULES = {
    "importance": "importance",
    "factors": "factors",
    "rules": "rules",
    "memory": "memory",
    "step": "step",
    "forms-step": "forms_step",
    "steps-of-many": "many_tensors",
    "large-store": "large_store",
    "holds": "holds",
    "small-state": "small_state",
    "state": "state",
}
NAMES = tuple(MODULES)
USUAL = NAMES[:-1]
"""What runs without being named: the last one takes ten minutes and needs MNIST."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of {', '.join(NAMES)}; by default all but the last"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a rehearsal: small sizes, one repetition, nothing written"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    for name in options.names or USUAL:
        # Some of them need other libraries, to compare with.
        benchmark = importlib.import_module(f"benchmarks.{MODULES[name]}")
        for report in benchmark.run(options.quick):
            report.show()
            if not options.quick:
                report.write(options.results)


if __name__ == "__main__":
    main()
