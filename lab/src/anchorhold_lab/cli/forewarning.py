"""What is said before runs are made that cannot come to what their user may expect of them."""

from collections.abc import Iterable

from anchorhold_lab.cli.output import messages

_OF_WEIGHTS = {"asymmetric", "distillation", "projection", "variational"}
"""Holds that keep no sample of old classes."""
_BY_CLASS = (
    "--incremental class with {measures} alone: importance does not keep classes that were never seen together, at any "
    "strength that lets new ones be learned. --hold replay{without} keeps samples of old ones; "
    "docs/guides/class-incremental.md has what each comes to."
)


def forewarn(incremental: str | None, measures: Iterable[str], holds: Iterable[str], *, compress: bool) -> None:
    """Say so where importance alone is to keep old classes beside new ones.

    Args:
        incremental: the kind that was asked for.
        measures: by name.
        holds: what keeps beside them, by name.
        compress: whether a second network learns the tasks, beside which there are no holds.
    """
    alone = [measure for measure in measures if measure != "fine-tune"]
    if incremental == "class" and alone and set(holds) <= _OF_WEIGHTS:
        without = " in the place of --compress" if compress else ""
        named = ", ".join(dict.fromkeys(alone))
        messages().print(_BY_CLASS.format(measures=named, without=without), soft_wrap=True)
