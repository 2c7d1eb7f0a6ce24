"""``python -m anchorhold``: the laboratory's command line."""

from anchorhold.lab.cli import main

main()
