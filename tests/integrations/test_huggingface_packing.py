"""Several documents in one row: each is a sample, as if it had not been packed."""

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from torch.utils.data import DataLoader
from transformers import DataCollatorWithFlattening
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import anchorhold
from anchorhold.engine.batches import read_batch
from anchorhold.engine.conventions.rows import documents_apart
from anchorhold.integrations.huggingface import AnchorholdCallback
from tests import oracles
from tests.integrations import tiny
from tests.integrations.test_huggingface_losses import assert_agrees, double, logits, one_by_one

LENGTHS = (5, 2, 1, 4, 3, 6)
CPU = torch.device("cpu")


def documents():
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, tiny.TOKENS, (length,), generator=generator).tolist() for length in LENGTHS]
    # The beginning of the first is a prompt, which does not count.
    return [{"input_ids": row, "labels": [-100] * 2 + row[2:] if n == 0 else row} for n, row in enumerate(rows)]


def unpacked():
    collate = DataCollatorForLanguageModeling(pad_token_id=0)
    return [collate(documents())]


def packed_rows():
    """What SFTTrainer(packing=True) makes of them: rows of up to 12 tokens, and the lengths of their documents."""
    given = documents()
    rows = []
    for group in ((0, 1, 2), (3, 4), (5,)):
        texts = [given[n] for n in group]
        joined = {key: [entry for text in texts for entry in text[key]] for key in ("input_ids", "labels")}
        rows.append({**joined, "seq_lengths": [len(text["input_ids"]) for text in texts]})
    return rows


PACKED = {
    "trl's packing": lambda: DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(packed_rows()),
    "padded to a multiple": lambda: DataCollatorForLanguageModeling(0, padding_free=True, pad_to_multiple_of=8)(
        packed_rows()
    ),
    "padding-free": lambda: DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(documents()),
    "rows with a mask": lambda: DataCollatorForLanguageModeling(0, return_position_ids=True)(packed_rows()),
    "flattening": lambda: DataCollatorWithFlattening()(documents()),
    "lengths alone": lambda: DataCollatorWithFlattening(return_position_ids=False, return_flash_attn_kwargs=True)(
        documents()
    ),
    "numbers alone": lambda: DataCollatorWithFlattening(return_position_ids=False, return_seq_idx=True)(documents()),
}


@pytest.mark.parametrize("build", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("measure", [anchorhold.Fisher(), anchorhold.Fisher(labels="true"), anchorhold.MAS()], ids=repr)
def test_documents_count_as_if_they_had_not_been_packed(build, measure):
    model = double(tiny.gpt2(layers=1))
    alone = [{key: torch.tensor([value]) for key, value in text.items()} for text in documents()]
    several = [text for text in alone if text["input_ids"].shape[1] > 1]
    scores, phi = {
        "exact": (oracles.summed_over_positions(oracles.every_label), torch.square),
        "true": (oracles.joint_true_label, torch.square),
        "none": (oracles.squared_norm, torch.abs),
    }[getattr(measure, "labels", "none")]
    samples = [sample for text in several for sample in one_by_one(text)]
    expected = oracles.importance(model, samples, scores, phi, logits)
    collector = measure.accumulator(model)
    result = collector.result_of([build()])
    assert result.samples == 5  # a document of one token has no next one
    assert_agrees(result.values, expected, 1e-10)
    assert_agrees(measure.measure(model, unpacked()), expected, 1e-10)


def test_limits_count_documents():
    model = double(tiny.gpt2(layers=1))
    batch = PACKED["padding-free"]()
    first = [{key: value[:2] for key, value in unpacked()[0].items()}]
    limited = anchorhold.Fisher(samples=2)
    assert_agrees(limited.measure(model, [batch]), anchorhold.Fisher().measure(model, first), 1e-10)
    guard = anchorhold.Guard(model, limited)
    assert guard.consolidate([batch])["EWC"].samples == 2  # where ranks count their samples before they measure
    assert_agrees(guard.importance, limited.measure(model, [batch]), 1e-12)
    guard.rehearse([batch])


def test_tokens_are_the_labels_of_documents_without_any():
    model = double(tiny.gpt2(layers=1))
    packed, plain = PACKED["flattening"](), unpacked()[0]
    del packed["labels"], plain["labels"]
    assert_agrees(anchorhold.Fisher().measure(model, [packed]), anchorhold.Fisher().measure(model, [plain]), 1e-10)


ORDINARY = {
    "from 0 on": ([[0, 1, 2, 3], [0, 1, 2, 3]], None),
    "padded on the right with 0": ([[0, 1, 2, 3], [0, 1, 0, 0]], [[1, 1, 1, 1], [1, 1, 0, 0]]),
    "padded on the right with 1": ([[0, 1, 2, 3], [0, 1, 1, 1]], [[1, 1, 1, 1], [1, 1, 0, 0]]),
    "padded on the left with 1": ([[0, 1, 2, 3], [1, 1, 0, 1]], [[1, 1, 1, 1], [0, 0, 1, 1]]),
    "padded on the left with 0": ([[0, 1, 2, 3], [0, 0, 0, 1]], [[1, 1, 1, 1], [0, 0, 1, 1]]),
    "padding that no mask tells of": ([[0, 1, 2, 3], [1, 1, 0, 1]], None),
    "the rest of a document that was cut": ([[4, 5, 6, 7], [0, 1, 2, 3]], None),
    "no positions at all": ([[3, 1, 4, 1], [5, 9, 2, 6]], None),
}


@pytest.mark.daily
@pytest.mark.parametrize(("positions", "mask"), ORDINARY.values(), ids=ORDINARY)
def test_ordinary_rows_are_not_cut_apart(positions, mask):
    batch = {"input_ids": torch.full((2, 4), 5), "position_ids": torch.tensor(positions)}
    batch |= {} if mask is None else {"attention_mask": torch.tensor(mask)}
    read = read_batch(batch, CPU)
    assert documents_apart(read, causal=True, masked=True) is read


def test_the_rest_of_a_document_keeps_its_positions():
    batch = {"input_ids": torch.arange(3, 9)[None], "position_ids": torch.tensor([[7, 8, 9, 0, 1, 2]])}
    found = documents_apart(read_batch(batch, CPU), causal=True, masked=True)
    assert found.inputs["position_ids"].tolist() == [[7, 8, 9], [0, 1, 2]]
    assert found.inputs["input_ids"].tolist() == [[3, 4, 5], [6, 7, 8]]


def test_positions_mean_something_else_to_models_that_predict_no_tokens():
    model = double(tiny.bert_tagger())
    ids = torch.tensor([[3, 4, 5, 6, 3]])
    batch = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1]]), "labels": ids % 3}
    assert anchorhold.Fisher().accumulator(model).result_of([batch]).samples == 1
    said = {**batch, "seq_idx": torch.tensor([[0, 0, 0, 1, 1]])}
    parts = [{"input_ids": part, "labels": part % 3} for part in (ids[:, :3], ids[:, 3:])]
    found = anchorhold.Fisher(labels="true").accumulator(model).result_of([said])
    assert found.samples == 2
    assert_agrees(found.values, anchorhold.Fisher(labels="true").measure(model, parts), 1e-10)
    with pytest.raises(anchorhold.errors.BatchError, match="several documents each, 2 in all, without labels"):
        anchorhold.MAS().measure(model, [{key: value for key, value in said.items() if key != "labels"}])


def test_what_belongs_to_no_document_is_refused():
    batch = {**PACKED["flattening"](), "pixel_values": torch.ones(1, 3, 4, 4)}
    with pytest.raises(anchorhold.errors.BatchError, match=r"pixel_values of shape \(1, 3, 4, 4\) .* 5 in all"):
        anchorhold.Fisher().measure(tiny.gpt2(layers=1), [batch])


@pytest.mark.parametrize(
    "strategy", [{"packing": True}, {"padding_free": True, "max_length": None}], ids=["packing", "free"]
)
@pytest.mark.filterwarnings("ignore")  # TRL tells of attention that it would rather have
def test_supervised_fine_tuning_with_packing(strategy, tmp_path):
    disable_progress_bars()
    data = Dataset.from_list([{"input_ids": text["input_ids"]} for text in documents()])
    model = tiny.gpt2(layers=1)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), watch=[anchorhold.MAS()])
    args = SFTConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, bf16=False, use_cpu=True,
        gradient_checkpointing=False, save_strategy="no", report_to=[], disable_tqdm=True,
        **{"max_length": 12, **strategy},
    )  # fmt: skip
    trainer = SFTTrainer(
        model, args, train_dataset=data, processing_class=tiny.tokenizer(), callbacks=[AnchorholdCallback(guard)]
    )
    trainer.train()
    twin = tiny.gpt2(layers=1)  # a copy of a prepared model would still call the original
    twin.load_state_dict(model.state_dict())
    plain = DataLoader(list(data), batch_size=3, collate_fn=DataCollatorForLanguageModeling(pad_token_id=0))
    for name, measure in (("EWC", anchorhold.Fisher()), ("MAS", anchorhold.MAS())):
        assert_agrees(guard.held.of(name), measure.measure(twin, plain), 1e-5)
