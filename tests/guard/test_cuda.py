"""State that lies elsewhere than the parameters, for which it takes a GPU."""

import pytest
import torch

import anchorhold
from tests.guard.test_storage import MEASURES, learned

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("measure", [*MEASURES, "L2"])
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16])
def test_state_on_the_processor_gives_what_state_on_the_gpu_gives(measure, state_dtype, tmp_path):
    model, there, _ = learned(measure, device="cuda", state_dtype=state_dtype)
    other, here, _ = learned(measure, device="cuda", state_device="cpu", state_dtype=state_dtype)
    assert {tensor.device.type for tensor in here.state_dict()["tensors"].values()} == {"cpu"}
    assert all(tensor.is_pinned() for tensor in here.state_dict()["tensors"].values())
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)
    for key, tensor in there.state_dict()["tensors"].items():
        assert torch.equal(here.state_dict()["tensors"][key], tensor.cpu()), key
    torch.testing.assert_close(here.penalty(), there.penalty())
    here.save(tmp_path / "guard.safetensors")
    there.load(tmp_path / "guard.safetensors")
    assert {tensor.device.type for tensor in there.state_dict()["tensors"].values()} == {"cuda"}


@pytest.mark.parametrize("form", ["rotated", "rotated16", "kronecker", "kronecker16"])
def test_a_form_on_the_processor_holds_as_on_the_gpu(form):
    model, _, _ = learned("EWC", device="cuda", form=form)
    other, here, _ = learned("EWC", device="cuda", form=form, state_device="cpu")
    parts = [tensor for matrix in here.held.matrices.values() for tensor in matrix.state().values()]
    assert all(tensor.is_pinned() for tensor in [*parts, *here.anchor.values()])
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [{"outputs": "blocks", "largest_block": 3}, {"inputs": "lowrank", "rank": 2}], ids=str)
def test_sides_that_are_cut_hold_on_the_gpu_as_on_the_processor(form):
    ends = [learned("EWC", device=device, form=anchorhold.Rotated(**form))[0] for device in ("cpu", "cuda")]
    for mine, its in zip(*(end.parameters() for end in ends), strict=True):
        torch.testing.assert_close(mine, its.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["rotated16", "kronecker16"])
def test_what_is_measured_in_tf32_is_as_on_the_processor_within_16_bits(form):
    before = torch.backends.cuda.matmul.allow_tf32
    found = [learned("EWC", device=device, form=form)[1].importance for device in ("cpu", "cuda")]
    assert torch.backends.cuda.matmul.allow_tf32 is before
    for name, expected in found[0].items():
        assert float((found[1][name].cpu() - expected).norm() / expected.norm()) < 0.02
