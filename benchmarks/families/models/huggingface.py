"""Models of Hugging Face, a layer or two of them with random weights, and PEFT's adapters on one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.families.family import Case, Section
from benchmarks.families.models.vision import labels

transformers_models = Section[Case]("Hugging Face transformers")
adapters = Section[Case]("PEFT adapters on a small Llama")

SINGLE = 1e-5
"""The tolerance: these models compute some things in single precision whatever the weights are in."""

WORDS = 7
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NAMED = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **SPECIAL}
PLACES = {"intermediate_size": 20, "max_position_embeddings": 16}
GROUPED = {"num_key_value_heads": 1}


def text(samples: int = 4, length: int = 5) -> dict[str, Tensor]:
    """Return tokens with padding on the right, as a tokeniser and its collator give them."""
    ids = torch.randint(3, WORDS, (samples, length))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def next_tokens(batch: dict[str, Tensor]) -> Tensor:
    """Return the label of every position's logits: the next token, where both are no padding."""
    found = torch.full_like(batch["input_ids"], -100)
    mask = batch["attention_mask"]
    both = (mask[:, :-1] * mask[:, 1:]).bool()
    found[:, :-1][both] = batch["input_ids"][:, 1:][both]
    return found


def built(config: str, model: str, **options: Any) -> nn.Module:
    """Return a model with random weights."""
    import transformers  # noqa: PLC0415 (may not be installed)

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # as transformers has it
    try:
        settings, kind = getattr(transformers, config), getattr(transformers, model)
    except AttributeError as error:
        raise ImportError(f"transformers {transformers.__version__} has no {model}") from error
    made: nn.Module = kind(settings(**options))
    return made


def causal(config: str, model: str, **options: Any) -> Case:
    batch = text()
    given = {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}
    made = built(config, model, **options)
    return Case(made, {**batch, "use_cache": False}, next_tokens(batch), given=given, tolerance=SINGLE)


def sparse(config: str, model: str, **options: Any) -> Case:
    """With experts, whose grouped products are there in single precision alone."""
    case = causal(config, model, **options)
    case.dtype, case.tolerance = None, 10 * SINGLE
    return case


def classifier(config: str, model: str, **options: Any) -> Case:
    batch = text()
    made = built(config, model, num_labels=3, **options)
    return Case(made, batch, labels(4), given={**batch, "labels": labels(4)}, tolerance=SINGLE)


def writer(config: str, model: str, **options: Any) -> Case:
    """An encoder and a decoder; the library makes what the decoder reads from the labels."""
    batch, target = text(), torch.randint(3, WORDS, (4, 4))
    target[1, 3] = -100
    made: Any = built(config, model, **options)  # with a method of its own
    inputs = {**batch, "decoder_input_ids": made.prepare_decoder_input_ids_from_labels(labels=target)}
    return Case(made, {**inputs, "use_cache": False}, target, given={**batch, "labels": target}, tolerance=SINGLE)


def pictures(config: str, model: str, *, side: int = 8, **options: Any) -> Case:
    batch = {"pixel_values": torch.randn(4, 3, side, side)}
    made = built(config, model, num_labels=3, **options)
    return Case(made, batch, labels(4), given={**batch, "labels": labels(4)}, tolerance=SINGLE)


def of_pixels(config: str, model: str, **options: Any) -> Case:
    batch = {"pixel_values": torch.randn(3, 3, 32, 32)}
    target = torch.arange(3 * 64).reshape(3, 8, 8) % 3
    made = built(config, model, num_labels=3, **options)
    return Case(
        made, batch, target, given={**batch, "labels": target}, tolerance=SINGLE,
        formula=lambda model, inputs: model(**inputs).logits.movedim(1, -1),
    )  # fmt: skip


def sounds(config: str, model: str, **options: Any) -> Case:
    batch = {"input_values": torch.randn(4, 60)}
    made = built(config, model, num_labels=3, **options)
    return Case(made, batch, labels(4), given={**batch, "labels": labels(4)}, tolerance=SINGLE)


def whisper() -> Case:
    target = torch.randint(3, WORDS, (4, 4))
    made = built(
        "WhisperConfig", "WhisperForConditionalGeneration", vocab_size=WORDS, num_mel_bins=4, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, d_model=16, encoder_ffn_dim=20,
        decoder_ffn_dim=20, max_source_positions=5, max_target_positions=8, decoder_start_token_id=1, **SPECIAL,
    )  # fmt: skip
    batch = {"input_features": torch.randn(4, 4, 10)}
    decoder = torch.cat([torch.ones(4, 1, dtype=torch.long), target[:, :-1]], 1)
    return Case(
        made, {**batch, "decoder_input_ids": decoder, "use_cache": False}, target, given={**batch, "labels": target},
        tolerance=SINGLE,
    )  # fmt: skip


def detr() -> Case:
    backbone = {
        "depths": [1, 1],
        "hidden_sizes": [8, 8],
        "embedding_size": 8,
        "layer_type": "basic",
        "out_features": ["stage2"],
    }
    from transformers.models.resnet import ResNetConfig  # noqa: PLC0415

    made = built(
        "DetrConfig", "DetrForObjectDetection", use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=ResNetConfig(**backbone), num_queries=3, d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20,
        num_labels=3,
    )  # fmt: skip
    return Case(
        made, {"pixel_values": torch.randn(3, 3, 32, 32)}, outputs="values", tolerance=SINGLE,
        forward=lambda model, inputs: model(**inputs).logits,
    )  # fmt: skip


def clip() -> Case:
    text_part = {**NAMED, **PLACES}
    image_part = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
    image_part |= {"image_size": 8, "patch_size": 4}
    made = built(
        "CLIPConfig", "CLIPModel", text_config=text_part, vision_config=image_part, projection_dim=8
    )  # fmt: skip
    prompts = text(3)

    def against_prompts(model: nn.Module, pixels: Tensor) -> Tensor:
        value: Tensor = model(pixel_values=pixels, **prompts).logits_per_image
        return value

    return Case(made, torch.randn(4, 3, 8, 8), labels(4), forward=against_prompts, tolerance=SINGLE)


def layout() -> Case:
    case = classifier(
        "LayoutLMConfig", "LayoutLMForSequenceClassification", max_2d_position_embeddings=16, **NAMED, **PLACES
    )
    corner = torch.randint(8, (4, 5, 2))
    box = torch.cat([corner, corner + 3], -1)
    case.inputs, case.given = {**case.inputs, "bbox": box}, {**case.given, "bbox": box}
    return case


TABLE: list[tuple[str, str, Callable[[], Case]]] = [
    ("BERT", "classifier", partial(classifier, "BertConfig", "BertForSequenceClassification", **NAMED, **PLACES)),
    (
        "RoBERTa",
        "classifier",
        partial(
            classifier,
            "RobertaConfig",
            "RobertaForSequenceClassification",
            **NAMED,
            intermediate_size=20,
            max_position_embeddings=20,
        ),
    ),
    (
        "ALBERT",
        "classifier, one layer's weights for all",
        partial(classifier, "AlbertConfig", "AlbertForSequenceClassification", embedding_size=8, **NAMED, **PLACES),
    ),
    (
        "DistilBERT",
        "classifier",
        partial(
            classifier,
            "DistilBertConfig",
            "DistilBertForSequenceClassification",
            vocab_size=WORDS,
            dim=16,
            hidden_dim=20,
            n_layers=2,
            n_heads=2,
            max_position_embeddings=16,
        ),
    ),
    (
        "ELECTRA",
        "classifier",
        partial(classifier, "ElectraConfig", "ElectraForSequenceClassification", embedding_size=8, **NAMED, **PLACES),
    ),
    (
        "DeBERTa v2",
        "classifier, disentangled attention",
        partial(
            classifier,
            "DebertaV2Config",
            "DebertaV2ForSequenceClassification",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            **NAMED,
            **PLACES,
        ),
    ),
    (
        "XLNet",
        "classifier, relative positions",
        partial(
            classifier,
            "XLNetConfig",
            "XLNetForSequenceClassification",
            vocab_size=WORDS,
            d_model=16,
            n_layer=1,
            n_head=2,
            d_inner=20,
        ),
    ),
    (
        "Longformer",
        "classifier, windows",
        partial(
            classifier,
            "LongformerConfig",
            "LongformerForSequenceClassification",
            attention_window=4,
            **NAMED,
            intermediate_size=20,
            max_position_embeddings=24,
        ),
    ),
    (
        "BigBird",
        "classifier, full attention on short texts",
        partial(
            classifier,
            "BigBirdConfig",
            "BigBirdForSequenceClassification",
            attention_type="original_full",
            **NAMED,
            **PLACES,
        ),
    ),
    ("LayoutLM", "classifier, boxes beside tokens", layout),
    (
        "GPT-2",
        "causal, tied",
        partial(
            causal,
            "GPT2Config",
            "GPT2LMHeadModel",
            vocab_size=WORDS,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=16,
            **SPECIAL,
        ),
    ),
    (
        "GPT-2, classifier",
        "the last token's logits",
        partial(
            classifier,
            "GPT2Config",
            "GPT2ForSequenceClassification",
            vocab_size=WORDS,
            n_embd=16,
            n_layer=1,
            n_head=2,
            n_positions=16,
            **SPECIAL,
        ),
    ),
    ("GPT-NeoX", "causal, rotary, parallel", partial(causal, "GPTNeoXConfig", "GPTNeoXForCausalLM", **NAMED, **PLACES)),
    (
        "OPT",
        "causal",
        partial(
            causal,
            "OPTConfig",
            "OPTForCausalLM",
            word_embed_proj_dim=16,
            ffn_dim=20,
            max_position_embeddings=16,
            **NAMED,
        ),
    ),
    (
        "BLOOM",
        "causal, ALiBi",
        partial(
            causal, "BloomConfig", "BloomForCausalLM", vocab_size=WORDS, hidden_size=16, n_layer=1, n_head=2, **SPECIAL
        ),
    ),
    ("Falcon", "causal, one key for all heads", partial(causal, "FalconConfig", "FalconForCausalLM", **NAMED)),
    (
        "Llama",
        "causal, rotary, grouped queries",
        partial(causal, "LlamaConfig", "LlamaForCausalLM", **NAMED, **PLACES, **GROUPED),
    ),
    (
        "Llama, classifier",
        "the last token's logits",
        partial(classifier, "LlamaConfig", "LlamaForSequenceClassification", **NAMED, **PLACES, **GROUPED),
    ),
    (
        "Mistral",
        "causal, sliding window",
        partial(causal, "MistralConfig", "MistralForCausalLM", sliding_window=3, **NAMED, **PLACES, **GROUPED),
    ),
    (
        "Mixtral",
        "causal, experts",
        partial(sparse, "MixtralConfig", "MixtralForCausalLM", num_local_experts=3, **NAMED, **PLACES, **GROUPED),
    ),
    ("Qwen2", "causal", partial(causal, "Qwen2Config", "Qwen2ForCausalLM", **NAMED, **PLACES, **GROUPED)),
    (
        "Qwen3",
        "causal, norms of queries and keys",
        partial(causal, "Qwen3Config", "Qwen3ForCausalLM", head_dim=8, **NAMED, **PLACES, **GROUPED),
    ),
    (
        "Qwen3 MoE",
        "causal, experts",
        partial(
            sparse,
            "Qwen3MoeConfig",
            "Qwen3MoeForCausalLM",
            head_dim=8,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=8,
            **NAMED,
            **PLACES,
            **GROUPED,
        ),
    ),
    (
        "Gemma",
        "causal, tied",
        partial(causal, "GemmaConfig", "GemmaForCausalLM", head_dim=8, **NAMED, **PLACES, **GROUPED),
    ),
    (
        "Gemma 2",
        "causal, soft caps",
        partial(causal, "Gemma2Config", "Gemma2ForCausalLM", head_dim=8, **NAMED, **PLACES, **GROUPED),
    ),
    ("Phi", "causal", partial(causal, "PhiConfig", "PhiForCausalLM", **NAMED, **PLACES)),
    (
        "Phi-3",
        "causal, fused projections",
        partial(causal, "Phi3Config", "Phi3ForCausalLM", **NAMED, **PLACES, **GROUPED),
    ),
    ("OLMo 2", "causal", partial(causal, "Olmo2Config", "Olmo2ForCausalLM", **NAMED, **PLACES, **GROUPED)),
    (
        "OLMoE",
        "causal, experts",
        partial(
            sparse,
            "OlmoeConfig",
            "OlmoeForCausalLM",
            num_experts=3,
            num_experts_per_tok=2,
            **NAMED,
            **PLACES,
            **GROUPED,
        ),
    ),
    (
        "Mamba",
        "causal, selective scan",
        partial(
            causal,
            "MambaConfig",
            "MambaForCausalLM",
            vocab_size=WORDS,
            hidden_size=8,
            state_size=2,
            num_hidden_layers=1,
            conv_kernel=2,
            time_step_rank=2,
            **SPECIAL,
        ),
    ),
    (
        "RWKV",
        "causal, time mixing",
        partial(
            causal,
            "RwkvConfig",
            "RwkvForCausalLM",
            vocab_size=WORDS,
            hidden_size=8,
            attention_hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=2,
            context_length=16,
            **SPECIAL,
        ),
    ),
    (
        "T5",
        "encoder and decoder",
        partial(
            writer,
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=WORDS,
            d_model=16,
            d_kv=8,
            d_ff=20,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
            **SPECIAL,
        ),
    ),
    (
        "BART",
        "encoder and decoder",
        partial(
            writer,
            "BartConfig",
            "BartForConditionalGeneration",
            vocab_size=WORDS,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=20,
            decoder_ffn_dim=20,
            max_position_embeddings=16,
            decoder_start_token_id=2,
            forced_eos_token_id=2,
            **SPECIAL,
        ),
    ),
    ("Whisper", "speech to text", whisper),
    (
        "Wav2Vec2",
        "sound classifier",
        partial(
            sounds,
            "Wav2Vec2Config",
            "Wav2Vec2ForSequenceClassification",
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=20,
            conv_dim=(8, 8),
            conv_stride=(3, 2),
            conv_kernel=(5, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=8,
            vocab_size=WORDS,
        ),
    ),
    (
        "ViT",
        "images",
        partial(
            pictures,
            "ViTConfig",
            "ViTForImageClassification",
            image_size=8,
            patch_size=4,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=20,
        ),
    ),
    (
        "Swin",
        "images, windows",
        partial(
            pictures,
            "SwinConfig",
            "SwinForImageClassification",
            image_size=8,
            patch_size=2,
            embed_dim=8,
            depths=[2],
            num_heads=[2],
            window_size=2,
        ),
    ),
    (
        "ConvNeXt",
        "images",
        partial(
            pictures,
            "ConvNextConfig",
            "ConvNextForImageClassification",
            hidden_sizes=[8, 8],
            depths=[1, 1],
            num_stages=2,
            patch_size=2,
        ),
    ),
    (
        "ResNet",
        "images",
        partial(
            pictures,
            "ResNetConfig",
            "ResNetForImageClassification",
            embedding_size=8,
            hidden_sizes=[8, 8],
            depths=[1, 1],
            layer_type="basic",
        ),
    ),
    ("CLIP", "images against prompts", clip),
    (
        "SegFormer as it is",
        "pixels, classes second",
        partial(
            of_pixels,
            "SegformerConfig",
            "SegformerForSemanticSegmentation",
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[8, 8],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=8,
        ),
    ),
    ("DETR", "objects, logits of queries", detr),
]
for _name, _what, _make in TABLE:
    transformers_models.enter(_name, _what, _make)


def adapted(kind: str, trained: str, **options: Any) -> Case:
    """A small Llama with an adapter; what is measured is the adapter."""
    import peft  # noqa: PLC0415 (may not be installed)

    case = causal("LlamaConfig", "LlamaForCausalLM", **{**NAMED, "num_hidden_layers": 1}, **PLACES, **GROUPED)
    case.model = peft.get_peft_model(case.model, getattr(peft, kind)(task_type="CAUSAL_LM", **options))
    case.parameters = trained
    return case


def prompted(kind: str, trained: str, **options: Any) -> Case:
    """The same, with learned vectors before the text, whose outputs are left out."""
    case = adapted(kind, trained, **options)
    case.forward = _without_prompt
    return case


def _without_prompt(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    value: Tensor = model(**inputs).logits[:, -inputs["input_ids"].shape[1] :]
    return value


TWO = {"target_modules": ["q_proj", "down_proj"]}
KINDS: list[tuple[str, str, Callable[[], Case]]] = [
    ("LoRA", "two low-rank factors", partial(adapted, "LoraConfig", "*lora_*", r=2, **TWO)),
    (
        "LoRA on an embedding",
        "a lookup and a product",
        partial(adapted, "LoraConfig", "*lora_*", r=2, target_modules=["embed_tokens", "v_proj"]),
    ),
    ("DoRA", "use_dora", partial(adapted, "LoraConfig", "*lora_*", r=2, use_dora=True, **TWO)),
    (
        "rsLoRA, with a trained head",
        "use_rslora, modules_to_save",
        partial(adapted, "LoraConfig", "*[al][do][r][a_]*", r=2, use_rslora=True, modules_to_save=["lm_head"], **TWO),
    ),
    (
        "AdaLoRA",
        "factors and singular values",
        partial(
            adapted, "AdaLoraConfig", "*lora_[AEB]*", init_r=2, target_r=1, total_step=10, tinit=1, tfinal=1, **TWO
        ),
    ),
    (
        "IA3",
        "scales of activations",
        partial(
            adapted,
            "IA3Config",
            "*ia3_*",
            target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"],
        ),
    ),
    (
        "VeRA",
        "shared random factors, two vectors",
        partial(adapted, "VeraConfig", "*vera_lambda*", r=2, target_modules=["q_proj", "o_proj"]),
    ),
    ("OFT", "orthogonal blocks", partial(adapted, "OFTConfig", "*oft_*", oft_block_size=4, r=0, **TWO)),
    ("BOFT", "butterflies", partial(adapted, "BOFTConfig", "*boft_*", boft_block_size=4, **TWO)),
    ("LoHa", "products of two low-rank ones", partial(adapted, "LoHaConfig", "*hada_*", r=2, **TWO)),
    ("LoKr", "Kronecker products", partial(adapted, "LoKrConfig", "*lokr_*", r=2, **TWO)),
    ("HRA", "Householder reflections", partial(adapted, "HRAConfig", "*hra_*", r=2, **TWO)),
    (
        "FourierFT",
        "a few frequencies",
        partial(adapted, "FourierFTConfig", "*fourierft_*", n_frequency=4, target_modules=["q_proj"]),
    ),
    (
        "LayerNorm tuning",
        "the norms alone",
        partial(adapted, "LNTuningConfig", "*ln_tuning_layers*", target_modules=["input_layernorm", "norm"]),
    ),
    (
        "prompt tuning",
        "vectors before the text",
        partial(prompted, "PromptTuningConfig", "prompt_encoder*", num_virtual_tokens=2),
    ),
    (
        "p-tuning",
        "vectors from a small network",
        partial(prompted, "PromptEncoderConfig", "prompt_encoder*", num_virtual_tokens=2, encoder_hidden_size=8),
    ),
    (
        "prefix tuning",
        "keys and values before those of every layer",
        partial(adapted, "PrefixTuningConfig", "prompt_encoder*", num_virtual_tokens=2),
    ),
]
for _name, _what, _make in KINDS:
    adapters.enter(_name, _what, _make)
