"""``python -m anchorhold_lab``: the same as the command ``anchorhold-lab``."""

from anchorhold_lab.cli import main

main()
