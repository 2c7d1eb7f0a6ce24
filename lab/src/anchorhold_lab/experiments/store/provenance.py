"""Where a result comes from: the code, the packages and the machine that made it."""

import functools
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

import anchorhold
import anchorhold_lab


@functools.cache
def source_commit() -> str | None:
    """Return the commit of the source if it is a git checkout, marked if the library or the lab has changed."""
    folder, lab = Path(anchorhold.__file__).parent, Path(anchorhold_lab.__file__).parent
    try:
        root = Path(_git(folder, "rev-parse", "--show-toplevel"))
        # A package that was installed into some other project's checkout is not that project's source.
        if not (root / "src" / "anchorhold").samefile(folder):
            return None
        if not (root / "lab" / "src" / "anchorhold_lab").samefile(lab):
            return None
        changed = _git(folder, "status", "--porcelain", "--", str(folder), str(lab))
        return _git(folder, "rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of everything that computes."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "anchorhold": anchorhold.__version__,
        "anchorhold-lab": anchorhold_lab.__version__,
    }


def device_name(device: torch.device) -> str:
    """Return what a device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() if device.type == "cpu" else str(device)


@functools.cache
def _processor() -> str:
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603, S607
    return done.stdout.strip()
