"""A preset that is over in seconds: nothing in it means anything, but all of it runs."""

import dataclasses

from studies.benzing2020.presets import DIGITS, Chosen, SearchPlan
from studies.benzing2020.presets.form_variants import by_samples, in_two_forms, over_many_tasks
from studies.benzing2020.presets.window_variants import windows
from studies.benzing2020.relatives import Reported, Row, Study
from studies.benzing2020.relatives.studies import KINDS, importance_rows, kind_rows
from studies.benzing2020.relatives.study import holding, strengths

_SMALL = {"tasks": 2, "epochs": 1, "hidden": (8,), "batch_size": 64}
_LARGE = {"batch_size": 128}
_NO_ALPHA = {"measure_settings": {"alpha": 0.0}}
_DAMPED = {"damping": 0.001}
_ORDERS = {"easy first": {"tasks": 3, "order": (1, 2, 0)}, "hard first": {"tasks": 3, "order": (2, 1, 0)}}
_FORMS = {
    **in_two_forms(20, _DAMPED),
    **by_samples(5, 10, 40, _DAMPED, damping=0.01),
    **over_many_tasks(20, _DAMPED, _DAMPED, {"tasks": 3}),
}


def tiny_preset(**changes):
    """Return the preset; ``changes`` are those of the stage that plays Permuted MNIST."""
    permuted, split = DIGITS.stages["P-MNIST"], DIGITS.stages["CIFAR"]
    sizes = {"seeds": 2, "samples": 20, "many_samples": 60, "path_steps": 4, "seeds_of": {}}
    variants = {
        "large batch": _LARGE,
        "large batch, α = 0": {**_LARGE, **_NO_ALPHA},
        "large batch, halves": {**_LARGE, "second_batch": "halves"},
        **windows(_LARGE, middle=0.9, short=0.8, tied=0.3, skip=1, rate=0.01),
    }
    stages = {
        "P-MNIST": dataclasses.replace(
            permuted,
            **{
                **sizes,
                "usual": _SMALL,
                "variants": {
                    **permuted.variants,
                    **variants,
                    **_FORMS,
                    "long training": {"epochs": 2},
                    "long training, searched": {"epochs": 2},
                },
                "noise": "noise:5",
                **changes,
            },
        ),
        "CIFAR": dataclasses.replace(
            split,
            usual=_SMALL,
            variants={**split.variants, **variants, **in_two_forms(20, _DAMPED), "all tasks": {"tasks": 3}, **_ORDERS},
            **sizes,
        ),
    }
    return dataclasses.replace(DIGITS, stages=stages, repetitions=2, logits_seeds=2, relatives=tiny_studies())


def tiny_studies():
    """Return studies of a few relatives, one for everything that claims are about."""
    usual = {"tasks": 2, "epochs": 1, "hidden": (7,), "batch_size": 64}
    distributions = {**holding("variational", predictions=2, coreset=1), "kept": 10}
    ewc = importance_rows(EWC=strengths(1.0))
    memory = (Row("replay", changes=holding("replay", source=8, size=8)),)
    rows = (
        Row("fine-tuning", reported=Reported(99.0, "a table")),
        Row("EWC", "EWC", {"strength": 1.0}, Reported(0.5, "another", remembered=False), differs="a little"),
        Row("VCL", changes=distributions, seeds=1),
    )
    split = tuple(
        Study(f"tiny-{kind}", kind, "split-digits", usual, kind_rows(kind, ewc, memory), 1, about=kind)
        for kind in KINDS
    )
    whole = Study("tiny", "Tiny", "permuted-digits", usual, rows, seeds=2, about="distributions", source="nobody")
    walks = (Row("fine-tuning"), Row("RWalk", "RWalk-batch", {"strength": 1.0}))
    return (
        whole,
        *split,
        Study("tiny-pass", "One pass", "permuted-digits", {**usual, "hidden": (6,)}, walks, 1, about="one pass"),
    )


def with_unknown_strength():
    """Return the preset with one strength, that of L2, still to be searched for."""
    return tiny_preset(searched={("L2", "usual"): SearchPlan()})


FOUND = Chosen(0.1, reinitialise=False)
