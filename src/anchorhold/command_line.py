"""The command ``anchorhold``: what a fine-tuner does with models in files.

The entry point of the distribution and ``python -m anchorhold`` call :func:`main`. Help comes without torch, which
takes seconds to load: a command imports what it needs once it runs.
"""

import argparse
import contextlib
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anchorhold
from anchorhold.errors import AnchorholdError, ConfigurationError, StoreError

DONE, USAGE, STORE, INTERRUPTED = 0, 2, 4, 130
_MEANINGS = (
    "Exit codes: 0 done; 2 a mistake in what was asked for; 4 the result cannot be written; 130 interrupted by Ctrl-C."
)
_DAMPING = 0.1
"""As :mod:`anchorhold.merging.between` has it, which loads torch."""
_DTYPES = ("float32", "float16", "bfloat16", "float64")
_NO_GUARD = "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that was typed and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a path that the terminal cannot show is shown escaped
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.command is None:
        parser.print_help()
        return DONE
    command: Callable[[argparse.Namespace], None] = asked.run
    try:
        with _warnings_as_lines():
            command(asked)
    except AnchorholdError as error:
        sys.stderr.write(f"error: {error}\n")
        return STORE if isinstance(error, StoreError) else USAGE
    except KeyboardInterrupt:
        # One more Ctrl-C could only disturb what Python does at the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anchorhold", description="Keep neural networks from forgetting.", epilog=_MEANINGS
    )
    parser.add_argument("--version", action="version", version=f"anchorhold {anchorhold.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_merge(commands.add_parser)
    return parser


def _add_merge(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    merge = add_parser(
        "merge",
        help="merge models in files",
        description=(
            "Merge models in files: by the average of their weights, or by what guards say that each weight is worth. "
            'Guards in the diagonal form make it Fisher merging, in Kronecker(outputs="identity", damping=0.0) '
            "RegMean. Files may be larger than memory. Two adapters of one base are merged into one that stands for "
            "the average of both."
        ),
        epilog=_MEANINGS,
    )
    add = merge.add_argument
    add("before", metavar="BEFORE", type=Path, help="a safetensors file, or a folder that save_pretrained wrote")
    add(
        *("after",),
        metavar="AFTER",
        type=Path,
        nargs="+",
        help="another model of the same network, or several; or adapters of BEFORE",
    )
    add("--out", "-o", type=Path, required=True, help="where to write the result; nothing is ever replaced")
    add(
        *("--share", "-s"),
        type=float,
        action="append",
        help="that of AFTER, from 0 to 1 (default: 0.5); of several one for each, and BEFORE has the rest",
    )
    add(
        "--by",
        action="append",
        metavar="FILE",
        help=f"the file that a model's guard was saved to, for each model in order; {_NO_GUARD} for one without "
        "(default: the average)",
    )
    add(
        "--normalise",
        default="network",
        help="over what each guard's mean importance is made 1: network, layers or none (default: %(default)s)",
    )
    add(
        "--damping",
        type=float,
        default=_DAMPING,
        help="the share of the mean importance that every direction has beside what was measured "
        "(default: %(default)s)",
    )
    add("--dtype", help=f"of the result: {', '.join(_DTYPES)} (default: as the models)")
    add("--json", action="store_true", help="for machines: one JSON object")
    merge.set_defaults(run=_merge)


def _merge(asked: argparse.Namespace) -> None:
    if asked.dtype is not None and asked.dtype not in _DTYPES:
        raise ConfigurationError(f"--dtype {asked.dtype}: expected one of {', '.join(_DTYPES)}.")
    from anchorhold.merging.lora_files import is_adapter  # noqa: PLC0415 (it loads torch)

    shares = asked.share or [0.5]
    try:
        merged = _merge_adapters if is_adapter(asked.before) else _merge_models
        by = merged(asked, shares)
    except AnchorholdError:
        raise
    except OSError as error:
        raise StoreError(f"The merged model was not written ({error}). Nothing is left of it.") from error
    if asked.json:
        sys.stdout.write(json.dumps({"out": str(asked.out), "shares": [1 - sum(shares), *shares], "by": by}) + "\n")
        return
    parts = ", ".join(f"{each:.3g}" for each in (1 - sum(shares), *shares))
    sys.stderr.write(f"Merged with shares {parts}, by {by}:\n")
    sys.stdout.write(f"{asked.out}\n")


def _merge_models(asked: argparse.Namespace, shares: Sequence[float]) -> str:
    import torch  # noqa: PLC0415 (it takes seconds)

    from anchorhold.merging import Merging  # noqa: PLC0415

    forms = [None if each == _NO_GUARD else each for each in asked.by or ()]
    several = len(asked.after) > 1
    merging = Merging(
        asked.before,
        asked.after if several else asked.after[0],
        by=None if not forms else forms[0] if len(forms) == 1 else forms,
        normalise=asked.normalise,
        damping=asked.damping,
        dtype=None if asked.dtype is None else getattr(torch, asked.dtype),
    )
    merging.at(shares if several or len(shares) > 1 else shares[0], out=asked.out)
    return merging.said


def _merge_adapters(asked: argparse.Namespace, shares: Sequence[float]) -> str:
    if asked.by or len(asked.after) > 1 or len(shares) > 1:
        raise ConfigurationError(
            f"{str(asked.before)!r} is an adapter: two of them are averaged with one share, and without guards. To "
            "merge the weights that adapters stand for, give their base model first."
        )
    from anchorhold.merging import merge_adapters  # noqa: PLC0415 (it loads torch)

    made = merge_adapters(asked.before, asked.after[0], shares[0], out=asked.out)
    return f"the average of two adapters, in one of rank {made.config['r']}"


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print the warnings of a command as lines on stderr, when they come."""

    def show(message: Warning | str, *_where: Any, **_file: Any) -> None:
        sys.stderr.write(f"warning: {message}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
