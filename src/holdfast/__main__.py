"""``python -m holdfast``: the laboratory's command line."""

from holdfast.lab.cli import main

main()
