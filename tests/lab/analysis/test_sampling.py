"""Which steps are drawn, and that what they say about the rest is right on average: over all samples there are."""

import itertools
import math
import statistics

import pytest

from anchorhold_lab.analysis.probes.sampled_steps import estimate_total, stratified_sample, stretches, uniform_sample


@pytest.mark.parametrize(
    ("steps", "size"),
    [(4, 2), (5, 4), (10, 2), (10, 8), (100, 4), (101, 100), (1020, 100), (1020, 500), (4680, 500), (46800, 500)],
)
def test_stretches_make_up_all_steps(steps, size):
    found = stretches(steps, size)
    assert [step for stretch in found for step in stretch] == list(range(steps))
    assert len(found) == size // 2
    assert min(map(len, found)) >= 2


def test_the_beginning_is_seen_whole():
    assert [len(stretch) for stretch in stretches(4680, 500)[:10]] == [2] * 10
    drawn = stratified_sample(4680, 500, seed=0, task=0)
    assert drawn[:20] == tuple(range(20))
    assert len(set(drawn)) == 500


def test_a_sample_depends_on_seed_and_task_alone():
    for draw in (stratified_sample, uniform_sample):
        first = draw(100, 10, seed=1, task=2)
        draw.cache_clear()
        assert draw(100, 10, seed=1, task=2) == first == tuple(sorted(first))
        assert draw(100, 10, seed=2, task=2) != first != draw(100, 10, seed=1, task=3)
        assert draw(10, 10, seed=1, task=2) == draw(10, 12, seed=1, task=2) == tuple(range(10))


def test_every_step_of_a_stretch_is_as_likely():
    counts = [0] * 20
    for seed in range(4000):
        for step in stratified_sample(20, 4, seed=seed, task=0):
            counts[step] += 1
    for stretch in stretches(20, 4):
        expected = 2 / len(stretch)
        for step in stretch:  # four standard deviations
            deviation = math.sqrt(expected * (1 - expected) / 4000)
            assert counts[step] / 4000 == pytest.approx(expected, abs=4 * deviation)


def test_a_uniform_sample_is_uniform():
    counts = [0] * 10
    for seed in range(4000):
        for step in uniform_sample(10, 3, seed=seed, task=0):
            counts[step] += 1
    assert counts == pytest.approx([1200] * 10, abs=4 * math.sqrt(4000 * 0.21))


@pytest.mark.parametrize(("steps", "size"), [(9, 4), (12, 6), (7, 2), (6, 4)])
def test_total_and_variance_are_unbiased(steps, size):
    """Averaged over every sample that could be drawn, for values of very different sizes."""
    values = [100 / (step + 1) + (-1) ** step for step in range(steps)]
    every = itertools.product(*(itertools.combinations(stretch, 2) for stretch in stretches(steps, size)))
    found = [estimate_total([values[i] for pair in pairs for i in pair], steps, size) for pairs in every]
    totals = [total for total, _ in found]
    assert statistics.fmean(totals) == pytest.approx(sum(values))
    assert statistics.fmean(error**2 for _, error in found) == pytest.approx(statistics.pvariance(totals))


def test_all_steps_have_no_error():
    assert estimate_total([1.0, 2.5, 4.0], 3, 10) == (7.5, 0.0)
