"""LoRA adapters under protection, and TRL's trainer."""

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import anchorhold
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests import oracles
from tests.integrations import tiny
from tests.integrations.test_huggingface import Interrupt, assert_same, proxy, train
from tests.integrations.test_huggingface_losses import assert_agrees, logits, one_by_one


def adapted(**options):
    model = tiny.gpt2(layers=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    torch.manual_seed(1)
    lora = LoraConfig(r=2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM", **options)
    return get_peft_model(model, lora)


def filled(model):
    """Return it with an adapter that has learned something: B is 0 at first."""
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def test_the_adapters_fisher_is_exact():
    model, batch = filled(adapted()).double().eval(), tiny.text()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), protect="*lora_*")
    assert len(guard.parameters) == 4
    found = guard.consolidate([batch])["EWC"]
    assert not found.fallback
    expected = oracles.importance(
        model, one_by_one(batch), oracles.summed_over_positions(oracles.every_label), torch.square, logits
    )
    assert_agrees(found.importance, {name: expected[name] for name in guard.parameters}, 1e-10)


def test_a_fresh_adapter_has_no_importance_in_its_first_factor():
    model = adapted()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), protect="*lora_*")
    guard.consolidate(proxy())
    for name, omega in guard.importance.items():
        assert bool(omega.any()) == ("lora_B" in name)  # ∂L/∂A = Bᵀ·∂L/∂ΔW, and B is 0


def test_a_penalty_on_the_factors_is_none_on_their_product():
    model = filled(adapted())
    guard = anchorhold.Guard(model, anchorhold.Fisher(), protect="*lora_*", strength=10.0)
    guard.consolidate(proxy())
    batch = proxy()[0]
    before = model(**batch).loss.item()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.mul_(2.0 if "lora_A" in name else 0.5)
    assert model(**batch).loss.item() == pytest.approx(before, rel=1e-5)  # the same network
    assert guard.penalty().item() > 1e-3  # and yet away from the anchor


def test_an_adapters_run_resumes_exactly(tmp_path):
    def start(folder, *, resume=None, callbacks=()):
        model = filled(adapted())
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=5.0, protect="*lora_*", watch=[anchorhold.SI()])
        if resume is None:
            guard.consolidate(proxy())
        saving = {"save_strategy": "steps", "save_steps": 2}
        train(folder, guard, model, resume=resume, callbacks=callbacks, at_end=proxy(5), **saving)
        return guard

    guard = start(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut", callbacks=[Interrupt(3)])
    restored = start(tmp_path / "cut", resume=True)
    assert_same(restored.anchor, guard.anchor)
    assert_same(restored.importance, guard.importance)
    assert_same(restored.held.of("SI"), guard.held.of("SI"))


def test_a_learned_prompt():
    torch.manual_seed(1)
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model, batch = get_peft_model(tiny.gpt2(layers=1), prompt).double().eval(), tiny.text()
    with pytest.raises(
        anchorhold.errors.BatchError, match=r'learned prompt.*\.logits\[:, -inputs\["input_ids"\].shape\[1\]:\]'
    ):
        anchorhold.Fisher().measure(model, [batch])

    def without_prompt(model, inputs):
        return model(**inputs).logits[:, -inputs["input_ids"].shape[1] :]

    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([batch], forward=without_prompt)
    expected = oracles.importance(
        model, one_by_one(batch), oracles.summed_over_positions(oracles.every_label), torch.square, without_prompt
    )
    assert guard.parameters.keys() == {"prompt_encoder.default.embedding.weight"}
    assert_agrees(guard.importance, {name: expected[name] for name in guard.parameters}, 1e-10)


def sft(folder, **changes):
    settings = {
        "output_dir": str(folder), "max_steps": 3, "per_device_train_batch_size": 2, "bf16": False, "use_cpu": True,
        "gradient_checkpointing": False, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    return SFTConfig(**{**settings, **changes})


def test_supervised_fine_tuning_with_trl(tmp_path):
    disable_progress_bars()
    data = Dataset.from_list([{"prompt": "a b", "completion": " c d a"}, {"prompt": "b", "completion": " a d"}] * 4)
    model = tiny.gpt2(layers=1)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=10.0, watch=[anchorhold.SOS()])
    args = sft(tmp_path, logging_steps=1)
    callback = AnchorholdCallback(guard)
    trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tiny.tokenizer(), callbacks=[callback])
    trainer.train()
    assert guard.tasks == 1
    assert all(omega.any() for omega in guard.held.of("SOS").values())
    # TRL's collator marks prompts and padding with -100; they have no part in the importance.
    batches = list(trainer.get_train_dataloader())
    assert any((batch["labels"] == -100).any() for batch in batches)
    samples = [sample for batch in batches for sample in one_by_one(batch)]
    twin = tiny.gpt2(layers=1)  # a copy of a prepared model would still call the original
    twin.load_state_dict(model.state_dict())
    expected = oracles.importance(
        twin, samples, oracles.summed_over_positions(oracles.every_label), torch.square, logits
    )
    assert_agrees({name: value.double() for name, value in guard.importance.items()}, expected, 1e-4)


def test_a_guard_of_the_adapter_that_trl_makes(tmp_path):
    disable_progress_bars()
    data = Dataset.from_list([{"prompt": "a b", "completion": " c d a"}, {"prompt": "b", "completion": " a d"}] * 4)
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    callback = AnchorholdCallback(
        lambda model: anchorhold.Guard(model, anchorhold.Fisher(), strength=10.0, protect="*lora_*")
    )
    trainer = SFTTrainer(
        tiny.gpt2(layers=1), sft(tmp_path), train_dataset=data, processing_class=tiny.tokenizer(),
        callbacks=[callback], peft_config=lora,
    )  # fmt: skip
    trainer.train()
    assert callback.guard.tasks == 1
    assert len(callback.guard.parameters) == 2 and all("lora_" in name for name in callback.guard.parameters)
    assert callback.guard.held.of("EWC").keys() == callback.guard.parameters.keys()


@pytest.mark.filterwarnings("ignore")  # TRL's own
def test_prompts_alone_are_nothing_to_measure_with(tmp_path):
    disable_progress_bars()
    data = Dataset.from_list([{"prompt": "a b"}, {"prompt": "b c"}] * 2)

    def start(**options):
        model = tiny.gpt2(layers=1)
        guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled"), watch=[anchorhold.SOS()])
        args = GRPOConfig(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, num_generations=2, bf16=False,
            max_completion_length=4, use_cpu=True, gradient_checkpointing=False, save_strategy="no", report_to=[],
            disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model, lambda completions, **_: [float(len(text)) for text in completions], args, train_dataset=data,
            processing_class=tiny.tokenizer(), callbacks=[AnchorholdCallback(guard, **options)],
        )  # fmt: skip
        return trainer, guard

    trainer, guard = start()
    with pytest.raises(anchorhold.errors.BatchError) as caught:
        trainer.train()
    assert "stopped after its first step" in "".join(caught.value.__notes__)
    assert guard.gradients.path.steps == 1
    trainer, guard = start(consolidate_at_end=proxy())
    trainer.train()
    assert guard.tasks == 1
