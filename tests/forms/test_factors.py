"""Eigenvectors of factors, also where single precision fails to find them."""

import pytest
import torch

from anchorhold.forms.factors import eigenbasis

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
