"""Print the peak extra bytes of one measurement: ``python -m benchmarks.memory_probe SAMPLES``."""

import re
import sys
from pathlib import Path

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from benchmarks import networks

STATUS = Path("/proc/self/status")


def peak_bytes(samples: int) -> int:
    """Return the peak extra bytes of measuring ``samples`` images."""
    model, images = networks.cnn(), networks.photographs(samples)
    start_peak_anew()
    before = kilobytes("VmRSS")
    sample_importance(model, [images], LogLikelihood(), SQUARE)
    return (kilobytes("VmHWM") - before) * 1024


def start_peak_anew() -> None:
    """Let the peak of this process's resident memory be what it is now."""
    Path("/proc/self/clear_refs").write_text("5")


def kilobytes(field: str) -> int:
    """Return what this process's status says of its memory: ``VmRSS``, what there is, or ``VmHWM``, its peak."""
    found = re.search(rf"{field}:\s+(\d+)", STATUS.read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    print(peak_bytes(int(sys.argv[1])))
