"""A store for a single report, which many look into."""

import os

from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.run_results import Result
from anchorhold_lab.experiments.store.store import Store


class ReadOnce(Store):
    """A store that reads each result once, however often it is asked for.

    There is only ever one result of a run. One that is not there yet, or damaged, is looked for again.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self._results: dict[str, Result] = {}

    def get(self, run: Spec | str) -> Result | None:
        """Return the result of a run, if it has finished."""
        found = self.find(run)
        if found not in self._results and (result := super().get(found)) is not None:
            self._results[found] = result
        return self._results.get(found)
