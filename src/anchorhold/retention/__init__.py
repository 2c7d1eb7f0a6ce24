"""What is kept of what a model knew, and the tolerance that follows it."""

from anchorhold.retention.controller import Tolerance, TracePoint
from anchorhold.retention.kept_set import KeptSet
from anchorhold.retention.kept_sets import KeptSets
from anchorhold.retention.report import Retention, SetRetention
from anchorhold.retention.way_back import PulledBack

__all__ = ["KeptSet", "KeptSets", "PulledBack", "Retention", "SetRetention", "Tolerance", "TracePoint"]
