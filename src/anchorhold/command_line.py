"""``anchorhold merge``: weights between those of several models, in files."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.text import Text

from anchorhold.errors import AnchorholdError, ConfigurationError, StoreError
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.output import messages, print_json, results

if TYPE_CHECKING:
    from anchorhold.merging.between import Normalise

DAMPING = 0.1
"""As :mod:`anchorhold.merging.between` has it, which takes torch to load, and help does not."""
_TYPES = ("float32", "float16", "bfloat16", "float64")
_NO_GUARD = "-"


def merge(
    before: Annotated[Path, typer.Argument(help="A safetensors file, or a folder that save_pretrained wrote.")],
    after: Annotated[
        list[Path], typer.Argument(help="Another model of the same network, or several; or adapters of BEFORE.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the result; nothing is ever replaced.")],
    share: Annotated[
        list[float] | None,
        typer.Option(
            "--share",
            "-s",
            help="That of AFTER, from 0 to 1; of several one for each, and BEFORE has the rest.",
            show_default="0.5",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help=f"The file that a model's guard was saved to, for each model in order; {_NO_GUARD} for one without.",
            show_default="the average",
        ),
    ] = None,
    normalise: Annotated[
        str, typer.Option(help="Over what each guard's mean importance is made 1: network, layers or none.")
    ] = "network",
    damping: Annotated[
        float, typer.Option(help="The share of the mean importance that every direction has beside what was measured.")
    ] = DAMPING,
    dtype: Annotated[
        str | None, typer.Option(help=f"Of the result: {', '.join(_TYPES)}.", show_default="as the models")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object.")] = False,
) -> None:
    """Merge models in files: by the average of their weights, or by what guards say that each weight is worth.

    Guards in the diagonal form make it Fisher merging, in Kronecker(outputs="identity", damping=0.0) RegMean. Files may
    be larger than memory. Two adapters of one base are merged into one that stands for the average of both.
    """
    if dtype is not None and dtype not in _TYPES:
        raise ConfigurationError(f"--dtype {dtype}: expected one of {', '.join(_TYPES)}.")
    with loading():
        import torch  # noqa: PLC0415

        from anchorhold.merging import Merging  # noqa: PLC0415
        from anchorhold.merging.lora_files import is_adapter  # noqa: PLC0415

    shares = share or [0.5]
    with _told_in_lines():
        if is_adapter(before):
            said = _merge_adapters(before, after, shares, by, out)
        else:
            forms = [None if each == _NO_GUARD else each for each in by or ()]
            between = Merging(
                before,
                after if len(after) > 1 else after[0],
                by=None if not forms else forms[0] if len(forms) == 1 else forms,
                normalise=cast("Normalise", normalise),
                damping=damping,
                dtype=None if dtype is None else getattr(torch, dtype),
            )
            between.at(shares if len(after) > 1 or len(shares) > 1 else shares[0], out=out)
            said = between.said
    if as_json:
        print_json({"out": str(out), "shares": [1 - sum(shares), *shares], "by": said})
        return
    parts = ", ".join(f"{each:.3g}" for each in (1 - sum(shares), *shares))
    messages().print(f"Merged with shares {parts}, by {said}:", soft_wrap=True)
    results().print(str(out), soft_wrap=True)


def _merge_adapters(
    before: Path, after: Sequence[Path], shares: Sequence[float], by: Sequence[str] | None, out: Path
) -> str:
    if by or len(after) > 1 or len(shares) > 1:
        raise ConfigurationError(
            f"{str(before)!r} is an adapter: two of them are averaged with one share, and without guards. To merge the "
            "weights that adapters stand for, give their base model first."
        )
    from anchorhold.merging import merge_adapters  # noqa: PLC0415 (it takes torch)

    made = merge_adapters(before, after[0], shares[0], out=out)
    return f"the average of two adapters, in one of rank {made.config['r']}"


@contextlib.contextmanager
def _told_in_lines() -> Iterator[None]:
    """Print warnings as lines, and let a disk that is full end the command as one that cannot be written does."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            yield
        except AnchorholdError:
            raise
        except OSError as error:
            raise StoreError(f"The merged model was not written ({error}). Nothing is left of it.") from error
        finally:
            for each in told:
                messages().print(Text.assemble(("warning: ", "bold yellow"), str(each.message)), soft_wrap=True)
