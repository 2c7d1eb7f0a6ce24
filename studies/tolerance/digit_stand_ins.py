"""Permuted digits with a tolerance on what stands in for the old ones: what real ones then lose."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import anchorhold
from benchmarks.undamped import undamped
from studies.tolerance.digits import KEPT, STEPS, Data, Following, Run, first_task

FOLLOWED: dict[str, Following] = {"diagonal": {"damping": 0.01, "start": 0.3}, "rotated": {}}
"""How the tolerance is followed in each form: as it was by default when this was run."""
FORMS = tuple(FOLLOWED)
TOLERANCES = (0.03, 0.1)
SEEDS = range(5)
MEASURED = 500
"""How many inputs the importance is measured on: others than those that are kept."""
OLD = "old digits"


def stand_ins(data: Data, seed: int) -> dict[str, Tensor]:
    """Return inputs of each kind: first those to measure importance on, then those to keep.

    Noise is drawn around means and variances of old digits, which say little about any one of them.
    """
    old = torch.cat([data.train[0][:MEASURED], data.kept[0]])
    generator = torch.Generator().manual_seed(100 + seed)
    drawn = torch.randn(MEASURED + KEPT, old.shape[1], generator=generator)
    seen = data.train[0]
    return {
        OLD: old,
        "the new task's digits": old[:, data.order],
        "noise, a mean and a variance for each pixel": seen.mean(0) + seen.std(0) * drawn,
        "noise, one mean and one variance": seen.mean() + seen.std() * drawn,
    }


def rows(*, steps: int = STEPS, seeds: range = SEEDS) -> Iterator[dict[str, Any]]:
    """Yield what came out of each run.

    Args:
        steps: fewer of them, for a rehearsal.
        seeds: which to run.
    """
    for seed in seeds:
        first = first_task(seed)
        inputs = stand_ins(Data.of(seed), seed)
        for form in FORMS:
            for kind, given in inputs.items():
                for measured in dict.fromkeys((kind, OLD)):
                    for nats in TOLERANCES:
                        make = _maker(
                            seed, first, form, nats, kept=given[MEASURED:], measured=inputs[measured][:MEASURED]
                        )
                        found = one(make, nats, steps)
                        yield {
                            "setting": "digits",
                            "form": form,
                            "kept": kind,
                            "measured": measured,
                            "seed": seed,
                        } | found


def _maker(seed: int, first: torch.nn.Module, form: str, nats: float, **inputs: Tensor) -> Callable[[], Run]:
    tolerance = anchorhold.Tolerance(nats, **FOLLOWED[form])
    return lambda: Run(seed, "Adam", first, form=undamped(form), tolerance=tolerance, **inputs)


def one(make: Callable[[], Run], nats: float, steps: int) -> dict[str, float]:
    """Learn the second task, go back to the tolerance, and return what is lost where, and what was learned."""
    run = make()
    run.train(steps=steps)
    found = run.pulled_back(nats)
    return {
        "tolerance": nats,
        "lost of kept": found["kept"],
        "lost of old": found["fresh"],
        "new": 100 * found["accuracy"],
    }
