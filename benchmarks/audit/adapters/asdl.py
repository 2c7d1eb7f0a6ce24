"""ASDL (``asdfghjkl``): Fisher makers, accumulated over batches."""

from asdl.fisher import FisherConfig, get_fisher_maker
from asdl.grad_maker import LOSS_CROSS_ENTROPY
from asdl.matrices import FISHER_EMP, FISHER_EXACT, FISHER_MC, SHAPE_DIAG
from torch.nn.functional import cross_entropy

from benchmarks.audit.cases import Case, Found, Measure
from benchmarks.audit.formulas import definition
from benchmarks.audit.problem import Problem

PACKAGE = "asdfghjkl"


def cases() -> list[Case]:
    return [
        Case("fisher_exact", ("Fisher",), _of(FISHER_EXACT), "The definition.", definition("Fisher")),
        Case(
            "fisher_mc",
            ("Fisher",),
            _of(FISHER_MC),
            "The definition with one label drawn for each sample.",
            drawn=True,
        ),
        Case("fisher_emp", ("empirical Fisher",), _of(FISHER_EMP), "The definition.", definition("empirical Fisher")),
    ]


def _of(kind: str) -> Measure:
    def measure(problem: Problem, batch: int) -> Found:
        network = problem.network()
        config = FisherConfig(kind, [SHAPE_DIAG], LOSS_CROSS_ENTROPY, data_size=len(problem.labels))
        maker = get_fisher_maker(network, config)
        for step, (inputs, labels) in enumerate(problem.loader(batch)):
            outputs = maker.setup_model_call(network, inputs)
            if kind == FISHER_EMP:
                maker.setup_loss_call(cross_entropy, outputs, labels, reduction="sum")
            maker.forward_and_backward(accumulate=step > 0)
        return Found(
            {
                f"{name}.{parameter}": getattr(module.fisher.diag, parameter)
                for name, module in network.named_modules()
                if hasattr(module, "fisher")
                for parameter in ("weight", "bias")
            }
        )

    return measure
