"""Batches of TRL's trainers for preferences: only what the model is to write counts."""

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

import anchorhold
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests import oracles
from tests.docs.pages import run_page
from tests.integrations import tiny
from tests.integrations.test_huggingface_losses import assert_agrees, double, logits, one_by_one

PAIRS = [
    {"prompt_ids": [3, 4, 5], "chosen_ids": [6, 3], "rejected_ids": [4]},
    {"prompt_ids": [5, 6], "chosen_ids": [3], "rejected_ids": [4, 4, 5]},
    {"prompt_ids": [4], "chosen_ids": [5, 5, 6, 3], "rejected_ids": [6]},
]
MEASURES = [
    (anchorhold.Fisher(), oracles.summed_over_positions(oracles.every_label), torch.square),
    (anchorhold.Fisher(labels="true"), oracles.joint_true_label, torch.square),
    (anchorhold.MAS(), oracles.squared_norm, torch.abs),
]


def completed(prompts, completions):
    """Each prompt with its completion alone, as text whose prompt does not count."""
    for prompt, completion in zip(prompts, completions, strict=True):
        labels = torch.tensor([[-100] * len(prompt) + completion])
        yield from one_by_one({"input_ids": torch.tensor([prompt + completion]), "labels": labels})


def chosen(pairs=PAIRS):
    return list(completed([pair["prompt_ids"] for pair in pairs], [pair["chosen_ids"] for pair in pairs]))


@pytest.mark.parametrize(("measure", "scores", "phi"), MEASURES, ids=["exact", "true", "MAS"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_chosen_completions_alone_count(measure, scores, phi, count):
    model = double(tiny.gpt2(layers=1))
    batch = DataCollatorForPreference(pad_token_id=0)(PAIRS[:count])
    expected = oracles.importance(model, chosen(PAIRS[:count]), scores, phi, logits)
    found = measure.accumulator(model).result_of([batch])
    assert found.samples == count
    assert_agrees(found.values, expected, 1e-10)
    known = {**batch, "ref_chosen_logps": torch.ones(count), "ref_rejected_logps": torch.ones(count)}
    assert_agrees(measure.measure(model, [known]), expected, 1e-10)
    guard = anchorhold.Guard(model, measure)
    assert next(iter(guard.consolidate([batch]).values())).samples == count


@pytest.mark.parametrize("mode", ["keep_start", "keep_end"])
def test_pairs_that_were_cut(mode):
    model = double(tiny.gpt2(layers=1))
    cut = slice(None, 4) if mode == "keep_start" else slice(-4, None)
    batch = DataCollatorForPreference(pad_token_id=0, max_length=4, truncation_mode=mode)(PAIRS)
    rows = []
    for pair in PAIRS:
        text = pair["prompt_ids"] + pair["chosen_ids"]
        labels = [-100] * len(pair["prompt_ids"]) + pair["chosen_ids"]
        rows += one_by_one({"input_ids": torch.tensor([text[cut]]), "labels": torch.tensor([labels[cut]])})
    expected = oracles.importance(model, rows, oracles.joint_true_label, torch.square, logits)
    assert_agrees(anchorhold.Fisher(labels="true").measure(model, [batch]), expected, 1e-10)


def test_completions_that_are_not_of_one_prompt_all_count():
    """As in supervised fine-tuning with a mask in place of labels."""
    model = double(tiny.gpt2(layers=1))
    pairs = [*PAIRS, {"prompt_ids": [3, 3], "chosen_ids": [4, 6]}]
    rows = [pair["prompt_ids"] + pair["chosen_ids"] for pair in pairs]
    masks = [[0] * len(pair["prompt_ids"]) + [1] * len(pair["chosen_ids"]) for pair in pairs]
    pad = [[0] * (max(map(len, rows)) - len(row)) for row in rows]
    batch = {
        "input_ids": torch.tensor([row + rest for row, rest in zip(rows, pad, strict=True)]),
        "attention_mask": torch.tensor([[1] * len(row) + rest for row, rest in zip(rows, pad, strict=True)]),
        "completion_mask": torch.tensor([mask + rest for mask, rest in zip(masks, pad, strict=True)]),
    }
    expected = oracles.importance(model, chosen(pairs), oracles.joint_true_label, torch.square, logits)
    measure = anchorhold.Fisher(labels="true")
    assert_agrees(measure.measure(model, [batch]), expected, 1e-10)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)  # labels say themselves what counts
    plain = {key: value for key, value in batch.items() if key != "completion_mask"} | {"labels": labels}
    assert_agrees(measure.measure(model, [batch | {"labels": labels}]), measure.measure(model, [plain]), 1e-12)


def test_completions_that_are_wanted_count():
    model = double(tiny.gpt2(layers=1))
    given = [
        {"prompt_ids": pair["prompt_ids"], "completion_ids": pair["chosen_ids"], "KL_completion_ids": [4], "label": own}
        for pair, own in zip(PAIRS, (True, False, True), strict=True)
    ]
    batch = DataCollatorForUnpairedPreference(pad_token_id=0)(given)
    expected = oracles.importance(model, [chosen()[0], chosen()[2]], oracles.joint_true_label, torch.square, logits)
    found = anchorhold.Fisher(labels="true").accumulator(model).result_of([batch])
    assert found.samples == 2
    assert_agrees(found.values, expected, 1e-10)
    unwanted = DataCollatorForUnpairedPreference(pad_token_id=0)([given[1]])
    assert_agrees(anchorhold.Fisher(labels="true").measure(model, [unwanted, batch]), expected, 1e-10)
    with pytest.raises(anchorhold.errors.BatchError, match="all of them with ignored labels"):
        anchorhold.Fisher().measure(model, [unwanted])


def settings(kind, folder):
    return kind(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=2, bf16=False, use_cpu=True,
        gradient_checkpointing=False, save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of TRL's and of transformers' own
def test_direct_preference_optimisation_with_trl(tmp_path):
    disable_progress_bars()
    data = Dataset.from_list(
        [{"prompt": "a b", "chosen": " c d", "rejected": " a"}, {"prompt": "b", "chosen": " c", "rejected": " d a"}] * 2
    )
    model = tiny.gpt2(layers=1)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), watch=[anchorhold.SOS()])
    trainer = DPOTrainer(
        model, tiny.gpt2(layers=1), settings(DPOConfig, tmp_path), train_dataset=data,
        processing_class=tiny.tokenizer(), callbacks=[AnchorholdCallback(guard)],
    )  # fmt: skip
    trainer.train()
    assert guard.tasks == 1
    twin = tiny.gpt2(layers=1)
    twin.load_state_dict(model.state_dict())
    rows = list(trainer.train_dataset)
    samples = completed([row["prompt_ids"] for row in rows], [row["chosen_ids"] for row in rows])
    expected = oracles.importance(
        twin, samples, oracles.summed_over_positions(oracles.every_label), torch.square, logits
    )
    assert_agrees({name: value.double() for name, value in guard.importance.items()}, expected, 1e-4)


@pytest.mark.filterwarnings("ignore")
def test_kto_with_trl(tmp_path):
    disable_progress_bars()
    data = Dataset.from_list(
        [{"prompt": "a b", "completion": " c d", "label": True}, {"prompt": "b", "completion": " a", "label": False}]
        * 2
    )
    model = tiny.gpt2(layers=1)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    trainer = KTOTrainer(
        model, tiny.gpt2(layers=1), settings(KTOConfig, tmp_path), train_dataset=data,
        processing_class=tiny.tokenizer(), callbacks=[AnchorholdCallback(guard)],
    )  # fmt: skip
    trainer.train()
    twin = tiny.gpt2(layers=1)
    twin.load_state_dict(model.state_dict())
    rows = [row for row in trainer.train_dataset if row["label"]]
    samples = completed([row["prompt_ids"] for row in rows], [row["completion_ids"] for row in rows])
    expected = oracles.importance(
        twin, samples, oracles.summed_over_positions(oracles.every_label), torch.square, logits
    )
    assert_agrees({name: value.double() for name, value in guard.importance.items()}, expected, 1e-4)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_what_trls_trainers_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page("guides/trainers.md", "TRL")
    policy = scope["policy"]()
    importance = anchorhold.Fisher().measure(policy, scope["old_texts"])
    unheld = scope["all_three"](strength=0.0)
    for name, guard in scope["held"].items():
        assert guard.tasks == 2
        assert all(omega.any() for omega in guard.held.of("SOS").values()), name  # the trainer's loss was seen
        held, free = (moved(guards[name].model, policy, importance) for guards in (scope["held"], unheld))
        assert held < 0.5 * free, name


def moved(model, start, importance):
    """How far a policy has come, by what its weights matter for the old texts."""
    begun = dict(start.named_parameters())
    ways = {name: (p - begun[name]).detach() for name, p in model.named_parameters()}
    return sum(float((importance[name] * way**2).sum()) for name, way in ways.items())
