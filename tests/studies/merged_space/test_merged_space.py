"""The toy of adapters held by merged weights: at a tiny size, and how its numbers are read off."""

import dataclasses

import pytest
import torch

from studies.merged_space import study as merged_space
from studies.merged_space.study import DIGITS, LETTERS, QUICK, RULE, Found, lost_by, page, sequences

pytestmark = pytest.mark.filterwarnings("ignore::anchorhold.AnchorholdWarning")


def test_every_way_is_tried_at_every_strength():
    sizes = dataclasses.replace(QUICK, seeds=(0,), strengths=(1e-9, 1e9))
    found = merged_space.run(sizes)
    free = found[0]
    by_way = {(each.way, each.strength): each for each in found}
    for form in ("diagonal", "rotated", "kronecker"):
        for held in ("factors", "merged weights"):
            assert by_way[f"{form}, {held}", 1e-9].gained == pytest.approx(free.gained, abs=1e-4)
    assert abs(by_way["kronecker, merged weights", 1e9].gained) < abs(free.gained)
    assert page(found, {}, sizes).count("\n| ") == 1 + 1 + 6


def test_letters_and_digits_go_by_their_rules():
    generator = torch.Generator().manual_seed(0)
    for kind, first, size, by in (("digits", 0, DIGITS, (3, 1)), ("letters", DIGITS, LETTERS, RULE)):
        tokens = sequences(200, kind, generator) - first
        assert int(tokens.min()) >= 0 and int(tokens.max()) < size
        ruled = (by[0] * tokens[:, 1:-1] + by[1] * tokens[:, :-2] + 1) % size
        assert 0.88 < float((ruled == tokens[:, 2:]).double().mean()) < 0.94
    assert set(sequences(8, "both", generator)[-2:].flatten().tolist()) <= set(range(DIGITS, DIGITS + LETTERS))


def test_what_is_lost_is_read_off_between_strengths_seed_by_seed():
    found = [Found(seed, "fine-tuning", 0.0, 2.0, 1.0) for seed in (0, 1)]
    found += [Found(seed, "held", 1.0, 0.2 * (seed + 1), 0.8) for seed in (0, 1)]
    found += [Found(seed, "held", 0.1, 0.4 * (seed + 1), 1.0) for seed in (0, 1)]
    assert lost_by(found, "held", 0.9) == pytest.approx([0.3, 0.6])
    assert lost_by(found, "averaging", 0.5) == pytest.approx([1.0, 1.0])
    assert lost_by(found[:-1], "held", 0.9) == []
