"""The families of models."""

from importlib import import_module

from benchmarks.families.family import Case, Section

MODULES = (
    "vision",
    "generative",
    "sequences",
    "language",
    "structures",
    "others",
    "unusual",
    "execution",
    "huggingface",
)


def sections() -> list[Section[Case]]:
    """Return all families of models, in sections."""
    modules = [import_module(f"{__name__}.{name}") for name in MODULES]
    return list({id(s): s for m in modules for s in vars(m).values() if isinstance(s, Section)}.values())
