"""Making the runs of studies, the most worth first: what is to be chosen is tried on validation data, then run."""

from collections.abc import Iterable, Sequence
from functools import partial

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments import Store, best_tried
from studies.benzing2020.relatives.study import SEARCH_SEED, Row, Study
from studies.benzing2020.tried_settings import Run


def unknown_rows(studies: Iterable[Study]) -> list[tuple[Study, Row]]:
    """Return the methods whose settings are still to be found by trying, with their studies."""
    return [(study, row) for study in studies for row in study.rows if not row.is_known]


def make_studies(
    studies: Sequence[Study], store: Store, run: Run
) -> tuple[tuple[Study, ...], dict[tuple[str, str], str]]:
    """Make the tries and the runs of studies that a store lacks, one study after another.

    Returns:
        The studies with what was found; a method whose tries were stopped, all failed, or are damaged stays open. And
        what is damaged, by the study's title and the method's name.
    """
    made, damaged = [], {}
    for study in studies:
        found = study
        for row in study.rows:
            try:
                found, chosen = _with_choice(found, row, store, run)
            except DamagedError as error:
                damaged[study.title, row.name] = str(error)
                continue
            left = [spec for spec in found.runs(chosen) if store.status(spec.id) != "finished"]
            if left:
                run(left, store)
        made.append(found)
    return tuple(made), damaged


def _with_choice(study: Study, row: Row, store: Store, run: Run) -> tuple[Study, Row]:
    """Return a study and one of its methods with the best of what is tried for it, as far as that is known."""
    if row.is_known:
        return study, row
    best = best_tried(row.tried, partial(study.try_of, row), [SEARCH_SEED], store, run)
    if best is None:
        return study, row
    chosen = study.with_choice(row, best)
    return chosen, chosen.row(row.name)
