"""Looking into runs: correlations of measures, path integrals, gradient noise, and the statistics of repetitions."""

from typing import TYPE_CHECKING

from holdfast.lab.on_demand import on_demand

if TYPE_CHECKING:
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

__getattr__ = on_demand(
    __name__,
    {
        "pearson": ("CoMoments",),
        "probes.registry": ("make_probe",),
        "repetitions": (
            "Estimate",
            "WelchTest",
            "correlation_interval",
            "difference_in_errors",
            "estimate",
            "shares_at_least",
            "welch_test",
        ),
    },
)
