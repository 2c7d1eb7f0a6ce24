r"""What a comparison of models found: estimates with standard errors, as rows, a table and JSON.

An estimate is a ratio of sums over documents, :math:`R = \sum_d x_d / \sum_d w_d`, with x a loss, a difference or a
divergence in nats and w the tokens, or ln 2 times the bytes. Its standard error is the one of a ratio of m documents,

.. math:: se(R) = \frac{1}{\sum_d w_d} \sqrt{\frac{m}{m-1} \sum_d (x_d - R w_d)^2}

(Cochran 1977, *Sampling Techniques*, section 6), so tokens of one document do not count as independent, and a
difference is taken document by document, as a pair. The mean of K kinds weighs each alike, and has the error
:math:`\sqrt{\sum_k se_k^2} / K`.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Part = Literal["text", "own text", "new"]
MEAN = "mean of kinds"
_COLUMNS = ("documents", "tokens", "KL(old‖new)", "loss", "change", "bits a byte", "change")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number and its standard error, which is ``None`` for a single document."""

    value: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.value:.4f}{_plus_minus(self.error)}"

    @property
    def signed(self) -> str:
        """The same with its sign, for a difference."""
        return f"{self.value:+.4f}{_plus_minus(self.error)}"


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f" ±{error:.4f}"


def ratio(values: Tensor, weights: Tensor) -> Estimate | None:
    """Return the ratio of two sums over documents, with its standard error; ``None`` where the weights are 0."""
    total = float(weights.sum())
    if not total:
        return None
    found = float(values.sum()) / total
    m = len(values)
    if m < 2:
        return Estimate(found, None)
    spread = float((values - found * weights).square().sum())
    return Estimate(found, math.sqrt(m / (m - 1) * spread) / total)


def mean_of(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the unweighted mean; ``None`` if one is missing."""
    present = [each for each in estimates if each is not None]
    if len(present) < len(estimates):
        return None
    errors = [each.error for each in present if each.error is not None]
    error = math.sqrt(sum(e * e for e in errors)) / len(present) if len(errors) == len(present) else None
    return Estimate(sum(each.value for each in present) / len(present), error)


@dataclasses.dataclass(frozen=True)
class Row:
    """One model after, on one kind of text. What is in nats is a token, and ``None`` where it does not exist.

    Args:
        model: the model after.
        part: ``"text"`` and ``"own text"``, which were to be kept, or ``"new"``.
        kind: of the text; ``"mean of kinds"`` for that of all kinds of a part.
        documents: how many.
        tokens: how many were scored, by the tokenizer of the model before.
        tokens_after: the same by that of the model after.
        bytes: of what was scored.
        kl: KL(p_old‖p_new).
        loss_before: the loss of the model before.
        loss_after: that of the model after.
        change: the second less the first: above 0, text was forgotten.
        bits_before: bits a byte of the model before.
        bits_after: those of the model after.
        bits_change: the second less the first.
    """

    model: str
    part: Part
    kind: str
    documents: int
    tokens: int
    tokens_after: int
    bytes: int
    kl: Estimate | None
    loss_before: Estimate | None
    loss_after: Estimate | None
    change: Estimate | None
    bits_before: Estimate | None
    bits_after: Estimate | None
    bits_change: Estimate | None


def row_of(
    model: str,
    part: Part,
    kind: str,
    tokens: Tensor,
    tokens_after: Tensor,
    sizes: Tensor,
    before: Tensor,
    after: Tensor,
    kl: Tensor | None,
    *,
    same_tokens: bool,
) -> Row:
    """Return the row of some documents, from their sums in nats."""
    bits = sizes * math.log(2)
    return Row(
        model, part, kind, len(tokens), int(tokens.sum()), int(tokens_after.sum()), int(sizes.sum()),
        None if kl is None else ratio(kl, tokens),
        ratio(before, tokens),
        ratio(after, tokens_after),
        ratio(after - before, tokens) if same_tokens else None,
        ratio(before, bits),
        ratio(after, bits),
        ratio(after - before, bits),
    )  # fmt: skip


def mean_row(rows: Sequence[Row]) -> Row:
    """Return the mean over the kinds of one part, each with the same weight."""
    first = rows[0]
    names = [field.name for field in dataclasses.fields(Row)]
    counted = {name: sum(getattr(r, name) for r in rows) for name in ("documents", "tokens", "tokens_after", "bytes")}
    own = {name: mean_of([getattr(row, name) for row in rows]) for name in names[names.index("kl") :]}
    return Row(first.model, first.part, MEAN, **counted, **own)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """What a model has forgotten and learned; ``print()`` shows a table.

    Args:
        before: the name of the model before.
        after: those of the models after.
        rows: one for each model after and kind of text, and a mean where a part has several kinds.
        settings: how it was measured.
        notes: what has to be known to read the numbers.
        complete: whether all that was asked for was measured.
    """

    before: str
    after: tuple[str, ...]
    rows: tuple[Row, ...] = dataclasses.field(repr=False)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    complete: bool = True

    def row(self, model: str | None = None, part: Part | None = None) -> Row:
        """Return the row that sums up a part of one model: the mean of its kinds, or its only kind.

        Args:
            model: by default the only one.
            part: by default given text if there is any, and own text otherwise.

        Raise KeyError if there is none.
        """
        wanted = self.after[0] if model is None and len(self.after) == 1 else model
        parts = (part,) if part else ("text", "own text")
        for each in parts:
            found = [row for row in self.rows if row.model == wanted and row.part == each]
            if found:
                return found[-1]
        raise KeyError(f"no row of {wanted!r} and {' or '.join(parts)}; there are {self.after}")

    @property
    def frontier(self) -> tuple[str, ...]:
        """The models after that no other one beats: which gains as much on new text and loses less, or the reverse.

        Gained is the fall of the loss on new text; lost is KL(p_old‖p_new) on the text that was to be kept. Both are in
        nats a token; where that does not exist for all models, both are the change in bits a byte. Empty without new
        text or text that was to be kept, and for a single model.
        """
        points = self.points()
        return tuple(
            name
            for name, (gained, lost) in points.items()
            if not any(g >= gained and k <= lost and (g, k) != (gained, lost) for g, k in points.values())
        )

    def points(self) -> dict[str, tuple[float, float]]:
        """Return what each model has gained on new text and lost of the old, as the frontier compares them."""
        found = {}
        for name in self.after:
            try:
                found[name] = (self.row(name, "new"), self.row(name))
            except KeyError:
                continue
        if len(found) < 2:
            return {}
        for gain, loss in (("change", "kl"), ("bits_change", "bits_change")):
            pairs = {name: (getattr(new, gain), getattr(old, loss)) for name, (new, old) in found.items()}
            if all(None not in pair for pair in pairs.values()):
                return {name: (-gained.value, lost.value) for name, (gained, lost) in pairs.items()}
        return {}

    def to_json(self) -> str:
        """Return all of it as JSON; ``rows`` have each estimate as ``{"value": …, "error": …}``, or ``null``."""
        document = {
            "format": 1,
            "before": self.before,
            "after": list(self.after),
            "complete": self.complete,
            "settings": self.settings,
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "frontier": list(self.frontier),
            "notes": list(self.notes),
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        lines = []
        for model in self.after:
            own = [row for row in self.rows if row.model == model]
            if own:
                lines += [f"{self.before} → {model}", *_table(own), ""]
        lines.append("KL, loss and change are in nats a token; ± is one standard error over documents.")
        if self.frontier:
            points = self.points()
            lines.append("On the frontier (what is gained on new text, what is lost):")
            lines += [f"  {name}: {points[name][0]:+.4f}, {points[name][1]:.4f}" for name in self.frontier]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


def _table(rows: Sequence[Row]) -> list[str]:
    cells: list[tuple[str, ...]] = [("", *_COLUMNS)]
    before = None
    for row in rows:
        if row.part not in {before, row.kind}:
            cells.append((f"{row.part}:", *[""] * len(_COLUMNS)))
        before = row.part
        name = row.kind if row.part == row.kind else f"  {row.kind}"
        cells.append((
            name,
            f"{row.documents:,}",
            f"{row.tokens:,}",
            "–" if row.kl is None else str(row.kl),
            _arrow(row.loss_before, row.loss_after),
            "–" if row.change is None else row.change.signed,
            _arrow(row.bits_before, row.bits_after),
            "–" if row.bits_change is None else row.bits_change.signed,
        ))  # fmt: skip
    widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
    return [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in cells
    ]


def _arrow(before: Estimate | None, after: Estimate | None) -> str:
    return "–" if before is None or after is None else f"{before.value:.4f} → {after.value:.4f}"


def column(values: Sequence[int]) -> Tensor:
    """Return whole numbers of documents as a column of sums."""
    return torch.tensor(values, dtype=torch.float64)
