"""What it takes to list and compare the runs of a store with many thousand of them."""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anchorhold_lab.experiments.specs.canonical import digest_of
from anchorhold_lab.experiments.store.listing.index import FILE
from anchorhold_lab.experiments.store.listing.stamps import pack_stamp, stamps
from anchorhold_lab.experiments.store.packing import pack
from anchorhold_lab.experiments.store.reading import sealed, unsealed
from anchorhold_lab.experiments.store.store import Store
from benchmarks.harness import Ratio, Report

RUNS = 20_000
PUBLISHED = Path(__file__).parents[1] / "results" / "paper" / "store"
NOTES = [
    (
        f"{RUNS:,} runs: the published ones without probes, again and again with other seeds. Each command is a "
        "process of its own, its output thrown away. The time is from its start to its end; below it are the "
        "processor's seconds, user and system, which other work on the machine changes less."
    ),
    (
        "Without an index every file is read, and an index written. With it, folders are looked through for files that "
        "have changed, which is the first line by itself, and none is opened."
    ),
    "“50 new results” has them since the index was written; they are read, and all others are not.",
    "“packed” has the same runs in results.jsonl.zst. Packing them is of this process, most of its time the disk's.",
]


def run(quick: bool) -> Iterator[Report]:
    report = Report("large-store", f"Listing {RUNS:,} runs", NOTES, {})
    processor: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_runs(folder, 40 if quick else RUNS)
        repeats = 1 if quick else 5
        settle(folder)
        for _ in range(repeats):
            note(report, processor, "a look at all folders", lambda: stamps(folder / "runs"))
        note(
            report, processor, "torch alone", lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True)
        )
        for command in ("list", "compare"):
            (folder / FILE).unlink(missing_ok=True)
            note(report, processor, f"runs {command}, no index", functools.partial(anchorhold, command, folder))
            for _ in range(repeats):
                note(report, processor, f"runs {command}", functools.partial(anchorhold, command, folder))
        make_runs(folder, 50, first=RUNS)
        note(report, processor, "runs list, 50 new results", lambda: anchorhold("list", folder))
        note(report, processor, "runs pack", lambda: pack(Store(folder)))
        settle(folder)
        (folder / FILE).unlink(missing_ok=True)
        note(report, processor, "runs list, packed, no index", lambda: anchorhold("list", folder))
        for _ in range(repeats):
            note(report, processor, "runs list, packed", lambda: anchorhold("list", folder))
    for command in ("list", "compare"):
        case = f"runs {command}"
        report.ratios.append(Ratio(f"{case}, seconds", report.median(case), 2.0, unit=" s"))
    report.details["Seconds of the processor, median"] = [
        "| case | user and system |",
        "|---|---|",
        *(f"| {case} | {sorted(times)[len(times) // 2]:.2f} s |" for case, times in processor.items()),
    ]
    yield report


def make_runs(folder: Path, count: int, first: int = 0) -> None:
    """Add runs to a store: published results with other seeds."""
    files = Store(PUBLISHED).files
    contents = [(run, files.read(run, "result.json")) for run in files.ids()]
    results = [unsealed(content, PUBLISHED / run) for run, content in contents if content is not None]
    published = [result for result in results if not result["spec"]["probes"]]
    for number in range(first, first + count):
        result = dict(published[number % len(published)])
        seed = result["spec"]["seed"] + 10_000 * (1 + number // len(published))
        result["spec"] = {**result["spec"], "seed": seed}
        place = folder / "runs" / digest_of(result["spec"])
        place.mkdir(parents=True)
        (place / "spec.json").write_text(json.dumps(result["spec"], indent=1) + "\n")
        (place / "result.json").write_text(json.dumps(sealed(result), indent=1) + "\n")
        (place / "lock").touch()


def settle(folder: Path) -> None:
    """Wait until the last file is old enough for an index."""
    found = [*stamps(folder / "runs").values(), pack_stamp(folder)]
    newest = max(stamp.newest for stamp in found if stamp is not None)
    time.sleep(max(0.0, newest / 1e9 + 3 - time.time()))


def anchorhold(command: str, folder: Path) -> None:
    words = [sys.executable, "-m", "anchorhold_lab", "runs", command, "--store", str(folder)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def note(report: Report, processor: dict[str, list[float]], case: str, work: Callable[[], object]) -> None:
    """Do something, and note how long it took by the clock and on the processor."""
    with contextlib.ExitStack() as after:
        for seconds, clock in ((report.seconds, time.perf_counter), (processor, processor_seconds)):
            began = clock()
            after.callback(_note_since, seconds, case, clock, began)
        work()


def _note_since(seconds: dict[str, list[float]], case: str, clock: Callable[[], float], began: float) -> None:
    seconds.setdefault(case, []).append(clock() - began)


def processor_seconds() -> float:
    """Return the processor's seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])
