"""What is kept of what a model knew, and the tolerance that follows it."""

from holdfast.retention.controller import Tolerance, TracePoint
from holdfast.retention.kept_set import KeptSet
from holdfast.retention.kept_sets import KeptSets
from holdfast.retention.report import Retention, SetRetention
from holdfast.retention.way_back import PulledBack

__all__ = ["KeptSet", "KeptSets", "PulledBack", "Retention", "SetRetention", "Tolerance", "TracePoint"]
