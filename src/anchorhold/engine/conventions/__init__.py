"""What families of models do with batches and labels, so that each is measured as it was trained.

Importing this package registers the conventions of Hugging Face's models. They are known by what such models have, so
that no library is imported for them.
"""

from anchorhold.engine.conventions.base import (
    BatchReader,
    Completion,
    Convention,
    register_convention,
    registered_conventions,
)
from anchorhold.engine.conventions.huggingface import problem_type

__all__ = ["BatchReader", "Completion", "Convention", "problem_type", "register_convention", "registered_conventions"]
