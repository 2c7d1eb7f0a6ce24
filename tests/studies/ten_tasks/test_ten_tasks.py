"""How strong for ten tasks: a run of three short ones."""

import pytest

from studies.ten_tasks import study as ten_tasks


@pytest.mark.filterwarnings("ignore::anchorhold.AnchorholdWarning")
def test_a_strong_hold_learns_less_and_a_page_has_a_column_for_each(monkeypatch, tmp_path):
    monkeypatch.setattr(ten_tasks, "TASKS", 3)
    monkeypatch.setattr(ten_tasks, "STEPS", 60)
    free, held = (ten_tasks.run("digits", strength, 0, tmp_path) for strength in (0.0, 1000.0))
    assert held["learned"] < free["learned"] - 0.1
    rows = [{"network": "digits", "strength": 30.0, "seed": 0, **held}]
    assert (
        ten_tasks.page(rows, {}).rstrip().endswith(f"– | {100 * held['average']:.1f} ({100 * held['learned']:.1f}) |")
    )


@pytest.mark.parametrize("name", ten_tasks.NETWORKS)
def test_only_heads_are_left_out(name):
    assert len(ten_tasks.network(name).heads) == (1 if name == "digits" else ten_tasks.TASKS)
