"""Print the peak extra bytes of one measurement: ``python -m benchmarks.memory_probe SAMPLES``."""

import re
import sys
from pathlib import Path

from benchmarks import networks
from holdfast.persample.engine import sample_importance
from holdfast.persample.phi import SQUARE
from holdfast.persample.scores import LogLikelihood

STATUS = Path("/proc/self/status")


def peak_bytes(samples: int) -> int:
    """Return the peak extra bytes of measuring ``samples`` images."""
    model, images = networks.cnn(), networks.photographs(samples)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _kilobytes("VmRSS")
    sample_importance(model, [images], LogLikelihood(), SQUARE)
    return (_kilobytes("VmHWM") - before) * 1024


def _kilobytes(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", STATUS.read_text())[1])


if __name__ == "__main__":
    print(peak_bytes(int(sys.argv[1])))
