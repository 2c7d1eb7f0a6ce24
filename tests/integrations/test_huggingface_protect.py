"""A Trainer protects what its model knows by one callback, from the first step to the average at the end."""

import shutil

import bitsandbytes
import pytest
import torch
from accelerate import dispatch_model
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from anchorhold.errors import BatchError, ConfigurationError, StateError
from anchorhold.integrations.huggingface import ProtectCallback
from tests.integrations import tiny
from tests.protection import language

# A model of seven tokens writes some texts twice.
pytestmark = pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")

TOKENIZER = tiny.tokenizer()
ROWS = [{"input_ids": row, "labels": row} for row in language.NEW] * 4
LORA = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")


def arguments(folder, kind=TrainingArguments, **options):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_steps": 2, "max_steps": 8}
    training = {"per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": 4, "seed": 0}
    return kind(output_dir=str(folder), **{**quiet, **training, **options})


def train(folder, model, callback=None, *, resume=None, **options):
    callback = callback or ProtectCallback(TOKENIZER, **language.FEW)
    trainer = Trainer(model, arguments(folder, **options), train_dataset=ROWS, callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    return trainer, callback


def same(one, another):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), another.parameters(), strict=True))


@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "an adapter"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "gradient checkpointing"])
def test_it_goes_on_from_a_checkpoint_as_if_it_had_not_been_stopped(tmp_path, adapted, checkpointing):
    def model():
        torch.manual_seed(1)
        return get_peft_model(language.taught(), LORA) if adapted else language.taught()

    options = {"gradient_checkpointing": checkpointing, "learning_rate": 5e-2 if adapted else 1e-2}
    whole = model()
    trainer, callback = train(tmp_path / "whole", whole, **options)
    report = callback.report
    weighed = report.weighed
    assert weighed.source == "the Trainer's training data" and weighed.samples == len(ROWS)
    assert report.lost.kl == pytest.approx(weighed.best.kl) and report.share == weighed.best.share
    logged = [line for line in trainer.state.log_history if "anchorhold/kl" in line]
    assert logged and all(line["anchorhold/distillation"] > 0 for line in logged[1:])

    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "stopped" / "checkpoint-4")
    told = []
    again = model()
    callback = ProtectCallback(TOKENIZER, **{**language.FEW, "progress": lambda *each: told.append(each)})
    train(tmp_path / "stopped", again, callback, resume=True, **options)
    assert told == []  # nothing was written or measured
    assert same(whole, again) and callback.report == report


def test_it_is_protect_and_finish(tmp_path, capsys):
    """The same training by a Trainer whose guard was made by hand."""
    from anchorhold import protect  # noqa: PLC0415
    from anchorhold.integrations.huggingface import AnchorholdCallback  # noqa: PLC0415

    by_hand, model = language.taught(), language.taught()
    guard = protect(by_hand, TOKENIZER, **language.FEW)
    train(tmp_path / "hand", by_hand, AnchorholdCallback(guard, consolidate_at_end=False))
    guard.finish(share=0.6)
    callback = ProtectCallback(TOKENIZER, finish_share=0.6, **{**language.FEW, "progress": True})
    train(tmp_path / "callback", model, callback)
    assert same(by_hand, model)
    told = capsys.readouterr().err
    assert "Plan of protect()" in told and "Writing own text [" in told and "0.6 of what was learned is left" in told


def test_a_guard_that_training_would_consolidate_is_refused():
    """What the guard was protected from would be gone before finish() could go back."""
    from anchorhold import protect  # noqa: PLC0415
    from anchorhold.integrations import huggingface, lightning  # noqa: PLC0415

    guard = protect(language.taught(), TOKENIZER, **language.FEW)
    for module in (huggingface, lightning):
        with pytest.raises(ConfigurationError, match=r"consolidate_at_end=False\) and call guard.finish\(\)"):
            module.AnchorholdCallback(guard)
        module.AnchorholdCallback(guard, consolidate_at_end=False)
    with pytest.raises(ConfigurationError, match=r"consolidate_at_end=False"):
        huggingface.GuardInCallback(lambda model: guard, [ROWS]).made_from(guard.model)


def test_the_tokenizer_may_be_the_trainers(tmp_path):
    model, callback = language.taught(), ProtectCallback(**language.FEW)
    args = arguments(tmp_path, max_steps=2, save_strategy="no")
    Trainer(model, args, train_dataset=ROWS, callbacks=[callback], processing_class=TOKENIZER).train()
    assert callback.guard.samples.text.tokenizer is TOKENIZER and callback.report.lost is not None


def test_real_old_data_takes_the_place_of_own_text(tmp_path):
    old = [{"input_ids": language.OLD, "labels": language.OLD}] * 4
    model = language.taught()
    _, callback = train(tmp_path / "a", model, ProtectCallback(old, progress=False))
    assert callback.report.scored == 9
    again = language.taught()
    shutil.copytree(tmp_path / "a" / "checkpoint-4", tmp_path / "b" / "checkpoint-4")
    train(tmp_path / "b", again, ProtectCallback(old_data=old, progress=False), resume=True)
    assert same(model, again)


def test_the_best_checkpoint_is_averaged(tmp_path):
    model = language.taught()
    options = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True, "save_total_limit": 2}
    callback = ProtectCallback(TOKENIZER, finish_share=0.5, **language.FEW)
    args = arguments(tmp_path, **options)
    trainer = Trainer(model, args, train_dataset=ROWS, eval_dataset=ROWS[:4], callbacks=[callback])
    trainer.train()
    from safetensors.torch import load_file  # noqa: PLC0415

    best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    start = language.taught().state_dict()
    for name, value in model.state_dict().items():
        if name in best:
            torch.testing.assert_close(value, torch.lerp(start[name], best[name], 0.5))


def test_a_model_that_is_laid_out_by_a_device_map(tmp_path):
    language.taught().save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", device_map="cpu")
    places = {"model.embed_tokens": "cpu", "model.layers": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    model = dispatch_model(model, {**places, "lm_head": "cpu"}, force_hooks=True)
    assert all(hasattr(layer, "_hf_hook") for layer in model.model.layers[0].children())
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for each, name in ((model, "mapped"), (plain, "plain")):
        train(tmp_path / name, each, save_strategy="no")
    assert same(model, plain)


def quantised(model):
    for block in model.model.layers:
        layer = block.self_attn.q_proj
        small = bitsandbytes.nn.Linear4bit(16, 16, bias=False, compute_dtype=torch.float32, quant_type="nf4")
        small.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        block.self_attn.q_proj = small.to("cpu")
    return get_peft_model(model, LORA)


def test_an_adapter_of_a_base_in_four_bits(tmp_path):
    torch.manual_seed(0)
    model = quantised(language.taught())
    base = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    assert any(p.dtype == torch.uint8 for p in base.values())
    _, callback = train(tmp_path, model, learning_rate=5e-2)
    assert callback.guard.options.space == "merged" and callback.report.form == "kronecker"
    assert any("q_proj" in name and omega.any() for name, omega in callback.guard.importance.items())
    assert callback.report.weighed.samples == len(ROWS)
    assert all(torch.equal(p, base[name]) for name, p in model.named_parameters() if name in base)


@pytest.mark.parametrize("packing", [False, True], ids=["rows", "packed"])
def test_trl_makes_the_adapter_and_packs_the_rows(tmp_path, packing):
    disable_progress_bars()
    data = Dataset.from_dict({"input_ids": [row[:n].tolist() for row in language.NEW for n in (4, 6, 10)] * 4})
    model = language.taught()
    model.config._attn_implementation = "sdpa"
    options = {"packing": packing, "packing_strategy": "wrapped", "max_length": 10, "bf16": False}
    args = arguments(tmp_path, SFTConfig, learning_rate=5e-2, **options)
    callback = ProtectCallback(**language.FEW)
    trainer = SFTTrainer(
        model, args, train_dataset=data, callbacks=[callback], peft_config=LORA, processing_class=TOKENIZER
    )
    trainer.train()
    assert callback.guard.options.space == "merged"
    found = callback.report.weighed
    assert found.samples == len(trainer.train_dataset) and found.per == "token"
    assert any("anchorhold/kl" in line for line in trainer.state.log_history)


@torch.no_grad()
def loss_of(model, rows):
    return language.loss(model, torch.stack([row["input_ids"] for row in rows]))


@pytest.mark.parametrize("evaluated", [True, False])
def test_it_is_weighed_by_the_evaluation_data_or_else_by_the_training_data(tmp_path, evaluated):
    held_out = [{"input_ids": row, "labels": row} for row in language.OLD]
    learned, model = language.taught(), language.taught()
    options = {"eval_strategy": "steps", "eval_steps": 4} if evaluated else {}
    for each, callback in (
        (learned, ProtectCallback(TOKENIZER, finish_share=1, **language.FEW)),
        (model, ProtectCallback(TOKENIZER, **language.FEW)),
    ):
        args = arguments(tmp_path, save_strategy="no", **options)
        Trainer(each, args, train_dataset=ROWS, eval_dataset=held_out, callbacks=[callback]).train()
    found = callback.report.weighed
    assert found.source == f"the Trainer's {'evaluation' if evaluated else 'training'} data"
    rows = held_out if evaluated else ROWS
    assert found.samples == len(rows) and found.start.new == pytest.approx(loss_of(learned, rows), rel=1e-4)
    assert found.best.new == pytest.approx(loss_of(model, rows), rel=1e-4)
    assert found.source in str(callback.report)


def test_no_more_than_a_few_samples_of_much_data_are_read(tmp_path):
    rows = [{"input_ids": row, "labels": row} for row in language.NEW] * 50
    callback = ProtectCallback(TOKENIZER, **language.FEW)
    args = arguments(tmp_path, save_strategy="no")
    Trainer(language.taught(), args, train_dataset=rows, callbacks=[callback]).train()
    assert callback.report.weighed.samples == 64


def test_new_batches_may_be_given(tmp_path):
    batches = [{"input_ids": language.NEW, "labels": language.NEW}]
    callback = ProtectCallback(TOKENIZER, finish_new=batches, **language.FEW)
    train(tmp_path, language.taught(), callback, save_strategy="no")
    assert callback.report.weighed.source == "finish_new" and callback.report.weighed.samples == 4
    with pytest.raises(ConfigurationError, match=r"New batches of type list and share=0\.5 .* give one of both"):
        ProtectCallback(TOKENIZER, finish_new=batches, finish_share=0.5)
    with pytest.raises(BatchError, match="expected an iterable of batches"):
        ProtectCallback(TOKENIZER, finish_new=batches[0])


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ROWS * 4


def without_labels(rows):
    return {"input_ids": torch.stack([row["input_ids"] for row in rows])}


class OwnLoss(Trainer):
    """Trains by a loss of its own, as trainers of preferences do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(input_ids=inputs["input_ids"], labels=inputs["input_ids"]).loss


@pytest.mark.parametrize(
    ("kind", "data", "collator", "why"),
    [
        (Trainer, Stream(), None, "training data: Stream is a stream, which is read only once"),
        (OwnLoss, ROWS, without_labels, "training data: Its batches have no labels, so that the loss that was trained"),
    ],
    ids=["a stream", "no labels"],
)
def test_where_nothing_can_be_weighed_nothing_is_averaged_and_that_is_told(tmp_path, kind, data, collator, why):
    model, callback = language.taught(), ProtectCallback(TOKENIZER, **language.FEW)
    args = arguments(tmp_path, save_strategy="no", remove_unused_columns=False)
    trainer = kind(model, args, train_dataset=data, data_collator=collator, callbacks=[callback])
    with pytest.warns(UserWarning, match="Nothing was averaged") as told:
        trainer.train()
    (message,) = [str(each.message) for each in told if "Nothing was averaged" in str(each.message)]
    assert why in message and "ProtectCallback(finish_new=batches)" in message
    assert callback.report.share == 1 and callback.report.weighed is None
    # The same guard weighs afterwards.
    assert callback.guard.finish([{"input_ids": language.NEW}]).weighed is not None


def test_another_training_protects_what_was_learned_in_the_first(tmp_path):
    model, callback = language.taught(), ProtectCallback(TOKENIZER, finish_share=1, **language.FEW)
    train(tmp_path / "a", model, callback)
    first, learned = callback.guard, {name: p.detach().clone() for name, p in model.named_parameters()}
    train(tmp_path / "b", model, callback)
    assert callback.guard is not first
    assert all(torch.equal(weight, learned[name]) for name, weight in callback.guard.anchor.items())


def test_what_is_wrong_is_told_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigurationError, match="no option 'strength'"):
        ProtectCallback(TOKENIZER, strength=3)
    with pytest.raises(ConfigurationError, match="give one of both"):
        ProtectCallback(TOKENIZER, finish_share=0.5, finish_tolerance=0.1)
    model = language.taught()
    with pytest.raises(ConfigurationError, match="without a tokenizer") as told:
        train(tmp_path, model, ProtectCallback(**language.FEW))
    assert "nothing was trained" in "".join(told.value.__notes__)
    assert same(model, language.taught())


def test_a_checkpoint_without_it_is_refused(tmp_path):
    model = language.taught()
    Trainer(model, arguments(tmp_path), train_dataset=ROWS).train()
    with pytest.raises(StateError, match="there is no guard's state of this run"):
        train(tmp_path, language.taught(), resume=True)


def test_a_training_without_a_step_has_nothing_to_average(tmp_path):
    model = language.taught()
    _, callback = train(tmp_path, model, learning_rate=0.0)
    assert same(model, language.taught()) and callback.report.lost is None
