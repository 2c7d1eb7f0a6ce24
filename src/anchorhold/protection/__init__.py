"""Protection in one call: own text or old data, the form that fits, an exchange rate, distillation, averaging."""

from anchorhold.protection.guard import ProtectedGuard, Report
from anchorhold.protection.in_one_call import plan, protect, resume_protection
from anchorhold.protection.planning import Plan
from anchorhold.protection.samples import Samples
from anchorhold.protection.settings import Protection
from anchorhold.protection.weighing import Look, Weighed

__all__ = [
    "Look",
    "Plan",
    "ProtectedGuard",
    "Protection",
    "Report",
    "Samples",
    "Weighed",
    "plan",
    "protect",
    "resume_protection",
]
