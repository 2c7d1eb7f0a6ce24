"""The example, started as its users would start it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import limit

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_loop.py"


@pytest.mark.nightly
def test_the_ddp_loop():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*launch, EXAMPLE], check=False, capture_output=True, text=True, timeout=limit(30))
    assert done.returncode == 0, done.stderr
    first, second = map(float, re.findall(r"([\d.]+)%", done.stdout))
    assert first > 95  # 88 without protection
    assert second > 90


def test_it_adds_fewer_than_ten_lines():
    assert 3 <= EXAMPLE.read_text(encoding="utf-8").count("# anchorhold\n") < 10
