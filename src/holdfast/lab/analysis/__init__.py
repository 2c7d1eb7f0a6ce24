"""Looking into runs: correlations of measures, path integrals, gradient noise, and the statistics of repetitions."""

from holdfast.lab.analysis.pearson import CoMoments
from holdfast.lab.analysis.probes.registry import make_probe
from holdfast.lab.analysis.repetitions import (
    Estimate,
    WelchTest,
    correlation_interval,
    difference_in_errors,
    estimate,
    shares_at_least,
    welch_test,
)

__all__ = [
    "CoMoments",
    "Estimate",
    "WelchTest",
    "correlation_interval",
    "difference_in_errors",
    "estimate",
    "make_probe",
    "shares_at_least",
    "welch_test",
]
