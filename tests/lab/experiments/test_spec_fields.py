"""Fields on one level, and those in which runs differ."""

from anchorhold_lab.experiments.specs.spec_fields import differing_fields, fields_of
from tests.lab.experiments.helpers import small_spec


def test_everything_that_decides_a_run_is_there():
    fields = fields_of(small_spec(watch=("EWC",), watch_settings={"EWC": {"samples": 7}}, probes=("importances",)))
    assert (fields["hidden"], fields["watch"], fields["probes"]) == ("32", "EWC", "importances")
    assert (fields["epochs"], fields["measure.damping"], fields["watch.EWC.samples"]) == (2, 0.1, 7)
    assert all(isinstance(value, str | int | float | None) for value in fields.values())


def test_the_fields_in_which_runs_differ():
    assert differing_fields([small_spec(), small_spec(1, strength=2.0)]) == ["strength", "seed"]
    assert differing_fields([small_spec(), small_spec(measure_settings={"damping": 1.0})]) == ["measure.damping"]
    assert differing_fields([small_spec(), small_spec(measure="SIU", measure_settings={"damping": 1.0})]) == ["measure"]
    assert differing_fields([small_spec(), small_spec(watch=("EWC",))]) == ["watch"]
