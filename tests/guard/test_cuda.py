"""State that lies elsewhere than the parameters, for which it takes a GPU."""

import pytest
import torch

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
