"""A language model that others have trained, in the place of one that learns English here.

``english.new_model`` makes one where the settings name a folder, and ``tokens`` puts a corpus into its tokens. The
folder is what ``save_pretrained`` writes: a Llama and its tokenizer, such as SmolLM2's (Allal et al. 2025, arXiv
2502.02737). ``unpack`` makes one of a GGUF file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Pretrained(nn.Module):
    """Another's causal language model, called as this study's own are: ``[N, T]`` tokens in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def blocks(self) -> nn.ModuleList:
        """Its layers, to each of which an adapter is given."""
        inner = self.model.model
        assert isinstance(inner, nn.Module)
        assert isinstance(inner.layers, nn.ModuleList)
        return inner.layers

    def forward(self, text: Tensor, call: Callable[[nn.Module, Tensor], Tensor] = nn.Module.__call__) -> Tensor:
        """Return the logits; its blocks are called by itself, as they are."""
        del call
        logits: Tensor = self.model(input_ids=text, use_cache=False).logits
        return logits


def load(folder: str) -> Pretrained:
    """Return the model of a folder, in single precision."""
    from transformers.models.auto import AutoModelForCausalLM  # noqa: PLC0415 (only this network needs it)

    if not (Path(folder) / "config.json").is_file():
        raise SystemExit(f"There is no model in {folder}; expected a folder that save_pretrained wrote.")
    return Pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="sdpa"))


def unpack(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as ``save_pretrained`` does, in single precision.

    Weights that are quantised there stay what they are, in 32 bits each.
    """
    from transformers.models.auto import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 (likewise)
    from transformers.models.llama import LlamaForCausalLM  # noqa: PLC0415 (likewise)

    if not gguf.is_file():
        raise SystemExit(f"There is no file {gguf}; expected a model in the format GGUF.")
    packed = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**packed, dtype="float32")
    # What was read from GGUF refuses to be saved, so another one takes its weights.
    settings = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(type(read.config).from_dict(settings))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**packed).save_pretrained(folder)


def tokenizer_of(folder: str) -> "Tokenizer":
    """Return what puts text into a model's tokens."""
    from tokenizers import Tokenizer  # noqa: PLC0415 (only this network needs it)

    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise SystemExit(f"There is no tokenizer in {folder}; expected a folder that save_pretrained wrote.")
    return Tokenizer.from_file(str(path))


def line_end(folder: str) -> int:
    """Return the token of a line's end, with which own text begins."""
    (token,) = tokenizer_of(folder).encode("\n", add_special_tokens=False).ids
    return int(token)
