"""A tolerance without old inputs: what real old data loses while the tolerance is met on something else.

``python -m studies.tolerance.without_old_inputs CORPUS`` writes results/tolerance-without-old-inputs.md and .json.
Permuted digits with noise, with the new task's digits and with old ones; and a small GPT that learns English and then
Python, with text that it writes itself, random bytes, the new task's text and old text. The importance is measured on
what stands in, too, or on old inputs, as where a guard was saved with the model. CORPUS is the file that
``python -m benchmarks.language prepare`` makes. ``--rehearse`` runs all of it at a tiny size.
"""

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import anchorhold
from benchmarks.harness import surroundings
from benchmarks.language.corpus import load
from studies.tolerance import digit_stand_ins, text_stand_ins

COMMAND = "python -m studies.tolerance.without_old_inputs"
NEW = {"digits": "accuracy on the new task, %", "text": "Python, bits a byte"}
Row = dict[str, Any]


def grouped(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows of all seeds by what was run."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("setting", "form", "kept", "measured", "tolerance"))
        found.setdefault(key, []).append(row)
    return found


def ratios(rows: Sequence[Row]) -> list[float]:
    """Return how much old data has lost, for each nat that what was kept has."""
    return [row["lost of old"] / row["lost of kept"] for row in rows]


def shown(values: Sequence[float]) -> str:
    """Return the geometric mean of ratios, the least and the most."""
    mean = math.exp(statistics.mean(math.log(max(value, 1e-12)) for value in values))
    return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f})"


def table(rows: Sequence[Row], setting: str) -> list[str]:
    """Return the rows of one setting."""
    heads = ["form", "kept", "importance from", "tolerance", "old data's KL / that of kept", NEW[setting]]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (of, form, kept, measured, nats), own in grouped(rows).items():
        if of == setting:
            new = statistics.mean(row["new"] for row in own)
            cells = [form, kept, "the same" if kept == measured else measured, f"{nats:g}", shown(ratios(own))]
            lines.append(f"| {' | '.join([*cells, f'{new:.1f}' if setting == 'digits' else f'{new:.3f}'])} |")
    return lines


def overall(rows: Sequence[Row]) -> list[str]:
    """Return one ratio for each thing that was kept, over tolerances, forms and seeds."""
    lines = ["| setting | kept | importance from | runs | old data's KL / that of kept |", "|---|---|---|---|---|"]
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        key = row["setting"], row["kept"], "the same" if row["kept"] == row["measured"] else row["measured"]
        found.setdefault(key, []).append(row)
    for (setting, kept, measured), own in found.items():
        lines.append(f"| {setting} | {kept} | {measured} | {len(own)} | {shown(ratios(own))} |")
    return lines


def page(rows: Sequence[Row], where: dict[str, str]) -> str:
    """Return what was found."""
    size = text_stand_ins.Size()
    digits = (
        f"Permuted digits, EWC, Adam, {len({row['seed'] for row in rows if row['setting'] == 'digits'})} seeds: as in "
        "tolerance.md, with 300 inputs kept and the importance measured on 500 others of the same kind, or on old "
        "digits. Noise is normal, with means and variances of old digits."
    )
    text = (
        f"A GPT over bytes ({size.layers} layers of {size.width}, {size.english_steps} steps of {size.batch} × "
        f"{size.context} bytes of English), then {size.python_steps} steps of Python with AdamW and a diagonal EWC, "
        f"{len({row['seed'] for row in rows if row['setting'] == 'text'})} seeds; {size.kept} pieces kept, the "
        f"importance measured on {size.measured} others."
    )
    said = (
        "Each run ends with `guard.pull_back()`, so that the kept inputs have lost the tolerance or less; then the KL "
        "of real old data that was neither kept nor measured from, for each nat of theirs: 1 where what is kept stands "
        "for it, more where old data loses more than was asked. Geometric mean over runs, the least and the most."
    )
    return "\n".join(
        [
            "# A tolerance without old inputs",
            "",
            *(f"- {key}: {value}" for key, value in where.items()),
            "",
            said,
            "",
            *overall(rows),
            "",
            "## Permuted digits",
            "",
            digits,
            "",
            *table(rows, "digits"),
            "",
            "## English, then Python",
            "",
            text,
            "",
            *table(rows, "text"),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, and write what was found."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("corpus", type=Path, help="what python -m benchmarks.language prepare made")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="at a tiny size; its numbers mean nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", anchorhold.AnchorholdWarning)  # tolerances that stand-ins use up are looked at
    digits: dict[str, Any] = {"steps": 20, "seeds": range(1)} if options.rehearse else {}
    size = text_stand_ins.REHEARSAL if options.rehearse else text_stand_ins.Size()
    rows: list[Row] = []
    for part in (digit_stand_ins.rows(**digits), text_stand_ins.rows(load(options.corpus), size)):
        for row in part:
            rows.append(row)
            print(json.dumps(row), flush=True)
    where = surroundings("tolerance-without-old-inputs") | {"command": COMMAND}
    path = options.results / "tolerance-without-old-inputs.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**where, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(rows, where), encoding="utf-8")


if __name__ == "__main__":
    main()
