"""The two halves of a batch in place of a second one: what SOS with α ≠ 0 can take, and no other measure.

"One could simply split the existing batch in two halves" (Benzing 2020, arXiv 2006.06357, appendix on SOS).
"""

from collections.abc import Iterable
from typing import Literal, cast

from anchorhold.errors import ConfigurationError
from anchorhold.measures import Measure
from anchorhold.measures.base import PathMeasure

SecondBatch = Literal["drawn", "halves"]


def check_halves(second_batch: SecondBatch, measures: Iterable[Measure]) -> None:
    """Refuse halves where no measure needs two gradients, or one needs the whole batch's.

    Both halves are in the step, so that SIU and SIB, which need a gradient that is independent of it, would become SI;
    and what sees one gradient would see that of half a batch.
    """
    if second_batch != "halves":
        return
    seen = [cast("PathMeasure", measure) for measure in measures if measure.needs.path]
    others = [repr(measure) for measure in seen if not measure.takes_estimates]
    if others or not seen:
        raise ConfigurationError(
            f"second_batch='halves' for {', '.join(others) or 'measures that look at no step'}; expected SOS with "
            "alpha other than 0, alone, which takes two gradients that need be independent of each other only. Leave "
            "second_batch as it is, 'drawn'."
        )
