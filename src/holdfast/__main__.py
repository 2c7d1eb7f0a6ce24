"""``python -m holdfast``: the same as the command ``holdfast``."""

from holdfast.cli import main

main()
