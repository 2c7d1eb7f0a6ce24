"""The same studies for little time: on digits that come along, or with few steps on the real data.

Neither has numbers of others' beside it: what is published is of other benchmarks, or of longer training.
"""

import dataclasses
from typing import Any

from studies.benzing2020.relatives.others import other_rows
from studies.benzing2020.relatives.studies import (
    AS_PUBLISHED,
    COLUMNS_DIFFER,
    COMPRESSED,
    KINDS,
    importance_rows,
    kind_rows,
)
from studies.benzing2020.relatives.study import Row, Study, holding, references, strengths, with_one_seed

# Strengths are the digits' own (usual_protocols.py), by domain and by class too; in one pass, and of what is in no
# other study, the best of a few on validation data, with one seed that no study uses.
_OTHERS = other_rows(
    {
        "EWC, sampled labels": strengths(20.0),
        "EWC, true labels": strengths(60.0),
        "MASX on logits": strengths(0.03),
        "posterior precision": strengths(1.0),
        "posterior precision, scaled": strengths(1.0),
        "rotated EWC": strengths(20.0),
        "rotated EWC, 16 bits": strengths(20.0),
        "Kronecker EWC": strengths(20.0),
        "Kronecker EWC, 16 bits": strengths(20.0),
        "low-rank EWC": strengths(20.0),
        "SOLA": strengths(5.0),
        "dense EWC": strengths(2.0),
    }
)
_SPLIT = tuple(
    Study(
        name=f"split-digits-{kind}",
        title=f"Split digits, {kind}-incremental",
        scenario="split-digits",
        usual={"tasks": 5},
        rows=(
            *kind_rows(
                kind,
                importance_rows(EWC=strengths(200.0), SI=strengths(20.0)),
                (*references(50, 32, later_epochs=2), *(_OTHERS if kind == "domain" else ())),
            ),
            Row("VCL", changes={**holding("variational", predictions=10), "epochs": 15, "incremental": kind}, seeds=1),
        ),
        seeds=2,
        about=kind,
    )
    for kind in KINDS
)
_ONE_PASS = Study(
    name="one-pass-digits",
    title="Permuted digits, five permutations in one pass",
    scenario="permuted-digits",
    usual={
        "tasks": 5,
        "hidden": (100, 100),
        "epochs": 1,
        "batch_size": 10,
        "optimizer": "sgd",
        "momentum": 0.0,
        "learning_rate": 0.1,
    },
    rows=(
        Row("fine-tuning"),
        Row("RWalk", "RWalk-batch", {"strength": 5.0}),
        Row("RWalk, of samples", "RWalk", {"strength": 5.0}, seeds=1),
        Row("EWC", "EWC", {"strength": 10.0}),
        Row("SI", "SI", {"strength": 0.3}),
        Row("MAS", "MAS", {"strength": 3.0}),
        Row("online EWC", "online-EWC", {"strength": 0.01}),
        Row("Progress & Compress", "online-EWC", {"strength": 0.03, **COMPRESSED}, differs=COLUMNS_DIFFER),
        Row("asymmetric SI", "ALASSO", {"strength": 0.5, **holding("asymmetric")}),
        Row("MAS, without tasks", "MAS", {"strength": 3.0, "measure_settings": {"average": True}, "consolidate": 70}),
        *with_one_seed(references(150, 32)),
    ),
    seeds=2,
    about="one pass",
)
_DISTRIBUTIONS = Study(
    name="vcl-digits",
    title="Permuted digits, weights as distributions",
    scenario="permuted-digits",
    usual={"tasks": 3, "hidden": (100, 100), "epochs": 12},
    rows=(
        Row("fine-tuning"),
        Row("VCL", changes=holding("variational", predictions=10)),
        Row("VCL with coresets", changes={**holding("variational", predictions=10, coreset=20), "kept": 40}),
        Row("EWC", "EWC", {"strength": 200.0}),
        *with_one_seed(references(120, 32, later_epochs=5)),
    ),
    seeds=2,
    about="distributions",
)

IN_MINIATURE: tuple[Study, ...] = (*_SPLIT, _ONE_PASS, _DISTRIBUTIONS)


def _quickly(study: Study) -> Study:
    usual: dict[str, Any] = {**study.usual, "tasks": 3, "epochs": 1}

    def shorter(row: Row) -> Row:
        holds = {name: dict(settings) for name, settings in row.changes.get("hold_settings", {}).items()}
        if "variational" in holds:
            holds["variational"]["predictions"] = 5
            holds["variational"] |= {"coreset": 5} if holds["variational"].get("coreset") else {}
        own = {name: value for name, value in row.changes.items() if name not in ("epochs", "later_epochs")}
        changes = {**own, "hold_settings": holds} if holds else own
        chosen = row.tried[len(row.tried) // 2] if row.tried else None  # nothing is searched for in passing
        return dataclasses.replace(row, changes=changes, reported=None, chosen=chosen)

    return dataclasses.replace(study, usual=usual, rows=tuple(map(shorter, study.rows)), seeds=1)


QUICKLY: tuple[Study, ...] = tuple(map(_quickly, AS_PUBLISHED))
