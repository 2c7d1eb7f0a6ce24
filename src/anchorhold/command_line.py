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
from anchorhold.errors import AnchorholdError, ConfigurationError, ModelError, StoreError

DONE, USAGE, STORE, INTERRUPTED = 0, 2, 4, 130
_MEANINGS = (
    "Exit codes: 0 done; 2 a mistake in what was asked for; 4 the result cannot be written; 130 interrupted by Ctrl-C."
)
_DAMPING = 0.1
"""As :mod:`anchorhold.merging.between` has it, which loads torch."""
_DTYPES = ("float32", "float16", "bfloat16", "float64")
_NO_GUARD = "-"
_TEXT = ("text", "data", "own_text", "pieces", "length", "separator", "context", "start", "base", "device")
"""The options that say on what text models are compared."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that was typed and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a path that the terminal cannot show is shown escaped
    parser = argparse.ArgumentParser(
        prog="anchorhold", description="Keep neural networks from forgetting.", epilog=_MEANINGS
    )
    parser.add_argument("--version", action="version", version=f"anchorhold {anchorhold.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_merge(commands.add_parser)
    _add_forgetting(commands.add_parser)
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
    add(
        "--until-kl",
        type=float,
        metavar="X",
        help="in place of --share: the largest one at which the outputs on some text differ from those of BEFORE by X "
        "nats a token at most, KL(before‖merged); each share that is tried is written and measured",
    )
    _add_text(merge.add_argument_group("the text of --until-kl (default: text that BEFORE writes)"))
    merge.set_defaults(run=_merge)


def _add_text(group: Any) -> None:
    """Add the options that say on what text models are compared, and how."""
    add = group.add_argument
    add(
        *("--text", "-t"),
        metavar="FILE",
        nargs="+",
        type=Path,
        help="files or folders of text in UTF-8 that is to be kept, each a kind; JSONL by its ending",
    )
    add(
        *("--data", "-d"),
        metavar="JSONL",
        nargs="+",
        type=Path,
        help="files with an object a line: text; prompt and completion, or messages, of which the completion or the "
        "last answer is scored; and kind, if a file has several",
    )
    add(
        "--own-text",
        metavar="FOLDER",
        type=Path,
        help="text that BEFORE wrote; where the folder is new, it is written there",
    )
    add(
        "--pieces",
        type=int,
        metavar="N",
        help="of text that BEFORE writes, so many pieces (default: 64, or all there are)",
    )
    add("--length", type=int, metavar="N", help="tokens of such a piece at most (default: 128)")
    add(
        "--separator",
        metavar="TEXT",
        help=r"what stands between the documents of a text file, such as '\n\n' (default: a file is one document)",
    )
    add("--context", type=int, metavar="N", help="tokens that are read at once (default: all the models read, or 2048)")
    add("--start", type=int, metavar="TOKEN", help="the token in front of every text (default: the model's own)")
    add(
        "--base",
        metavar="FOLDER",
        type=Path,
        help="what adapters were trained on (default: what they name, else BEFORE)",
    )
    add("--device", help="cpu, cuda or cuda:1 (default: a GPU if there is one)")


def _add_forgetting(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    forgetting = add_parser(
        "forgetting",
        help="measure what a language model has forgotten",
        description=(
            "Measure what a language model has forgotten: on text, in nats a token and bits a byte, with standard "
            "errors over documents. Models are folders in Hugging Face's layout, or of adapters; nothing is fetched."
        ),
        epilog=_MEANINGS,
    )
    add = forgetting.add_argument
    add("before", metavar="BEFORE", type=Path, help="the folder of the model as it was")
    add("after", metavar="AFTER", type=Path, nargs="+", help="the folder of the model as it is; several are compared")
    _add_text(forgetting.add_argument_group("the text that was to be kept (default: text that BEFORE writes)"))
    add(
        *("--new", "-n"),
        metavar="FILE",
        nargs="+",
        type=Path,
        help="files or folders of what was to be learned, as for --text; several models are then compared by what each "
        "gained and lost",
    )
    add("--dtype", help=f"to measure in: {', '.join(_DTYPES)} (default: float32 on a CPU, the files' own on a GPU)")
    add("--json", metavar="PATH", help="write all numbers there; - for stdout, in place of the table")
    add("--picture", metavar="PATH", type=Path, help="draw the changes, and the frontier of several models: an .svg")
    add("--quiet", "-q", action="store_true", help="no progress on stderr")
    forgetting.set_defaults(run=_forgetting)


def _merge(asked: argparse.Namespace) -> None:
    if asked.dtype is not None and asked.dtype not in _DTYPES:
        raise ConfigurationError(f"--dtype {asked.dtype}: expected one of {', '.join(_DTYPES)}.")
    from anchorhold.merging.lora_files import is_adapter  # noqa: PLC0415 (it loads torch)

    if asked.until_kl is not None and (asked.share or len(asked.after) > 1):
        given = "--share" if asked.share else "several models AFTER"
        raise ConfigurationError(f"--until-kl finds the share of one model AFTER; {given} is too much. Leave one out.")
    if asked.until_kl is None and (strange := [name for name in _TEXT if getattr(asked, name) is not None]):
        raise ConfigurationError(
            f"--{strange[0].replace('_', '-')} says on what --until-kl measures, which is not given. Give both or none."
        )
    if asked.own_text is not None and (asked.text or asked.data):
        raise ConfigurationError("--until-kl goes by one text: --own-text, or --text and --data. Leave one out.")
    shares: Sequence[float] = asked.share or [0.5]
    beside: dict[str, Any] = {}
    try:
        write, by = (_adapters_writer if is_adapter(asked.before) else _models_writer)(asked)
        if asked.until_kl is None:
            write(shares if len(asked.after) > 1 or len(shares) > 1 else shares[0], asked.out)
        else:
            shares, beside = _until_kl(asked, write)
    except AnchorholdError:
        raise
    except OSError as error:
        raise StoreError(f"The merged model was not written ({error}). Nothing is left of it.") from error
    if asked.json:
        told = {"out": str(asked.out), "shares": [1 - sum(shares), *shares], "by": by, **beside}
        sys.stdout.write(json.dumps(told) + "\n")
        return
    parts = ", ".join(f"{each:.3g}" for each in (1 - sum(shares), *shares))
    within = f", {beside['kl']:.4g} nats a token from before" if beside else ""
    sys.stderr.write(f"Merged with shares {parts}, by {by}{within}:\n")
    sys.stdout.write(f"{asked.out}\n")


def _models_writer(asked: argparse.Namespace) -> tuple[Callable[[Any, Path], object], str]:
    """Return what writes the merge of models at a share, and by what they are merged."""
    import torch  # noqa: PLC0415 (it takes seconds)

    from anchorhold.merging import Merging  # noqa: PLC0415

    forms = [None if each == _NO_GUARD else each for each in asked.by or ()]
    merging = Merging(
        asked.before,
        asked.after if len(asked.after) > 1 else asked.after[0],
        by=None if not forms else forms[0] if len(forms) == 1 else forms,
        normalise=asked.normalise,
        damping=asked.damping,
        dtype=None if asked.dtype is None else getattr(torch, asked.dtype),
    )
    return lambda share, out: merging.at(share, out=out), merging.description


def _adapters_writer(asked: argparse.Namespace) -> tuple[Callable[[Any, Path], object], str]:
    """Return what writes the average of two adapters, and what that is."""
    if asked.by or len(asked.after) > 1 or len(asked.share or ()) > 1:
        raise ConfigurationError(
            f"{str(asked.before)!r} is an adapter: two of them are averaged with one share, and without guards. To "
            "merge the weights that adapters stand for, give their base model first."
        )
    from anchorhold.merging import LoraAdapter, merge_adapters  # noqa: PLC0415 (it loads torch)

    first, second = LoraAdapter.read(asked.before), LoraAdapter.read(asked.after[0])
    rank = merge_adapters(first, second).config["r"]
    said = f"the average of two adapters, in one of rank {rank}"
    return lambda share, out: merge_adapters(first, second, share, out=out), said


def _until_kl(asked: argparse.Namespace, write: Callable[[Any, Path], object]) -> tuple[list[float], dict[str, Any]]:
    """Find and write the largest share within --until-kl; return it, and what --json says beside."""
    from anchorhold.evaluation.until_kl import merge_until_kl  # noqa: PLC0415 (it loads torch)

    with _progress(quiet=asked.json) as progress:
        found = merge_until_kl(
            asked.before, asked.after[0], asked.until_kl, write=write, out=asked.out, progress=progress, **_text(asked)
        )
    tried = [{"share": share, "kl": kl} for share, kl in found.tried]
    return [found.share], {"kl": found.kl, "tried": tried}


def _text(asked: argparse.Namespace) -> dict[str, Any]:
    """Return what was asked for by :func:`_add_text`, as arguments; what was not given is left to the defaults."""
    given = {name: getattr(asked, name) for name in _TEXT if getattr(asked, name) is not None}
    if "separator" in given:
        given["separator"] = given["separator"].replace(r"\n", "\n").replace(r"\t", "\t")
        if not given["separator"]:
            raise ConfigurationError(r"--separator is empty; expected a text, such as '\n\n' for an empty line.")
    if {"pieces", "length"} & given.keys() and given.get("text", given.get("data")) and "own_text" not in given:
        given["own_text"] = True
    return given


def _forgetting(asked: argparse.Namespace) -> None:
    if asked.dtype is not None and asked.dtype not in _DTYPES:
        raise ConfigurationError(f"--dtype {asked.dtype}: expected one of {', '.join(_DTYPES)}.")
    if asked.picture is not None and asked.picture.suffix.lower() != ".svg":
        raise ConfigurationError(
            f"--picture {str(asked.picture)!r}: a picture is drawn as SVG, which browsers and text programs show; "
            f"expected a name such as {str(asked.picture.with_suffix('.svg'))!r}."
        )
    for path in (asked.picture, None if asked.json in (None, "-") else Path(asked.json)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            why = "is a folder" if path.is_dir() else f"is to lie in {str(path.parent)!r}, which is no folder"
            raise ConfigurationError(f"{str(path)!r} {why}. Give the name of a file in a folder that is there.")
    import torch  # noqa: PLC0415 (it takes seconds)

    from anchorhold.evaluation import ForgettingInterrupted, forgetting  # noqa: PLC0415

    how = _text(asked) | ({} if asked.dtype is None else {"dtype": getattr(torch, asked.dtype)})
    try:
        with _progress(quiet=asked.quiet) as progress:
            report = forgetting(asked.before, asked.after, new=asked.new, progress=progress, **how)
    except ForgettingInterrupted as interrupted:
        _show(asked, interrupted.report)
        raise
    _show(asked, report)
    if not report.complete:
        raise ModelError("Not all models could be measured; the notes below the table say why.")


def _show(asked: argparse.Namespace, report: Any) -> None:
    """Print a report, and write the files that were asked for."""
    from anchorhold.evaluation.picture import picture  # noqa: PLC0415 (it loads torch)
    from anchorhold.whole_files import write_whole  # noqa: PLC0415

    sys.stdout.write(report.to_json() if asked.json == "-" else f"{report}\n")
    sys.stdout.flush()
    files = {} if asked.json in (None, "-") else {asked.json: report.to_json()}
    files |= {} if asked.picture is None else {asked.picture: picture(report)}
    for path, content in files.items():
        try:
            write_whole(path, content.encode())
        except OSError as error:
            raise StoreError(f"{str(path)!r} was not written ({error}). The table above has the numbers.") from error


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Give a function that shows progress on stderr: a line that changes, or, in a file, one for each thing done."""
    if quiet:
        yield None
        return
    live, width = sys.stderr.isatty(), 0

    def show(what: str, done: int, wanted: int) -> None:
        nonlocal width
        line = f"{what}: {done:,} of {wanted:,}"
        if live:
            sys.stderr.write("\r" + line.ljust(width))
            sys.stderr.flush()
            width = len(line)
        elif done == wanted:
            sys.stderr.write(f"{line}\n")

    try:
        yield show
    finally:
        if live and width:
            sys.stderr.write("\r" + " " * width + "\r")


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print the warnings of a command as lines on stderr, when they come, and each once."""
    shown: set[str] = set()

    def show(message: Warning | str, *_where: Any, **_file: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            sys.stderr.write(f"warning: {message}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
