"""Claims about SI's bias: how large it is, what SIU and the full gradient sum to, and where importance is negative."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from anchorhold_lab.analysis import shares_at_least
from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import (
    ALL_BUT_LAST,
    FIRST,
    LAST,
    LATER,
    on_each_task,
    over_tasks,
)
from studies.benzing2020.claims.rule import AtLeast, AtMost, Between, Measurement, mean_of
from studies.benzing2020.drawing.task_columns import Table, full_paths, loss_decreases, negative_shares, raw_sums
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import noise_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark
from studies.benzing2020.published import BIAS_TO_UNBIASED


def bias_ratio(results: Results, benchmark: Benchmark) -> Table:
    """Return how many times SI's bias is its unbiased part, summed over all protected weights."""
    unbiased = raw_sums(results, benchmark, "SIU")
    return (raw_sums(results, benchmark, "SI") - unbiased) / unbiased


def distance_from_full(results: Results, benchmark: Benchmark) -> Table:
    """Return how far, relatively, SIU's sum is from that of the full gradient.

    Relative to the mean over runs: at a sample of the steps, one run's full gradient has a scatter of its own.
    """
    full = full_paths(results, benchmark)
    return np.asarray((raw_sums(results, benchmark, "SIU") - full) / np.mean(full, axis=0), dtype=np.float64)


def above_decrease(results: Results, benchmark: Benchmark, *, of: str) -> Table:
    """Return the relative excess of a sum over the true decrease in loss."""
    total = full_paths(results, benchmark) if of == "the full gradient" else raw_sums(results, benchmark, of)
    return total / loss_decreases(results, benchmark) - 1


def noisy_steps(results: Results) -> Sequence[Measurement]:
    """Return the share of steps whose noise is larger than the full gradient, run by run."""
    runs = results.observed(noise_runs(results.preset), "noise")
    return [mean_of([shares_at_least(run["tasks"][0]["ratio"], [1.0])[0] for run in runs])]


_WHERE_SUMS_EXCEED: tuple[tuple[Benchmark, str, slice], ...] = (
    ("P-MNIST", ", every task", slice(None)),
    ("CIFAR", " but its last task", ALL_BUT_LAST),
)

CLAIMS = (
    Claim(
        "bias-dominates",
        ("figure1",),
        "The bias of SI is {}-{} times larger than its unbiased part (Permuted MNIST, first task).".format(
            *BIAS_TO_UNBIASED
        ),
        "bias / unbiased part, P-MNIST task 1",
        over_tasks(partial(bias_ratio, benchmark="P-MNIST"), tasks=FIRST),
        Between(4.5, 6.5),  # read off a figure by eye: to the nearest half
        words="5-6 times larger than its unbiased",
    ),
    *(
        Claim(
            f"a1-{benchmark.lower()}",
            ("figure1",),
            f"(A1) The noise outweighs the gradient: SI's bias exceeds its unbiased part on every task of {benchmark}.",
            "bias / unbiased part, each task",
            on_each_task(partial(bias_ratio, benchmark=benchmark)),
            AtLeast(1.0),
            words="equivalent to the bias of SI being larger than its unbiased part",
        )
        for benchmark in BENCHMARKS
    ),
    Claim(
        "noise-exceeds-gradient",
        ("gradient-noise",),
        "The noise of a batch's gradient is larger than the full gradient in most steps (MNIST).",
        "share of steps with a ratio of at least 1",
        noisy_steps,
        AtLeast(0.5),  # in most steps at the very least
        words="the noise is considerably larger than the gradient itself",
    ),
    *(
        Claim(
            f"siu-tracks-full-gradient-{benchmark.lower()}",
            ("summed-importances",),
            f"SIU and the full gradient give almost identical sums ({benchmark}, every task).",
            "relative distance of the sums, each task",
            on_each_task(partial(distance_from_full, benchmark=benchmark)),
            Between(-0.1, 0.1),  # a tenth, where the bias is several hundred per cent
            words="almost identical sums",
        )
        for benchmark in BENCHMARKS
    ),
    *(
        Claim(
            f"sums-above-decrease-{name}-{benchmark.lower()}",
            ("summed-importances",),
            f"The sum of {of} over the protected weights overestimates the decrease in loss ({benchmark}{where}).",
            "relative excess, each task",
            on_each_task(partial(above_decrease, benchmark=benchmark, of=of), tasks=tasks),
            AtLeast(0.0),
            words="even the unbiased first order approximation of the path integral overestimates the decrease in loss",
        )
        for name, of in (("siu", "SIU"), ("full", "the full gradient"))
        for benchmark, where, tasks in _WHERE_SUMS_EXCEED
    ),
    Claim(
        "sum-below-decrease-on-last-cifar-task",
        ("summed-importances",),
        "On CIFAR's last task, the sum of SIU over the protected weights, without the head's, slightly underestimates "
        "the decrease in loss.",
        "relative excess of SIU's sum, last task",
        over_tasks(partial(above_decrease, benchmark="CIFAR", of="SIU"), tasks=LAST),
        AtMost(0.0),
        words="slightly underestimates the decrease in loss in the last task",
    ),
    Claim(
        "negative-on-later-cifar-tasks",
        ("before-rescaling",),
        "On CIFAR's tasks 2-6 many weights have negative SI importances before rescaling.",
        "share of negative weights, each of the later tasks",
        on_each_task(partial(negative_shares, benchmark="CIFAR", measure="SI"), tasks=LATER),
        AtLeast(0.1),
        words="on CIFAR tasks 2-6 many weights have negative importances",
    ),
    Claim(
        "none-negative-on-first-cifar-task",
        ("before-rescaling",),
        "There are no negative SI importances after CIFAR's first task.",
        "share of negative weights, task 1",
        over_tasks(partial(negative_shares, benchmark="CIFAR", measure="SI"), tasks=FIRST),
        AtMost(0.01),  # a hundredth of them is what we allow
        words="There are no negative importances after first task",
    ),
)
