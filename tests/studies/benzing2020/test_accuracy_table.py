import math

import pytest

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.experiments import Store
from studies.benzing2020.algorithms import BESIDE_TABLE1, TABLE1
from studies.benzing2020.drawing.tables.accuracy_table import AccuracyRow, accuracy_table
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import PRESETS
from studies.benzing2020.published import ACCURACIES, Published

SI = ACCURACIES["P-MNIST", "SI"]


def row(mean, error, paper=SI):
    return AccuracyRow("P-MNIST", "SI", Estimate(mean, error, 3), paper, 1.0)


def test_the_difference_counts_both_errors():
    assert (SI.mean, SI.error) == (97.2, 0.1)
    assert row(97.7, math.sqrt(0.15)).difference == pytest.approx(0.5 / 0.4)
    assert row(96.7, math.sqrt(0.15)).difference == pytest.approx(-0.5 / 0.4)


def test_where_an_error_is_unknown_there_is_no_difference():
    assert row(97.7, math.nan).difference is None
    assert row(97.7, 0.1, ACCURACIES["P-MNIST", "L2-growing"]).difference is None
    assert row(97.7, 0.1, None).difference is None


@pytest.mark.parametrize(
    ("published", "text"), [(SI, "97.2 ± 0.1"), (Published(95.0, relation="<"), "<95"), (Published(88.0), "88")]
)
def test_a_published_number_is_written_as_printed(published, text):
    assert str(published) == text


def test_table_1_has_the_papers_numbers_of_experiments_and_other_tables_none(tmp_path):
    results = Results(Store(tmp_path), PRESETS["paper"])
    numbered = accuracy_table("table1", "Caption.", results, TABLE1)
    assert numbered.columns[:2] == ("algorithm", "No.")
    assert [line[1] for line in numbered.rows] == ["(1)"] * 4 + ["(2)"] * 2 + ["(3)"] * 4
    mixed = accuracy_table("mixed", "Caption.", results, (*TABLE1, *BESIDE_TABLE1))
    assert "No." not in mixed.columns
