"""How much memory the engine takes beyond the model and the data, each number of samples in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness import Ratio, Report
from benchmarks.memory_probe import STATUS


def run(quick: bool) -> Iterator[Report]:
    report = Report("memory", "Peak extra memory of the exact Fisher of Split CIFAR's network", [], {})
    if not STATUS.exists():
        report.notes.append("Not measured: the peak is read from Linux's /proc.")
    else:
        for samples in (10, 50) if quick else (100, 500, 5000):
            probe = subprocess.run(
                [sys.executable, "-m", "benchmarks.memory_probe", str(samples)],
                check=True,
                capture_output=True,
                text=True,
            )
            report.ratios.append(Ratio(f"{samples} samples", int(probe.stdout) / 2**20, 1024.0, unit=" MiB"))
        report.notes.append(
            "The peak of resident memory while measuring, less the resident memory just before, when the model and all "
            "the images were there already. It includes what torch itself sets up on its first passes."
        )
    yield report
