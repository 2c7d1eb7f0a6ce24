"""A language model is protected by its own text, trained, and averaged."""

import copy
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

import anchorhold
from anchorhold import Distillation, Fisher, OwnText, protect, write_text
from anchorhold.errors import ConfigurationError, OrderError
from anchorhold.protection import ProtectedGuard, plan
from tests.integrations import tiny
from tests.protection import language

# A model of seven tokens writes some texts twice.
pytestmark = pytest.mark.filterwarnings("ignore:.*are ones that importance was measured from")

TOKENIZER = tiny.tokenizer()


def protected(model, **options):
    return protect(model, TOKENIZER, **{**language.FEW, **options})


def trained(model, guard, steps=40):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    guard.attach(optimizer)
    language.fit(model, language.NEW, steps, optimizer)
    return optimizer


def test_it_is_what_one_would_have_written_by_hand():
    """By the formula: c = κ/(2T), the Fisher information of the pieces, and the same pieces distilled."""
    model = language.taught()
    by_hand = copy.deepcopy(model)
    guard = protected(model, exchange_rate=2.0)
    text = write_text(by_hand, 64, 11, tokenizer=TOKENIZER)
    told = OwnText(text.pieces[:56], text.kind)
    scored = sum(len(piece.written) for piece in told.pieces) / 56
    assert guard.report.scored == pytest.approx(scored)
    assert guard.strength == pytest.approx(2.0 / (2 * scored))
    hold = Distillation(told.batches(4), share=1 / 8)
    other = anchorhold.Guard(
        by_hand, Fisher(labels="sampled"), strength=2.0 / (2 * scored), form="rotated", holds=[hold]
    )
    other.keep(OwnText(text.pieces[56:], text.kind).batches(8), "aside")
    other.consolidate(told.batches(8))
    trained(model, guard)
    trained(by_hand, other)
    for one, another in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, another)
    before = other.retention()["aside"].kl
    report = guard.finish(tolerance=before / 2)
    other.pull_back(before / 2)
    for one, another in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, another)
    assert report.lost_before.kl == before
    assert report.lost.kl <= before / 2
    assert report.lost.kl == pytest.approx(other.retention()["aside"].kl)
    assert 0 < report.share < 1


def test_it_keeps_what_fine_tuning_loses():
    plain, model = language.taught(), language.taught()
    before = language.loss(model, language.OLD)
    language.fit(plain, language.NEW, 40)
    guard = protected(model)
    trained(model, guard)
    guard.finish()
    assert language.loss(model, language.OLD) - before < 0.5 * (language.loss(plain, language.OLD) - before)
    assert language.loss(model, language.NEW) < language.loss(language.taught(), language.NEW)


@pytest.mark.parametrize(
    ("given", "share"), [({"share": 0.7}, 0.7), ({"share": 1}, 1.0), ({"tolerance": 1e3}, 1.0)], ids=str
)
def test_the_share_may_be_given(given, share):
    model = language.taught()
    start = [p.detach().clone() for p in model.parameters()]
    guard = protected(model)
    trained(model, guard, 5)
    end = [p.detach().clone() for p in model.parameters()]
    report = guard.finish(**given)
    assert report.share == share
    for old, new, now in zip(start, end, model.parameters(), strict=True):
        torch.testing.assert_close(now.detach(), torch.lerp(old, new, share))


def test_a_tolerance_at_the_end_is_met():
    model = language.taught()
    guard = protected(model)
    trained(model, guard)
    lost = guard.retention().kl
    report = guard.finish(tolerance=0.3 * lost)
    assert 0.2 * lost < report.lost.kl <= 0.3 * lost


def test_other_kept_sets_count_too():
    model = language.taught()
    guard = protected(model)
    guard.keep([{"input_ids": language.NEW}], "new")  # which changes most
    trained(model, guard)
    lost = guard.retention().kl
    report = guard.finish(tolerance=lost / 2)
    assert report.lost_before.name == report.lost.name == "new" and report.lost_before.kl == lost
    assert report.lost.kl <= lost / 2


def test_finishing_ends_once_and_lets_go_of_the_optimizer():
    model = language.taught()
    guard = protected(model)
    with pytest.raises(OrderError, match="no weight has moved since the model was protected"):
        guard.finish()
    optimizer = trained(model, guard, 5)
    guard.finish(share=0.5)
    with pytest.raises(OrderError, match=r"since the last finish\(\)"):
        guard.finish()
    steps = guard.control.trace
    language.fit(model, language.NEW, 2, optimizer)
    assert guard.control.trace == steps
    guard.finish()
    with pytest.raises(ConfigurationError, match="give one of both"):
        guard.finish(share=0.5, tolerance=0.1)


def test_the_report_says_it_in_words_and_numbers():
    model = language.taught()
    guard = protected(model)
    assert "lost" not in str(guard.report) and guard.report.share is None
    trained(model, guard, 10)
    report = guard.finish()
    assert guard.report is report
    told = str(report)
    for part in ("an exchange rate of 1 with", "scored tokens a sample", "training lost", "nats a token", "foretold"):
        assert part in told
    found = report.to_dict()
    assert found["lost"]["kl"] == report.lost.kl
    # The Fisher information predicts nats to second order, near the anchor within a small factor.
    assert 0.1 < report.predicted / report.lost_before.kl < 10


def test_an_adapter_is_held_by_its_merged_weights():
    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(language.taught(), lora)
    guard = protected(model)
    assert guard.options.form.name == "kronecker" and guard.options.space == "merged"
    assert all(name.endswith("base_layer.weight") for name in guard.importance)
    trained(model, guard)
    b = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_B" in name}
    report = guard.finish(share=0.8)
    assert report.lost.kl < report.lost_before.kl
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.testing.assert_close(p.detach(), report.share * b[name])


def test_nothing_of_a_model_in_training_is_disturbed():
    model = language.taught().train()
    for p in list(model.parameters())[::2]:
        p.requires_grad_(False)
    model(input_ids=language.OLD, labels=language.OLD).loss.backward()
    model.model.layers[0].eval()
    torch.manual_seed(3)
    random = torch.get_rng_state()
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    weights = copy.deepcopy(model.state_dict())
    guard = protected(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    for name, p in model.named_parameters():
        assert p.grad is grads[name] is None or torch.equal(p.grad, grads[name])
        assert p.requires_grad == (name in guard.parameters)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_each_part_can_be_left_out():
    distilling = protected(language.taught(), exchange_rate=0)
    assert [hold.name for hold in distilling.options.holds] == ["distillation"]
    assert not any(omega.any() for omega in distilling.importance.values())
    holding = protected(language.taught(), share=0)
    assert holding.options.holds == () and all(omega.any() for omega in holding.importance.values())
    for guard in (distilling, holding):
        trained(guard.model, guard, 10)
        assert guard.finish(share=0.8).lost.kl < guard.report.lost_before.kl
    assert protected(language.taught(), form="diagonal").options.form.name == "diagonal"
    some = protected(language.taught(), protect="*mlp*")
    assert all("mlp" in name for name in some.parameters)


def test_own_text_is_kept_by_the_weights_that_wrote_it(tmp_path):
    told = []
    options = {"cache": tmp_path, "progress": lambda *each: told.append(each)}
    model = language.taught()
    protected(model, **options)
    assert told[:2] == [("Writing own text", 32, 64), ("Writing own text", 64, 64)]
    assert told[2:9] == [("Measuring rotated", n, 7) for n in range(1, 8)]  # of 56 samples, eight at a time
    told.clear()
    (folder,) = tmp_path.iterdir()
    again = protected(model, **options)
    assert {what for what, *_ in told} == {"Measuring rotated"}
    assert again.plan.pieces == 0 and "all 64 pieces of own text are there" in repr(again.plan)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    protected(model, **options)
    other = tiny.tokenizer()
    other.add_tokens([])
    other.eos_token = "d"
    protect(language.taught(), other, **{**language.FEW, **options})
    assert len(list(tmp_path.iterdir())) == 3  # of other weights, and of another tokenizer
    min(folder.glob("pieces-*")).unlink()  # as if writing had been stopped
    assert plan(language.taught(), TOKENIZER, **{**language.FEW, **options}).pieces == 32
    told.clear()
    protected(language.taught(), **options)
    assert told[0] == ("Writing own text", 64, 64) and told[1][0] == "Measuring rotated"


def test_own_text_may_be_given(tmp_path):
    model = language.taught()
    text = write_text(model, 64, 11, tokenizer=TOKENIZER, store=tmp_path)
    given = protect(model, text=text, progress=False)
    read = protect(model, TOKENIZER, text=tmp_path, progress=False)
    written = protected(model)
    for guard in (given, read):
        assert guard.report.scored == written.report.scored
        for name, omega in guard.importance.items():
            assert torch.equal(omega, written.importance[name])


def test_old_data_takes_the_place_of_own_text():
    model = language.taught()
    batches = [{"input_ids": language.OLD, "labels": language.OLD}] * 8
    guard = protect(model, old_data=batches, progress=False)
    same = protect(model, batches, progress=False)
    assert guard.report.scored == 9 and guard.report.per == "token"  # of ten tokens, the first is predicted by nothing
    assert guard.strength == pytest.approx(1 / 18)
    assert sum(len(batch["input_ids"]) for batch in guard.samples.aside) == 4  # every eighth of 32
    assert all(torch.equal(omega, same.importance[name]) for name, omega in guard.importance.items())
    trained(model, guard)
    assert guard.finish(share=0.8).lost.kl < guard.report.lost_before.kl


def test_packed_rows_count_their_documents():
    """Two documents of five tokens in a row, told by their positions: four scored tokens each."""
    row = {
        "input_ids": language.OLD[:1].repeat(4, 1),
        "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]]).repeat(4, 1),
        "labels": language.OLD[:1].repeat(4, 1),
    }
    guard = protect(language.taught(), old_data=[row] * 4, progress=False)
    assert guard.report.scored == 4


def test_text_files_take_the_place_of_own_text(tmp_path):
    (tmp_path / "one.txt").write_text("a b c d " * 40, encoding="utf-8")
    (tmp_path / "two.txt").write_text("d c b a " * 10, encoding="utf-8")
    paths = [tmp_path / "one.txt", str(tmp_path / "two.txt")]
    guard = protect(language.taught(), TOKENIZER, old_data=paths, length=11, progress=False)
    # 160 and 40 tokens in pieces of ten behind a first token, each of whose ten tokens is scored
    assert guard.report.scored == 10
    assert sum(len(batch["input_ids"]) for batch in guard.samples.measured + guard.samples.aside) == 20
    assert guard.samples.measured[0]["input_ids"][0].tolist() == [1, *[3, 4, 5, 6] * 2, 3, 4]


def test_it_goes_on_where_it_was_stopped(tmp_path):
    model = language.taught()
    guard = protected(model)
    optimizer = trained(model, guard, 7)
    guard.checkpoint(tmp_path / "there")
    half = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    language.fit(model, language.NEW, 9, optimizer)
    report = guard.finish()

    again = language.untrained()
    again.load_state_dict(half[0])
    for name, other in (("exchange_rate", 7.0), ("share", 1 / 4), ("form", "diagonal")):
        with pytest.raises(ConfigurationError, match=rf"{name}=.* with resume=: .* was protected with .*Leave it out"):
            protect(again, TOKENIZER, resume=tmp_path / "there", progress=False, **{name: other})
    resumed = protect(again, TOKENIZER, resume=tmp_path / "there", progress=False, exchange_rate=1, form="rotated")
    assert isinstance(resumed, ProtectedGuard) and resumed.report.seconds_taken == guard.report.seconds_taken
    optimizer = torch.optim.Adam(again.parameters(), 1e-2)
    optimizer.load_state_dict(half[1])
    resumed.attach(optimizer)
    language.fit(again, language.NEW, 9, optimizer)
    assert resumed.finish() == report
    for one, another in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, another)


def test_other_old_samples_than_the_checkpoints_own_text_are_refused(tmp_path):
    model = language.taught()
    text = write_text(model, 16, 11, tokenizer=TOKENIZER, store=tmp_path / "text")
    protect(model, TOKENIZER, text=text, progress=False).checkpoint(tmp_path / "there")
    batches = [{"input_ids": language.OLD}] * 8
    other = write_text(model, 16, 11, tokenizer=TOKENIZER, seed=1)
    resuming = {"resume": tmp_path / "there", "progress": False}
    for given, options in (((batches,), {}), ((TOKENIZER,), {"old_data": batches}), ((TOKENIZER,), {"text": other})):
        kind = "OwnText" if "text" in options else "list"
        with pytest.raises(
            ConfigurationError, match=rf"old samples of type {kind}: .* by 16 pieces of own text, which"
        ):
            protect(model, *given, **resuming, **options)
    for same in (text, tmp_path / "text"):
        assert len(protect(model, TOKENIZER, text=same, **resuming).samples.text) == 16


def test_old_data_is_given_again_when_training_resumes(tmp_path):
    batches = [{"input_ids": language.OLD}] * 8
    model = language.taught()
    guard = protect(model, batches, progress=False)
    trained(model, guard, 5)
    guard.checkpoint(tmp_path)
    with pytest.raises(OrderError, match="which no checkpoint has"):
        protect(model, TOKENIZER, resume=tmp_path, progress=False)
    resumed = protect(model, batches, resume=tmp_path, progress=False)
    assert resumed.retention().kl == pytest.approx(guard.retention().kl, abs=1e-9)
    assert math.isclose(resumed.strength, guard.strength)
