"""``python -m anchorhold``: the laboratory's command line."""

from anchorhold_lab.cli import main

main()
