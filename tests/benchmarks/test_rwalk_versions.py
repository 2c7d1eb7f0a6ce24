"""Three public versions of RWalk side by side with the paper's."""

import itertools

import pytest
import torch

from benchmarks.audit.comparison import compare, relative_error
from benchmarks.audit.problem import digits_problem
from benchmarks.audit.rwalk_versions import VERSIONS, Step, Task, authors, avalanche, facil, trained


@pytest.fixture(scope="module")
def problem():
    return digits_problem(samples=40, hidden=(6, 5), epochs=1)


def test_no_two_of_them_agree(problem):
    paper, tasks = trained(problem, batch=4, epochs=2)
    found = {"the paper's": paper} | {name: version(tasks) for name, version in VERSIONS.items()}
    assert all(value.isfinite().all() for importance in found.values() for value in importance.values())
    for one, other in itertools.combinations(found.values(), 2):
        assert compare(one, other).correlation < 0.995


def test_one_is_the_papers_where_batches_are_single_samples_and_tasks_one(problem):
    paper, tasks = trained(problem, batch=1, epochs=1, tasks=1, epsilon=torch.finfo(torch.float32).eps)
    assert relative_error(avalanche(tasks), paper) < 1e-6  # it begins with F of the first batch, and not with 0
    assert relative_error(authors(tasks), paper) > 0.1


def test_facils_by_hand():
    """One weight that goes twenty steps of −0.1, by a gradient of 1 and then of 2, and one that rests."""

    def weight(value):
        return {"w": torch.tensor([value, 0.0], dtype=torch.float64)}

    places = itertools.pairwise([-0.1 * i for i in range(21)])
    steps = [Step(weight(1.0 if i < 10 else 2.0), weight(a), weight(b)) for i, (a, b) in enumerate(places)]
    found = facil([Task(steps, weight(0.5))])["w"]
    assert found.tolist() == pytest.approx([0.25 + 0.5 * 3.0 / (0.25 * 2.0**2 + 0.1), 0.0])
