"""Looking into runs: correlations of measures, path integrals, which weights lowered the loss, noise, statistics."""

from typing import TYPE_CHECKING

from anchorhold_lab.on_demand import on_demand

if TYPE_CHECKING:
    from anchorhold_lab.analysis.loss_change import LossChangeAllocation
    from anchorhold_lab.analysis.pearson import CoMoments
    from anchorhold_lab.analysis.probes.registry import make_probe
    from anchorhold_lab.analysis.repetitions import (
        Estimate,
        WelchTest,
        correlation_interval,
        difference_between,
        difference_in_errors,
        estimate,
        shares_at_least,
        welch_test,
    )

__all__ = [
    "CoMoments",
    "Estimate",
    "LossChangeAllocation",
    "WelchTest",
    "correlation_interval",
    "difference_between",
    "difference_in_errors",
    "estimate",
    "make_probe",
    "shares_at_least",
    "welch_test",
]

__getattr__ = on_demand(
    __name__,
    {
        "loss_change": ("LossChangeAllocation",),
        "pearson": ("CoMoments",),
        "probes.registry": ("make_probe",),
        "repetitions": (
            "Estimate",
            "WelchTest",
            "correlation_interval",
            "difference_between",
            "difference_in_errors",
            "estimate",
            "shares_at_least",
            "welch_test",
        ),
    },
)
