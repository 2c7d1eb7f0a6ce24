"""The methods that the paper stands among, each where its authors ran it, and beside the same references."""

from studies.benzing2020.relatives.study import Reported, Row, Settings, Study

__all__ = ["Reported", "Row", "Settings", "Study"]
