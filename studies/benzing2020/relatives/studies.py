"""The relatives where their authors ran them, on the real data; in the order of their worth.

Numbers that are marked as remembered are from memory of the papers' tables; whoever has these at hand may look.
"""

import dataclasses
from collections.abc import Mapping

from anchorhold_lab.scenarios import Kind
from studies.benzing2020.relatives.others import other_rows
from studies.benzing2020.relatives.study import (
    Reported,
    Row,
    Settings,
    Study,
    holding,
    joint_in_large_batches,
    references,
    remembering,
    strengths,
    tried,
    with_one_seed,
)

_THREE_KINDS = "van de Ven, Tuytelaars and Tolias 2022, Nature Machine Intelligence 4"
_AGEM = "Chaudhry et al. 2019, arXiv 1812.00420, table 1"
_GPM = "Saha, Garg and Roy 2021, arXiv 2103.09762"
_VCL = "Nguyen et al. 2018, arXiv 1710.10628"
_BETTER_VCL = "Swaroop et al. 2019, arXiv 1905.02099"


def with_reports(rows: tuple[Row, ...], reported: Mapping[str, Reported]) -> tuple[Row, ...]:
    """Return rows, those with their published numbers that have any."""
    return tuple(dataclasses.replace(row, reported=reported.get(row.name)) for row in rows)


def _reported(where: str, **numbers: float) -> dict[str, Reported]:
    names = {"agem": "A-GEM", "joint": "joint training", "none": "fine-tuning"}
    return {names.get(name, name): Reported(mean, where) for name, mean in numbers.items()}


# Their table, task / domain / class. Their code's memories hold a hundred samples a class.
_REPORTED_KINDS: dict[Kind, dict[str, Reported]] = {
    "task": _reported(_THREE_KINDS, none=84.3, EWC=99.1, SI=99.2, LwF=99.6, replay=99.0, agem=98.6, joint=99.7),
    "domain": _reported(_THREE_KINDS, none=60.1, EWC=63.0, SI=66.9, LwF=72.9, replay=93.8, agem=87.7, joint=98.6),
    "class": _reported(_THREE_KINDS, none=19.9, EWC=20.6, SI=21.2, LwF=21.9, replay=88.8, agem=65.1, joint=98.2),
}
KINDS: tuple[Kind, ...] = ("task", "domain", "class")
_EWC, _SI = strengths(1e2, 1e3, 1e4, 1e5, 1e6), strengths(1.0, 10.0, 100.0, 1000.0, 10_000.0)
_EWC_BY_DOMAIN, _SI_BY_DOMAIN = strengths(1e4, 1e5, 1e6, 1e7, 1e8), strengths(1e2, 1e3, 1e4, 1e5, 1e6)
"""By domain the largest of those were the best, so that larger ones are tried there, as many."""


def importance_rows(**tries: tuple[Settings, ...]) -> tuple[Row, ...]:
    """Return measures that nothing else is changed for, with what is tried for each; a single try is what they have."""
    usual = {"reinitialise": False}
    return tuple(
        Row(name, name, usual, tried=given) if len(given) > 1 else Row(name, name, {**usual, **given[0]})
        for name, given in tries.items()
    )


def kind_rows(kind: Kind, importance: tuple[Row, ...], beside: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the methods of one of the three kinds, each learned so.

    Training anew judges each task by the network that has learned it: where the kind does not tell the task, that is no
    bound of what can be reached, and its name says so.
    """
    told = {} if kind == "task" else {"training anew": "training anew, told the task"}
    return tuple(
        dataclasses.replace(row, name=told.get(row.name, row.name), changes={**row.changes, "incremental": kind})
        for row in (Row("fine-tuning"), *importance, *beside)
    )


def named_with(what: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return rows whose names say what is different about them."""
    return tuple(dataclasses.replace(row, name=f"{row.name}, {what}") for row in rows)


# A dense matrix is out of reach with 784 inputs.
_IN_FORMS = ("rotated EWC", "rotated EWC, 16 bits", "Kronecker EWC", "Kronecker EWC, 16 bits")
_OTHERS = other_rows(
    {
        # A network that is sure of its labels leaves hardly any importance in those that it is sure of.
        "EWC, sampled labels": strengths(1e5, 1e6, 1e7, 1e8, 1e9),
        "EWC, true labels": strengths(1e5, 1e6, 1e7, 1e8, 1e9),
        **{name: strengths(10.0, 1e2, 1e3, 1e4, 1e5) for name in _IN_FORMS},
        "low-rank EWC": strengths(1e2, 1e3, 1e4, 1e5, 1e6),
        "SOLA": strengths(0.5, 5.0, 50.0, 500.0, 5000.0),
        "MASX on logits": strengths(0.1, 1.0, 10.0, 100.0, 1000.0),
        "posterior precision": _SI_BY_DOMAIN,
        "posterior precision, scaled": _SI_BY_DOMAIN,
    },
    seeds=1,
)

_SPLIT_MNIST = tuple(
    Study(
        name=f"split-mnist-{kind}",
        title=f"Split MNIST, {kind}-incremental",
        scenario="split-mnist",
        usual={"hidden": (400, 400), "epochs": 21, "batch_size": 128, "learning_rate": 0.001},
        rows=with_reports(
            kind_rows(
                kind,
                importance_rows(EWC=_EWC_BY_DOMAIN, SI=_SI_BY_DOMAIN)
                if kind == "domain"
                else importance_rows(EWC=_EWC, SI=_SI),
                (
                    *with_one_seed(tried(references(1000, 128, later_epochs=5))),
                    *named_with("100 samples", with_one_seed(tried(remembering(100, 128)))),
                    *(_OTHERS if kind == "domain" else ()),
                ),
            ),
            _REPORTED_KINDS[kind],
        ),
        seeds=3,
        about=kind,
        source=_THREE_KINDS,
        differs="21 epochs for 2,000 steps a task (1,827 to 2,058 here); Glorot's weights, biases of 0.1 and an Adam "
        "made anew for every task (fine-tuning by task has 96.8 so, from torch's weights with one Adam for all tasks "
        "91.7, two runs each: python -m studies.kept_optimiser); three runs for twenty, one of references; EWC "
        "adds the tasks' importances up, measured on 1,000 samples; a memory is a reservoir of 1,000 samples in all, "
        "as many as their 100 a class; tries have five epochs.",
        while_trying={"epochs": 5},
    )
    for kind in KINDS
)

COMPRESSED = {"compress": 1}
COLUMNS_DIFFER = (
    "a second pass, in which what one network has learned is told to the other; lateral connections to the output "
    "layer alone; the active column goes on from task to task"
)
"""In what runs of Progress & Compress are not those of Schwarz et al. 2018, nor like others of a study."""

# Rates are those of their code. Its strengths are RWalk's 1, EWC's 10, SI's and MAS' 0.1; EWC's importances are
# scaled to at most 1 there, and neither they nor MAS' are here, so that those two strengths are other things. As
# there, what is tried is judged by three permutations that no run has.
_ONE_PASS = {
    "tasks": 17,
    "hidden": (256, 256),
    "epochs": 1,
    "batch_size": 10,
    "optimizer": "sgd",
    "momentum": 0.0,
    "learning_rate": 0.1,
    "reinitialise": False,
}
_RWALK, _SI_ONCE = strengths(0.1, 0.3, 1.0, 3.0, 10.0), strengths(0.03, 0.1, 0.3, 1.0, 3.0)
_EWC_ONCE, _MAS_ONCE = strengths(3.0, 10.0, 30.0, 100.0, 300.0), strengths(1.0, 3.0, 10.0, 30.0, 100.0)
_ONLINE_ONCE = strengths(0.001, 0.003, 0.01, 0.03, 0.1)
_WITHOUT_TASKS = {"measure_settings": {"average": True}, "consolidate": 2000}
_ONE_PASS_REPORTED = _reported(_AGEM, none=47.9, EWC=68.3, MAS=69.6, RWalk=85.7, agem=89.1)
_A_GEM_PROTOCOL = Study(
    name="one-pass",
    title="P-MNIST, 17 permutations in one pass",
    scenario="permuted-mnist",
    usual=_ONE_PASS,
    rows=with_reports(
        (
            Row("fine-tuning", changes={"learning_rate": 0.03}),
            Row("RWalk", "RWalk-batch", differs="totals as the paper has them, its code adds more", tried=_RWALK),
            Row("EWC", "EWC", {"learning_rate": 0.03}, differs="importance is not scaled to 1", tried=_EWC_ONCE),
            Row("SI", "SI", tried=_SI_ONCE),
            Row("SI, held after steps", "SI", {"implicit": True}, seeds=1, tried=_SI_ONCE),
            Row("MAS", "MAS", differs="importance is not scaled to 1", tried=_MAS_ONCE),
            Row("RWalk, of samples", "RWalk", {"engine": "fast"}, seeds=1, tried=_RWALK),
            Row("online EWC", "online-EWC", seeds=1, tried=_ONLINE_ONCE),
            Row("Progress & Compress", "online-EWC", COMPRESSED, differs=COLUMNS_DIFFER, seeds=1, tried=_ONLINE_ONCE),
            *joint_in_large_batches(with_one_seed(tried(references(4250, 256))), 100),
            Row("asymmetric SI", "ALASSO", holding("asymmetric"), seeds=1, tried=_SI_ONCE),
            Row("MAS, without tasks", "MAS", _WITHOUT_TASKS, seeds=1, tried=_MAS_ONCE),
        ),
        _ONE_PASS_REPORTED,
    ),
    seeds=3,
    about="one pass",
    source=_AGEM,
    differs="Three runs for five, one of references; Glorot's weights; A-GEM's memory is a reservoir of 4,250 samples "
    "in all, as many as 25 a class and task.",
    while_trying={"tasks": 3},
)

_VCL_PERMUTED = Study(
    name="vcl-permuted",
    title="P-MNIST, weights as distributions",
    scenario="permuted-mnist",
    usual={"hidden": (100, 100), "epochs": 30, "batch_size": 256, "learning_rate": 0.001, "reinitialise": False},
    rows=(
        Row("fine-tuning"),
        Row(
            "VCL, local reparametrisation",
            changes={**holding("variational", predictions=100, restart=-6.0), "rate_decay": 0.01},
            reported=Reported(93.0, f"{_BETTER_VCL}; {_VCL} without it: 90 (remembered)"),
        ),
        Row(
            "VCL with coresets",
            changes={
                **holding("variational", predictions=100, coreset=100, restart=-6.0),
                "kept": 200,
                "rate_decay": 0.01,
            },
            reported=Reported(94.6, f"{_BETTER_VCL}; {_VCL} without local reparametrisation: 93 (remembered)", False),
        ),
        Row("VCL, constant rate", changes=holding("variational", predictions=100)),
        Row("EWC", "EWC", reported=Reported(84.0, _VCL), tried=strengths(20.0, 60.0, 200.0, 600.0, 2000.0)),
        Row("SI", "SI", reported=Reported(86.0, _VCL), tried=strengths(0.06, 0.2, 0.6, 2.0, 6.0)),
        *with_one_seed(tried(references(2000, 256, later_epochs=2)), "10 epochs", epochs=10),
    ),
    seeds=1,
    about="distributions",
    source=f"{_VCL}; {_BETTER_VCL}",
    differs="30 epochs of batches of 256 at a rate that decays to a hundredth of 0.001, for 800 of 1,024 at 0.005; one "
    "draw a sample and step, for ten; means start at Glorot's weights and go on from task to task, where Nguyen et al. "
    "start at a plainly trained network and Swaroop et al. draw them anew before every task; variances start at e⁻⁶ in "
    "every task, as theirs do; one run; tries are of three tasks with five epochs each.",
    while_trying={"tasks": 3, "epochs": 5},
)
_VCL_SPLIT = Study(
    name="vcl-split",
    title="Split MNIST, weights as distributions",
    scenario="split-mnist",
    usual={"hidden": (256, 256), "epochs": 20, "batch_size": 256, "learning_rate": 0.001, "reinitialise": False},
    rows=(
        Row("fine-tuning"),
        Row("VCL, local reparametrisation", changes=holding("variational"), reported=Reported(97.0, _VCL)),
        Row(
            "VCL with coresets",
            changes={**holding("variational", coreset=100), "kept": 40},
            reported=Reported(98.4, _VCL),
        ),
        Row("SI", "SI", reported=Reported(98.9, _VCL), tried=strengths(0.1, 1.0, 10.0, 100.0, 1000.0)),
        Row("EWC", "EWC", tried=strengths(10.0, 1e2, 1e3, 1e4, 1e5)),
        *with_one_seed(tried(references(200, 128, later_epochs=5))),
    ),
    seeds=3,
    source=_VCL,
    differs="20 epochs of batches of 256 for 120 of the whole task; one draw a sample and step, by local "
    "reparametrisation, for ten of all weights; means start at Glorot's weights, not at a plainly trained network; "
    "tries have five epochs.",
    while_trying={"epochs": 5},
)

_GPM_REFERENCES = joint_in_large_batches(tried(references(1000, 10, later_epochs=1)), 100)
_PROJECTED = Study(
    name="gpm-permuted",
    title="P-MNIST, GPM's protocol",
    scenario="permuted-mnist",
    usual={
        "hidden": (100, 100),
        "epochs": 5,
        "batch_size": 10,
        "optimizer": "sgd",
        "momentum": 0.0,
        "learning_rate": 0.01,
        "reinitialise": False,
    },
    rows=with_reports(
        (Row("fine-tuning"), Row("EWC", "EWC", tried=_EWC_ONCE), *_GPM_REFERENCES),
        {
            name: Reported(mean, _GPM)
            for name, mean in {"GPM": 93.9, "EWC": 90.0, "replay": 87.2, "A-GEM": 83.6}.items()
        },
    ),
    seeds=1,
    source=_GPM,
    differs="Layers have biases, which are not projected; GPM's threshold is one for all layers and tasks, where it "
    "grows in theirs; one run; tries are of three tasks in one epoch each.",
    while_trying={"tasks": 3, "epochs": 1},
)

_VCL_BESIDE = Row(
    "VCL, local reparametrisation", changes={**holding("variational", predictions=20), "precision": "fp32"}
)
_KEEPING = "The paper's protocol; replay, LwF, DER++, joint training and training anew by it are in the item keeping."
# What Table 1 and the other ways of keeping stand beside, so that their titles are those benchmarks'.
_PAPERS_OWN = (
    Study(
        name="permuted-references",
        title="P-MNIST",
        scenario="permuted-mnist",
        usual={"precision": "bf16", "reinitialise": False},
        rows=(
            Row("A-GEM", changes=holding("A-GEM", source=1000, size=64)),
            Row("GPM", changes=holding("projection")),
            _VCL_BESIDE,
        ),
        seeds=1,
        differs=_KEEPING,
    ),
    Study(
        name="split-cifar-references",
        title="Split CIFAR",
        scenario="split-cifar",
        usual={"precision": "bf16", "reinitialise": False},
        rows=(
            Row("A-GEM", changes=holding("A-GEM", source=600, size=64)),
            Row("GPM", changes=holding("projection")),
            _VCL_BESIDE,
        ),
        seeds=1,
        differs=_KEEPING,
    ),
)

_SI_CIFAR = strengths(0.1, 1.0, 10.0, 100.0, 1000.0)
_SPLIT_CIFAR = tuple(
    Study(
        name=f"split-cifar-{kind}",
        title=f"Split CIFAR, {kind}-incremental",
        scenario="split-cifar",
        usual={"precision": "bf16", "epochs": 20, "reinitialise": False},
        rows=kind_rows(kind, importance_rows(EWC=_EWC, SI=_SI_CIFAR), tried(references(600, 64, later_epochs=10))),
        seeds=1,
        differs="The paper's six tasks, whose three kinds nobody has published; tries are of three tasks with ten "
        "epochs each.",
        while_trying={"tasks": 3, "epochs": 10},
    )
    for kind in KINDS
)

AS_PUBLISHED: tuple[Study, ...] = (
    *_SPLIT_MNIST,
    _VCL_SPLIT,
    _A_GEM_PROTOCOL,
    *_SPLIT_CIFAR,
    _VCL_PERMUTED,
    *_PAPERS_OWN,
    _PROJECTED,
)
