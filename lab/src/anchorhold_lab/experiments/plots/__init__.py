"""Pictures of one's own runs."""

import anchorhold_lab.report  # noqa: F401 (before matplotlib, so that whoever lacks it is told how to get it)
