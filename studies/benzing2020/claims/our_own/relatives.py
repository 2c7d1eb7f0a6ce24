"""Claims of our own about the methods that the paper stands among; their thresholds were set before these runs."""

from collections.abc import Sequence

from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import Statistic
from studies.benzing2020.claims.rule import AtLeast, AtMost, BySeed, Measurement, contrast
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.relatives import Study

_WHERE = ("relatives",)


def between(about: str, better: str, worse: str) -> Statistic:
    """Return by how many points one method is more accurate than another in the first study about something."""

    def statistic(results: Results) -> Sequence[Measurement]:
        study = next((each for each in results.preset.relatives if each.about == about), None)
        if study is None:
            raise NotMeasuredError(f"no study is about {about}")
        a, b = (_found(results, study, name) for name in (better, worse))
        return [contrast((1.0, a), (-1.0, b))]

    return statistic


def _found(results: Results, study: Study, name: str) -> BySeed:
    row = next((row for row in study.rows if row.name.startswith(name)), None)
    runs = [] if row is None else results.finished(study.runs(row))
    if not runs:
        raise NotMeasuredError(f"no run of {name} has finished ({study.title})")
    return {run.spec.seed: 100 * run.average_accuracy for run in runs}


CLAIMS = (
    Claim(
        "own-importance-helps-by-task",
        _WHERE,
        "Where the task is known, importance keeps more than nothing.",
        "accuracy of EWC less that of fine-tuning, by task",
        between("task", "EWC", "fine-tuning"),
        AtLeast(0.0),
        own=True,
    ),
    Claim(
        "own-importance-cannot-by-class",
        _WHERE,
        "Where classes are to be told from all others, importance alone keeps next to nothing.",
        "accuracy of EWC less that of fine-tuning, by class",
        between("class", "EWC", "fine-tuning"),
        AtMost(5.0),
        own=True,
    ),
    Claim(
        "own-replay-can-by-class",
        _WHERE,
        "There, a few old samples keep most of it.",
        "accuracy of replay less that of EWC, by class",
        between("class", "replay", "EWC"),
        AtLeast(20.0),
        own=True,
    ),
    Claim(
        "own-distributions-keep",
        _WHERE,
        "Weights as distributions keep more than weights as numbers.",
        "accuracy of VCL less that of fine-tuning",
        between("distributions", "VCL", "fine-tuning"),
        AtLeast(5.0),
        own=True,
    ),
    Claim(
        "own-rwalk-keeps-in-one-pass",
        _WHERE,
        "In one pass over the data, RWalk keeps more than nothing.",
        "accuracy of RWalk less that of fine-tuning",
        between("one pass", "RWalk", "fine-tuning"),
        AtLeast(0.0),
        own=True,
    ),
)
