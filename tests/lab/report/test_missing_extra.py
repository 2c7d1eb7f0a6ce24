import subprocess
import sys

SCRIPT = """
import sys
from anchorhold.errors import MissingExtraError
for package in ("jinja2", "matplotlib"):
    sys.modules[package] = None  # as if it were not installed
    try:
        import anchorhold_lab.report
    except MissingExtraError as error:
        print(error)
    del sys.modules[package]
import anchorhold_lab.report
"""


def test_whoever_lacks_a_package_is_told_how_to_get_it():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'anchorhold-lab'") == 2
