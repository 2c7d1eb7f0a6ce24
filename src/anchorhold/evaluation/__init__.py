"""What a model has forgotten and learned, measured on text, for language models that anybody trained."""

from anchorhold.evaluation.measure_forgetting import ForgettingInterrupted, forgetting
from anchorhold.evaluation.report import Estimate, Forgotten, Row

__all__ = ["Estimate", "ForgettingInterrupted", "Forgotten", "Row", "forgetting"]
