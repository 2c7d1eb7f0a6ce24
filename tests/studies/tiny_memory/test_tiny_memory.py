"""Tiny-memory replay: what a run and its page are made of, on little data."""

import torch

from studies.tiny_memory.study import Data, Outcome, row_of, run, table


def little():
    """Ten classes around points that another order of coordinates hardly confuses."""
    torch.manual_seed(0)
    y = torch.arange(400) % 10
    x = torch.randn(10, 20)[y] + 0.6 * torch.randn(400, 20)
    return Data((x, y), (x, y))


def test_a_memory_keeps_more_than_none():
    none, five = (run(little(), memory, 0.1, seed=0, tasks=3, samples=400) for memory in (0, 5))
    assert min(none.learned) > 90
    assert sum(five.kept) > sum(none.kept) + 10


def test_the_page_has_what_is_gained_over_no_memory():
    rows = [
        row_of(0, 0.1, [Outcome([90.0, 90.0], [50.0, 90.0]), Outcome([90.0, 90.0], [54.0, 90.0])]),
        row_of(1, 0.1, [Outcome([90.0, 90.0], [70.0, 90.0]), Outcome([90.0, 90.0], [70.0, 90.0])]),
    ]
    assert rows[0][2:] == (71.0, 1.0, 19.0, 2)
    *_, none, one = table(rows).splitlines()
    assert none == "| none | 0.1 | 71.0 ± 1.0 |  | 19.0 |"
    assert one == "| 1 | 0.1 | 80.0 ± 0.0 | +9.0 | 10.0 |"
