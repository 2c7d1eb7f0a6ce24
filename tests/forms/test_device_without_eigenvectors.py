"""A device that has no eigendecomposition, as Apple's: its matrices are decomposed by the processor."""

import pytest
import torch
from torch.utils._pytree import tree_map

from anchorhold.forms.factors import eigenbasis
from anchorhold.tensors.matrices import decomposed

MISSING = ("_linalg_eigh", "linalg_qr", "_linalg_svd")


class OnApple(torch.Tensor):
    """A tensor that says it lies on ``mps``, and does there all that such a device does: no decomposition, no double.

    Its numbers are on the processor, where every operation is carried out; what is moved there is a plain tensor.
    """

    @staticmethod
    def __new__(cls, held):
        if held.dtype == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
            )
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device="mps")

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        name, kwargs = operation.name().split("::")[1].split(".")[0], dict(kwargs or {})
        if name in MISSING:
            raise NotImplementedError(
                f"The operator 'aten::{name}' is not currently implemented for the MPS device. If you want this op to "
                "be considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287."
            )
        moved = torch.device(kwargs.pop("device")) if name == "_to_copy" and kwargs.get("device") else None
        plain = tree_map(lambda x: x.held if isinstance(x, OnApple) else x, (args, kwargs))
        found = operation(*plain[0], **plain[1])
        if moved is not None and moved.type == "cpu":
            return found
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, found)


@pytest.fixture
def brought_back(monkeypatch):
    """Let what is moved to ``mps`` become such a tensor, and remember how often."""
    moves, to = [], torch.Tensor.to

    def moved(tensor, *args, **kwargs):
        device = next((a for a in args if isinstance(a, torch.device)), None)
        if device is not None and device.type == "mps" and not isinstance(tensor, OnApple):
            moves.append(tensor)
            return OnApple(tensor)
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", moved)
    return moves


def factor():
    rows = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    return rows.T @ rows


def test_eigenvectors_come_from_the_processor_and_lie_on_the_device(brought_back):
    there = OnApple(factor())
    with pytest.raises(NotImplementedError, match="MPS"):
        torch.linalg.eigh(there)
    vectors, values = eigenbasis(there)
    assert vectors.device.type == values.device.type == "mps"
    assert len(brought_back) == 2
    torch.testing.assert_close((vectors.held * values.held) @ vectors.held.T, factor(), rtol=1e-5, atol=1e-5)


def test_where_single_precision_fails_double_is_the_processors(brought_back, monkeypatch):
    eigh = torch.linalg.eigh

    def failing_in_single(matrix):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", failing_in_single)
    vectors, values = eigenbasis(OnApple(factor()))
    assert vectors.device.type == "mps" and vectors.dtype == torch.float32
    torch.testing.assert_close((vectors.held * values.held) @ vectors.held.T, factor(), rtol=1e-6, atol=1e-5)


def test_those_of_a_low_rank_and_of_a_projection_do_too(brought_back):
    root = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    q, r = decomposed(torch.linalg.qr, OnApple(root))
    u, s, v = decomposed(torch.linalg.svd, OnApple(root), full_matrices=False)
    assert {each.device.type for each in (q, r, u, s, v)} == {"mps"} and len(brought_back) == 5
    torch.testing.assert_close(q.held @ r.held, root)
    torch.testing.assert_close((u.held * s.held) @ v.held, root)


def test_a_gpu_without_a_library_for_it_says_so_in_a_runtime_error(brought_back):
    """As PyTorch for ROCm does where it was built without MAGMA."""

    def eigh(matrix):
        if matrix.device.type != "cpu":
            raise RuntimeError("Calling torch.linalg.eigh on a CUDA tensor requires compiling PyTorch with MAGMA.")
        return torch.linalg.eigh(matrix)

    values, _ = decomposed(eigh, OnApple(factor()))
    torch.testing.assert_close(values.held, torch.linalg.eigvalsh(factor()))


def test_what_fails_for_another_reason_is_not_tried_twice():
    tried = []

    def failing(matrix):
        tried.append(matrix.device.type)
        raise torch.linalg.LinAlgError("The algorithm failed to converge")

    with pytest.raises(torch.linalg.LinAlgError):
        decomposed(failing, OnApple(factor()))
    assert tried == ["mps"]
