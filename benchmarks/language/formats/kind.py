"""A format as something to learn: rows that are a record each, and how many of them a network does not get right."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from anchorhold.seeding import generator_for
from benchmarks.language.formats.records import Format, Record, invented, records
from benchmarks.language.gpt import GPT
from benchmarks.language.pretrained import Pretrained
from benchmarks.language.sequence.kinds import Kind
from benchmarks.language.training import EVALUATED_TOGETHER, Device

ROW = 144
"""Bytes of a row: a question and its answer, and new lines to its end."""
NEW_LINE = ord("\n")


class Records(Kind):
    """Records in one format, of which those that are not exactly right are wrong.

    Args:
        name: what it is called.
        form: the format.
        told: the records: all but the last ``apart`` are trained on, and none of those is among the others.
        apart: how many are kept apart, half to choose by and half to be reported.
        device: where rows are kept.
    """

    def __init__(self, name: str, form: Format, told: Sequence[Record], apart: int, device: torch.device) -> None:
        super().__init__(name, ROW)
        self.form = form
        rows = torch.stack([_row(form, record) for record in told]).to(device)
        self.rows, kept = rows[:-apart], rows[-apart:]
        answers = torch.tensor([len(form.asked(record)) for record in told[-apart:]], device=device)
        self.halves = list(zip(kept.tensor_split(2), answers.tensor_split(2), strict=True))

    def batches(self, steps: int, size: int, seed: int, *purpose: str | int) -> Iterator[Tensor]:
        """Yield rows."""
        chosen = torch.randint(len(self.rows), (steps, size), generator=generator_for(seed, *purpose))
        for rows in chosen.to(self.rows.device):
            yield self.rows[rows].long()

    def wrong(self, device: Device, model: GPT | Pretrained) -> list[float]:
        """Return the share of records whose answer, written greedily byte by byte, is not exactly right."""
        return [1.0 - float(exact(device, model, rows, answers).float().mean()) for rows, answers in self.halves]


@torch.no_grad()
def exact(device: Device, model: GPT | Pretrained, rows: Tensor, answers: Tensor) -> Tensor:
    """Return which rows a network completes exactly, from where their answers begin to the new line after them.

    The most probable byte in each place after the *right* ones before is the right one in all places if and only if
    what is written greedily is right: up to the first mistake both read the same. So one pass says it.
    """
    model.eval()
    chunks = zip(rows.split(EVALUATED_TOGETHER), answers.split(EVALUATED_TOGETHER), strict=True)
    found = [_exact(device, model, some.long(), begin) for some, begin in chunks]
    model.train()
    return torch.cat(found)


def _exact(device: Device, model: GPT | Pretrained, rows: Tensor, answers: Tensor) -> Tensor:
    said = device.logits(model, rows[:, :-1]).argmax(-1)
    place = torch.arange(1, rows.shape[1], device=rows.device)
    inside = place >= answers[:, None]
    ends = inside & (rows[:, 1:] == NEW_LINE)
    counted = inside & (ends.cumsum(1) - ends.long() == 0)  # up to the first new line, and that one too
    return ((said == rows[:, 1:]) | ~counted).all(1)


def _row(form: Format, record: Record) -> Tensor:
    text = (form.asked(record) + form.write(record)).encode()
    if len(text) > ROW:
        raise ValueError(f"A record of {len(text)} bytes; expected at most {ROW}: {text.decode()!r}.")
    return torch.tensor(list(text.ljust(ROW + 1, b"\n")), dtype=torch.uint8)


def two_formats(values: int, rows: int, apart: int, seed: int, device: torch.device) -> list[Kind]:
    """Return the two formats of a seed, told of the same people, so that format is all that differs."""
    told = list(records(rows + apart, values, seed, "records"))
    return [Records(f"{which} format", invented(seed, which), told, apart, device) for which in ("first", "second")]
