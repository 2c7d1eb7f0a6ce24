"""Studies of continual learning with anchorhold: scenarios, networks, runs, searches, reports and a command line."""

__version__ = "0.1.0"
