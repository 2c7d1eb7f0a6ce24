"""The largest share of a merge at which no more of the model before is lost than so many nats a token.

Each share that is tried is written to a folder and measured there as :func:`anchorhold.forgetting` measures, so what is
measured is what stays: the same files, with their rounding.
"""

import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.evaluation.documents import Texts
from anchorhold.evaluation.folders import check_folder
from anchorhold.evaluation.measure_forgetting import Comparison, Progress, asked_for, comparison
from anchorhold.merging.tensor_files import as_path, refuse_existing
from anchorhold.own_text.written_text import OwnText
from anchorhold.settings import number, whole_number

_CLOSE = 0.95
"""Of the KL that is allowed: a share that comes to as much is near enough to the largest."""


@dataclasses.dataclass(frozen=True)
class ShareWithin:
    """A share whose KL was measured to be within a limit.

    Args:
        share: of the model after.
        kl: KL(p_old‖p_new) at it, in nats a token.
        tried: every share that was measured, with its KL, in the order in which they were tried.
    """

    share: float
    kl: float
    tried: tuple[tuple[float, float], ...]


def largest_share(kl_at: Callable[[float], float], limit: float, tries: int = 8) -> ShareWithin:
    r"""Return the largest share whose KL is at most a limit, as far as a few tries tell.

    Near 0 the KL is a quadratic of the share c, so :math:`\sqrt{KL}` is nearly a line: each try is where the line
    through the ends of the interval meets the limit, and after half of the tries the middle, as in bisection, which
    ends any other shape too. It stops at a share with 0.95 to 1 times the limit, or where four decimals do
    not tell shares apart. The KL is taken to rise with the share.

    Args:
        kl_at: measures a share.
        limit: in nats a token.
        tries: how many shares are measured at most.
    """
    tried = [(1.0, kl_at(1.0))]
    low, high = (0.0, 0.0), tried[0]
    if high[1] <= limit:
        return ShareWithin(*high, tuple(tried))
    while len(tried) < tries and not low[1] >= _CLOSE * limit:
        # A little within the limit, so that a quadratic ends at once.
        aim = math.sqrt((1 + _CLOSE) / 2 * limit)
        ends = [(share, math.sqrt(kl)) for share, kl in (low, high)]
        part = (aim - ends[0][1]) / (ends[1][1] - ends[0][1])
        middle = len(tried) > tries // 2 or not 0 < part < 1
        share = round(low[0] + (0.5 if middle else part) * (high[0] - low[0]), 4)
        if share in (low[0], high[0]):
            break
        tried.append((share, kl_at(share)))
        low, high = (tried[-1], high) if tried[-1][1] <= limit else (low, tried[-1])
    return ShareWithin(*low, tuple(tried))


def merge_until_kl(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    kl: float,
    text: Texts | None = None,
    *,
    write: Callable[[float, Path], object],
    out: str | os.PathLike[str],
    data: Texts | None = None,
    own_text: "OwnText | str | os.PathLike[str] | bool | None" = None,
    tries: int = 8,
    progress: Progress | None = None,
    **how: Any,
) -> ShareWithin:
    """Write the merge with the largest share of ``after`` whose KL on the text is at most ``kl``.

    Args:
        before: the folder of a model.
        after: the folder of the model that was made from it.
        kl: the most that may be lost, in nats a token, of the mean of the text's kinds.
        text: as of :func:`anchorhold.forgetting`; without any, text that the model before writes.
        write: writes the merge at a share to a folder.
        out: where the result goes; nothing is there before it is found.
        data: as of :func:`anchorhold.forgetting`.
        own_text: as there, where no other text is given.
        tries: how many shares are measured at most, 2 or more.
        progress: as there.
        how: further settings of :func:`anchorhold.forgetting`.

    Raise ConfigurationError if no share that was tried is within the limit, or if there is no KL between the models.
    """
    limit = float(number("until_kl", kl, "a number of nats a token above 0", lambda value: value > 0))
    tries = whole_number("tries", tries, "a whole number of at least 2", least=2)
    path = check_folder(before, "before")
    check_folder(after, "after")
    target = as_path(out)
    refuse_existing(target)
    own_text = False if text is not None or data is not None else own_text
    asked = asked_for(text, data=data, own_text=own_text, progress=progress, **how)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as aside, ExitStack() as opened:
        kept = Path(aside)
        compared: Comparison | None = None

        def kl_at(share: float) -> float:
            nonlocal compared
            folder = kept / f"{share:.4f}"
            write(share, folder)
            if compared is None:  # once what cannot be merged has been refused
                compared = opened.enter_context(comparison(path.resolve().name, path, asked, several=True))
            report = compared.with_models([(f"share {share:.4g}", folder)])
            found = report.row().kl
            if found is None:
                raise ConfigurationError(
                    f"There is no KL between {str(before)!r} and {str(after)!r}: {' '.join(report.notes)} Give "
                    "--share instead."
                )
            if found.value > limit:
                shutil.rmtree(folder)
            return found.value

        found = largest_share(kl_at, limit, tries)
        if found.share == 0:
            least = min(found.tried)
            raise ConfigurationError(
                f"At every share that was tried more than {limit:g} nats a token are lost, {least[1]:.4g} at "
                f"{least[0]:.4g}, so nothing was written. Allow more, or keep the model before."
            )
        (kept / f"{found.share:.4f}").rename(target)
    return found
