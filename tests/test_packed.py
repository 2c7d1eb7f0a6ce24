"""Importance in one byte a number and weights in three: how far off they are, and what is never lost."""

import copy
import pickle

import numpy as np
import pytest
import torch

from anchorhold.tensors import packed
from anchorhold.tensors.packed import (
    BLOCK,
    LEAST,
    Packed,
    PackedImportance,
    PackedWeights,
    pack_importance,
    pack_weights,
    packed_bytes,
    plain_tensor,
)
from anchorhold.tensors.pieces import in_pieces

LARGEST = torch.finfo(torch.float32).max
TINY = 2.0**-149


def spanning(decades, n=4 * BLOCK + 777, seed=0, zeros=0.2):
    """Importances whose logarithms are spread evenly over some decades below 1."""
    generator = torch.Generator().manual_seed(seed)
    numbers = 10 ** (-decades * torch.rand(n, generator=generator, dtype=torch.float64))
    return (numbers * (torch.rand(n, generator=generator) >= zeros)).float()


def nearest_on_grid(x):
    """The oracle: each number of a block on the finest grid of floats that reaches both ends, in float64 one by one.

    A grid with m bits of mantissa has 2^m numbers between powers of 2.
    """
    found = np.zeros(len(x))
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK].double().numpy()
        held = block[block > 0]
        if not len(held):
            continue
        for mantissa in (7, 6, 5, 4, 3):
            below, above = _place(held.min(), mantissa, np.floor), _place(held.max(), mantissa, np.ceil)
            if above - below < 255:
                break
        lowest = max(below, above - 254, 1)
        # Half up, as in the bits.
        places = [max(_place(number, mantissa, lambda place: np.floor(place + 0.5)), lowest) for number in held]
        found[start : start + BLOCK][block > 0] = [_number(place, mantissa) for place in places]
    return torch.from_numpy(found)


def _place(number, mantissa, rounded):
    exponent = max(np.floor(np.log2(number)), -126)
    return int(rounded((exponent + 126 + number / 2.0**exponent) * 2**mantissa))


def _number(place, mantissa):
    octave, steps = divmod(place, 2**mantissa)
    return 2.0**-126 * steps / 2**mantissa if octave == 0 else 2.0 ** (octave - 127) * (1 + steps / 2**mantissa)


@pytest.mark.parametrize("decades", [0.3, 1, 2, 4, 6, 9, 15, 30, 37])
def test_it_is_the_nearest_on_the_finest_grid_that_reaches_all(decades):
    x = spanning(decades)
    assert torch.equal(pack_importance(x).unpacked().double(), nearest_on_grid(x))


@pytest.mark.parametrize(("octaves", "bound"), [(1, 2**-8), (3, 2**-7), (7, 2**-6), (15, 2**-5), (31, 2**-4)])
def test_the_relative_error_is_within_its_bound(octaves, bound):
    x = 2 ** (-octaves * torch.rand(10 * BLOCK, generator=torch.Generator().manual_seed(1)))
    found = pack_importance(x).unpacked()
    error = ((found.double() - x.double()) / x.double()).abs()
    assert bound / 2 < float(error.max()) <= bound


def test_what_is_far_below_the_largest_counts_as_2_to_the_minus_31_of_it():
    x = torch.full((LEAST,), 1e-30)
    x[0] = 1.0
    found = pack_importance(x).unpacked()
    assert found[0] == 1
    assert 0 < float(found[1:BLOCK].max()) <= 2**-31
    assert torch.equal(found[BLOCK:], pack_importance(torch.full((LEAST,), 1e-30)).unpacked()[BLOCK:])


@pytest.mark.parametrize("noise", [None, 0])
@pytest.mark.parametrize("decades", [0.5, 5, 40])
def test_zero_stays_zero_and_what_is_held_stays_held(decades, noise):
    x = spanning(decades)
    x[1:3] = torch.tensor([TINY, LARGEST])
    found = pack_importance(x, None if noise is None else torch.Generator().manual_seed(noise)).unpacked()
    assert torch.equal(found == 0, x == 0) and bool((found >= 0).all()) and bool(found.isfinite().all())


@pytest.mark.parametrize("value", [0.0, -0.0, TINY, 1e-40, 2.0**-126, 1.0, LARGEST])
def test_a_constant_tensor_of_any_size(value):
    found = pack_importance(torch.full((LEAST,), value)).unpacked()
    assert found.unique().numel() == 1 and bool((found == 0).all()) == (value == 0)
    if value >= 2.0**-126:
        assert float(found[0]) == pytest.approx(value, rel=2**-8)


@pytest.mark.parametrize("value", [-1e-30, torch.nan, torch.inf, -torch.inf])
def test_what_is_no_importance_is_left_for_checks_to_refuse(value):
    x = torch.ones(LEAST)
    x[7] = value
    assert pack_importance(x) is x


@pytest.mark.parametrize("n", [LEAST, LEAST + 1, 6 * BLOCK - 1, 6 * BLOCK])
@pytest.mark.parametrize("pack", [pack_importance, pack_weights])
def test_any_length_and_shape(pack, n):
    x = spanning(3, n).view(n, 1, 1)
    found = pack(x)
    assert found.shape == x.shape and found.unpacked().shape == x.shape
    assert found.nbytes == sum(part.nbytes for part in found.parts)
    assert found.nbytes == packed_bytes(n, importance=pack is pack_importance)


@pytest.mark.parametrize("pack", [pack_importance, pack_weights])
def test_few_numbers_and_other_kinds_stay_as_they_are(pack):
    for tensor in (torch.ones(LEAST - 1), torch.ones(LEAST, dtype=torch.int32), torch.ones(LEAST, dtype=torch.cfloat)):
        assert pack(tensor) is tensor
    twice = pack(torch.ones(LEAST))
    assert pack(twice) is twice
    assert packed_bytes(LEAST - 1, importance=True) is None


@pytest.mark.parametrize("decades", [0.3, 1, 3, 8, 20, 40])
@pytest.mark.parametrize("noise", [None, 3])
def test_what_was_packed_is_packed_again_without_a_change(decades, noise):
    first = pack_importance(spanning(decades), torch.Generator().manual_seed(5)).unpacked()
    generator = None if noise is None else torch.Generator().manual_seed(noise)
    assert torch.equal(pack_importance(first, generator).unpacked(), first)


@pytest.mark.parametrize("decades", [1, 6, 20])
def test_bfloat16_holds_every_code_exactly(decades):
    importance, weights = pack_importance(spanning(decades)), pack_weights(spanning(decades))
    assert plain_tensor(importance).dtype == torch.bfloat16
    assert torch.equal(plain_tensor(importance).float(), importance.unpacked())
    assert torch.equal(plain_tensor(weights), weights.unpacked())


def test_rounding_by_noise_is_right_in_the_mean():
    x = spanning(5, n=LEAST)
    draws = 400
    found = torch.stack(
        [pack_importance(x, torch.Generator().manual_seed(seed)).unpacked().double() for seed in range(draws)]
    )
    held = x > 0
    error = (found.mean(0)[held] - x[held]) / x[held]
    # One draw's is within a step of 1/8, and so has a standard deviation of 1/16 at most.
    assert float(error.abs().max()) < 6 * 2**-4 / draws**0.5
    assert abs(float(error.mean())) < 6 * 2**-4 / (draws * int(held.sum())) ** 0.5


def test_small_additions_do_not_vanish():
    to_nearest = torch.full((LEAST,), 1.0)
    to_nearest[::2] = 2.0**-20  # so that each block is wide, with steps of 1/8
    drawn = to_nearest
    for task in range(200):
        low = 0.01 * (to_nearest > 0.5)
        to_nearest = pack_importance(to_nearest + low).unpacked()
        drawn = pack_importance(drawn + low, torch.Generator().manual_seed(task)).unpacked()
    assert float(to_nearest[1]) == 1.0  # swallowed each time
    assert float(drawn[1::2].mean()) == pytest.approx(3.0, rel=0.02)


def test_the_same_noise_gives_the_same_bits():
    x = spanning(5)
    first, second, other = (pack_importance(x, torch.Generator().manual_seed(seed)).unpacked() for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_a_tensor_longer_than_what_is_packed_at_once(monkeypatch):
    x = spanning(5, n=7 * BLOCK + 5)
    whole = pack_importance(x)
    monkeypatch.setattr(packed, "_AT_ONCE", 2 * BLOCK)
    for part, own in zip(pack_importance(x).parts, whole.parts, strict=True):
        assert torch.equal(part, own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weights_lose_their_last_byte_alone(dtype):
    generator = torch.Generator().manual_seed(0)
    size = 10 ** (20 * torch.rand(LEAST, generator=generator) - 10)
    x = (torch.randn(LEAST, generator=generator) * size).to(dtype)
    x[:4] = torch.tensor([0.0, -0.0, LARGEST, -LARGEST])
    x[2:4] = x[2:4].clamp(-LARGEST, LARGEST) if dtype != torch.bfloat16 else torch.finfo(dtype).max
    found = pack_weights(x).unpacked()
    assert bool(found.isfinite().all()) and torch.equal(found[:2], torch.zeros(2))
    if dtype == torch.bfloat16:
        assert torch.equal(found, x.float())
        return
    own = x[4:].float().double()
    error = ((found[4:].double() - own) / own).abs()
    assert 2**-18 < float(error.max()) <= 2**-16
    # To the nearest of the numbers whose mantissa has 16 bits, half up, as float64 has it.
    mantissa, exponent = np.frexp(own.numpy())
    nearest = np.ldexp(np.floor(np.abs(mantissa) * 2**16 + 0.5) / 2**16 * np.sign(mantissa), exponent)
    assert np.array_equal(found[4:].double().numpy(), nearest)


def test_weights_that_are_no_numbers_stay_none():
    x = torch.ones(LEAST)
    x[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert torch.equal(pack_weights(x).isfinite(), x.isfinite())


@pytest.mark.parametrize(("pack", "kind"), [(pack_importance, PackedImportance), (pack_weights, PackedWeights)])
def test_it_is_a_tensor_that_computes_as_its_numbers(pack, kind):
    x = pack(spanning(4))
    plain = x.unpacked()
    assert isinstance(x, kind) and x.dtype == torch.float32 and x.device == plain.device and x._base is None
    assert torch.equal(x * 2, plain * 2) and type(x * 2) is torch.Tensor
    assert torch.equal(torch.sub(plain, x), torch.zeros_like(plain)) and float(x.sum()) == float(plain.sum())
    assert type(x.to(torch.float64)) is torch.Tensor and torch.equal(x.double(), plain.double())
    for same in (x.clone(), x.detach(), x.to("cpu"), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert isinstance(same, kind) and torch.equal(same.unpacked(), plain)
    assert x.clone().parts[0].data_ptr() != x.parts[0].data_ptr()
    moved = x.to("meta")
    assert isinstance(moved, kind) and moved.device.type == "meta" and moved.nbytes == x.nbytes
    assert kind.__name__ in repr(x)


def test_it_cannot_be_written_to():
    x = pack_weights(torch.ones(LEAST))
    for write in (lambda: x.add_(1), lambda: torch.add(x, 1, out=x), lambda: torch._foreach_copy_([x], [x * 2])):
        with pytest.raises(TypeError, match=r"writes to a .*Packed.*unpacked\(\)"):
            write()
    buffer = torch.ones(LEAST)
    assert torch.equal(buffer.add_(x), torch.full((LEAST,), 2.0))


@pytest.mark.parametrize("n", [LEAST, 2**19, 2**19 + 1, 2**20 + BLOCK + 3])
def test_pieces_are_unpacked_one_by_one(n):
    plain = spanning(4, n)
    omega, anchor = pack_importance(plain), pack_weights(plain)
    cut = list(in_pieces([plain, omega, anchor]))
    assert not any(isinstance(piece, Packed) for pieces in cut for piece in pieces)
    for joined, expected in zip(map(torch.cat, zip(*cut, strict=True)), (plain, omega, anchor), strict=True):
        assert torch.equal(joined, expected)


def test_other_layouts_are_taken_whole():
    channels_last = torch.rand(8, 16, 8, 8).to(memory_format=torch.channels_last)
    ((plain, own),) = in_pieces([channels_last, pack_importance(channels_last)])
    assert plain is channels_last and torch.allclose(own, channels_last, rtol=2**-4)
