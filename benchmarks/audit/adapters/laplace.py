"""laplace-torch: the curvature that ``fit`` finds for a diagonal Laplace approximation of all weights."""

import warnings

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.formulas import definition
from benchmarks.audit.problem import Problem
from benchmarks.stubs import stubbed

with stubbed("torchvision"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from laplace import Laplace
    from laplace.curvature import AsdlEF, AsdlGGN, BackPackEF, BackPackGGN, CurvlinopsEF, CurvlinopsGGN

PACKAGE = "laplace-torch"
SUM = "The definition, as a sum over the samples, as a posterior needs it."


def cases() -> list[Case]:
    exact = [("CurvlinopsGGN", CurvlinopsGGN), ("BackPackGGN", BackPackGGN), ("AsdlGGN", AsdlGGN)]
    empirical = [("CurvlinopsEF", CurvlinopsEF), ("BackPackEF", BackPackEF), ("AsdlEF", AsdlEF)]
    return [
        *(_case(name, backend, "Fisher") for name, backend in exact),
        *(_case(name, backend, "empirical Fisher") for name, backend in empirical),
    ]


def _case(name: str, backend: type, against: str) -> Case:
    def measure(problem: Problem, batch: int) -> Found:
        network = problem.network()
        approximation = Laplace(network, "classification", "all", "diag", backend=backend)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            approximation.fit(problem.loader(batch))
        parts = approximation.H.split([p.numel() for p in network.parameters()])
        named = zip(network.named_parameters(), parts, strict=True)
        return Found({name: part.view_as(p) for (name, p), part in named})

    return Case(name, (against,), measure, SUM, definition(against, samples=1))
