"""``python -m anchorhold``: the same as the command ``anchorhold``."""

import sys

from anchorhold.command_line import main

sys.exit(main())
