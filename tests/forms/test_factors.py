"""Eigenvectors of factors, also where single precision fails to find them."""

import pytest
import torch

from anchorhold.forms.factors import ORTHONORMAL, eigenbasis

EIGH = torch.linalg.eigh


def nan_in_single(matrix):
    values, vectors = EIGH(matrix)
    if matrix.dtype == torch.float32:
        values[:2], vectors[:, :2] = torch.nan, torch.nan
    return values, vectors


def failing_in_single(matrix):
    if matrix.dtype == torch.float32:
        raise torch.linalg.LinAlgError
    return EIGH(matrix)


def off_in_single(matrix):
    values, vectors = EIGH(matrix)
    return values, vectors * 1.01 if matrix.dtype == torch.float32 else vectors


@pytest.mark.parametrize("eigh", [EIGH, nan_in_single, failing_in_single, off_in_single])
def test_eigenvectors_are_found_in_double_where_single_precision_fails(eigh, monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    factor = rows.T @ rows
    vectors, values = eigenbasis(factor)
    assert vectors.dtype == values.dtype == torch.float32
    torch.testing.assert_close((vectors * values) @ vectors.T, factor, rtol=1e-4, atol=1e-4)


def off_in_one_pair(matrix, error=2 * ORTHONORMAL):
    """Return eigenvectors two of which are at a right angle to all others, and nearly so to each other."""
    values, vectors = EIGH(matrix)
    if matrix.dtype == torch.float32:
        vectors = vectors.clone()
        vectors[:, 70] += error * vectors[:, 11]
    return values, vectors


def large_factor():
    rows = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    return rows.T @ rows


def test_two_vectors_of_many_that_are_not_orthogonal_are_seen(monkeypatch):
    expected = EIGH(large_factor().double())[1].float()
    monkeypatch.setattr(torch.linalg, "eigh", off_in_one_pair)
    vectors, _ = eigenbasis(large_factor())
    assert torch.equal(vectors, expected)


def test_small_errors_that_add_up_take_no_eigenvectors_in_double(monkeypatch):
    """Each of them is within the bound, which is of the largest one."""
    tried = []

    def off_everywhere(matrix):
        tried.append(matrix.dtype)
        values, vectors = EIGH(matrix)
        return values, vectors @ (torch.eye(len(vectors)) + 0.2 * ORTHONORMAL).to(vectors)

    monkeypatch.setattr(torch.linalg, "eigh", off_everywhere)
    vectors, _ = eigenbasis(large_factor())
    assert tried == [torch.float32]
    assert (vectors.T @ vectors - torch.eye(200)).abs().max() <= ORTHONORMAL
