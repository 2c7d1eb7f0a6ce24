"""The comparison of controllers: dual ascent, the unit of a strength, packed data, and trials that go on."""

import copy
import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.guard.arguments.strengths import strength_of_rate
from anchorhold_lab.data import Images
from studies.tolerance import digits
from studies.tolerance_dual import __main__ as command
from studies.tolerance_dual import outcomes, packing, toy, trials
from studies.tolerance_dual.controllers import AIM, DualAscent, Follower, followers
from studies.tolerance_dual.measurements import Following


def test_dual_ascent_is_the_formula_at_every_look():
    control = DualAscent(every=8, multiple=0.1, clip=0.2)
    control.begin(3.0)
    expected = math.log(3.0)
    for kl, moved in ((0.03, 0.1 * math.log(1.5)), (0.03, 0.1 * math.log(1.5)), (9.0, 0.2), (0.0, -0.2)):
        control.latest = {"old": kl}
        control.looks += 1
        expected += moved
        assert math.log(control.follow(0.02)) == pytest.approx(expected, rel=1e-12)
    assert control.follow(0.02, most=0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [1, 5])
def test_at_the_exchange_rate_1_the_penalty_is_the_kl_of_a_token(tokens):
    """In float64, with the whole matrix and every label: what is left over is of third order in D."""

    class Each(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            return self.linear(x).squeeze(1) if tokens == 1 else self.linear(x)

    torch.manual_seed(0)
    model = Each().double()
    inputs = torch.randn(40, tokens, 3, dtype=torch.float64)
    strength = strength_of_rate(1.0, tokens)
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="exact"), form="dense", strength=strength)
    guard.consolidate([inputs])
    before = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-4 * torch.randn_like(parameter))
        old, new = before(inputs).log_softmax(-1), model(inputs).log_softmax(-1)
        kl = (old.exp() * (old - new)).sum(-1).mean()
    assert float(guard.penalty().detach()) == pytest.approx(float(kl), rel=1e-3)


def test_following_counts_looks_until_one_is_near():
    trace = [(0, 0.0, 1.0), (8, 0.1, 2.0), (16, 0.5, 3.0), (24, 0.9, 4.0), (32, 2.0, 5.0)]
    found = Following.of(trace, 1.0, looks=4)
    assert (found.looks, found.until_near, found.above, found.peak) == (4, 3, 0.25, 2.0)
    assert (found.first, found.last) == (1.0, 5.0)
    assert Following.of(trace[:3], 1.0, looks=2).until_near is None


@pytest.mark.parametrize("channels", [1, 3])
def test_packed_pictures_are_the_same_bytes(channels):
    pixels = torch.randint(0, 256, (7, channels, 6, 5), dtype=torch.uint8).numpy()
    assert (packing._whole(packing._differences(pixels)) == pixels).all()


def test_packed_files_are_read_as_what_was_written(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    shapes = {"MNIST": ((1, 28, 28), 10), "CIFAR-10": ((3, 32, 32), 10), "CIFAR-100": ((3, 32, 32), 100)}

    def images(shape, classes):
        pixels = torch.randint(0, 256, (30, *shape), generator=generator, dtype=torch.uint8)
        return Images(pixels, torch.arange(30) % classes, classes)

    whole = {name: packing.Dataset(name, images(*about), images(*about)) for name, about in shapes.items()}
    texts = {key: torch.arange(200, dtype=torch.uint8) for key in packing.BYTES}
    packing.corpus.write(tmp_path / "text.npz", packing.corpus.Corpus(texts))
    monkeypatch.setattr(packing, "Datasets", lambda folder: whole)
    packing.pack(tmp_path, tmp_path / "text.npz", tmp_path)
    digits_found, found = (packing.datasets_in(tmp_path, name) for name in ("permuted-mnist", "split-cifar"))
    assert torch.equal(digits_found["MNIST"].train.pixels, whole["MNIST"].train.pixels)
    hundred = found["CIFAR-100"].test
    assert torch.equal(hundred.pixels, whole["CIFAR-100"].test.pixels[:10]) and hundred.labels.tolist() == list(
        range(10)
    )
    command.main(["pack", str(tmp_path), str(tmp_path / "some"), "--settings", "split-cifar"])
    named = [f"{name}-{kind}.xz" for name in ("CIFAR-10", "CIFAR-100") for kind in ("test", "train")]
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == named
    with pytest.raises(SystemExit, match="english-python needs --corpus"):
        command.main(["pack", str(tmp_path), str(tmp_path / "all")])


def test_what_tells_most_is_run_first():
    setting = next(each for each in trials.SIZES["large"] if each.name == "split-cifar")
    wanted = list(trials.trials(setting))
    assert len(wanted) == len(set(wanted)) == 5 * 2 * 2 * 4
    parts = [
        {(trial.seed, trial.follower.start) for trial in wanted[at:to]} for at, to in ((0, 24), (24, 48), (48, 64))
    ]
    assert parts == [
        {(seed, start) for seed in seeds}
        for start, seeds in (
            ("mean importance", (0, 1, 2)),
            ("exchange rate 1", (0, 1, 2)),
            ("mean importance", (3, 4)),
        )
    ]


def test_on_plants_dual_ascent_ends_nearer_than_control_that_slows_down():
    """It is why the comparison was made: what trained networks say is in the results."""
    slowing = toy.tried(toy.Control, 2500)
    dual = toy.tried(DualAscent, 2500)
    assert dual[0] < 0.5 * slowing[0] and dual[1] < 0.5 * slowing[1]


def test_a_trial_is_made_once_and_the_page_compares_it(tmp_path):
    rows = tmp_path / "rows.jsonl"
    some = [each for each in followers() if each.start == "mean importance"]
    wanted = [trials.Trial("digits", 0, "rotated", "Adam", 0.1, each) for each in some]
    first = digits.first_task(0)

    def one(trial):
        return trials.run_digits(trial, first)

    command.make(rows, "full", wanted[:1], one, torch.device("cpu"))
    command.make(rows, "full", wanted, one, torch.device("cpu"))
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["trial"]["follower"]["controller"] for row in found] == ["slowing", "dual"]
    assert found[0]["looks"] == found[1]["looks"] == digits.STEPS // 14  # a tenth of a step of 32
    assert found[0]["first"] == found[1]["first"] and found[0]["last"] != found[1]["last"]
    assert outcomes.error(found[0]) == pytest.approx(math.log(found[0]["end"]["kept"] / (AIM * 0.1)))
    assert outcomes.better_by("digits", found[1:], found[:1]) == [
        pytest.approx(found[1]["back"]["new"] - found[0]["back"]["new"])
    ]
    told = command.main(["report", str(rows), "--results", str(tmp_path)])
    page = (tmp_path / "tolerance-dual.md").read_text()
    assert told is None and "- digits: dual, from mean importance:" in page and "nan" not in page
    changed = [{**row, "trial": {**row["trial"], "setting": "split-cifar"}} for row in found]
    changed.append({**found[0], "seconds": 60.0})
    rows.write_text("".join(json.dumps(row) + "\n" for row in changed))
    (tmp_path / "README.md").write_text("# T\n\n- **Answer:** ?\n- **Command:** c\n- **Cost:** ?\n\nThe rest.\n")
    command.main(["report", str(rows), "--results", str(tmp_path), "--readme", str(tmp_path / "README.md")])
    kept = json.loads((tmp_path / "tolerance-dual.json").read_text())["rows"]
    assert kept == [changed[2], found[1], *changed[:2]]
    answer, other, cost, *rest = (tmp_path / "README.md").read_text().splitlines()[2:]
    assert answer == f"- **Answer:** {outcomes.answer(kept)}" and cost == f"- **Cost:** {outcomes.cost(kept)}"
    assert (other, rest) == ("- **Command:** c", ["", "The rest."])


def row_of(setting, seed, follower, kl, new):
    trial = trials.Trial(setting, seed, "diagonal", "SGD", 0.1, follower)
    return {
        "trial": asdict(trial),
        "size": "large",
        "end": {"kept": kl * AIM * 0.1},
        "back": {"new": new},
        "machine": "card, 1",
        "seconds": 90.0,
    }


def test_the_answer_is_what_the_rule_says_of_each_setting():
    unit = replace(outcomes.DUAL, start="exchange rate 1")
    rows = [row_of("split-cifar", seed, outcomes.TODAY, (3.0, 1 / 3, 4.0)[seed], 70.0) for seed in range(3)]
    rows += [row_of("split-cifar", seed, outcomes.DUAL, 0.5, 69.6) for seed in range(3)]
    rows += [row_of("split-cifar", 1, unit, 0.5, 72.0)]  # of fewer seeds
    rows += [
        row_of("english-python", 0, outcomes.TODAY, 1.0, 2.0),
        row_of("english-python", 0, outcomes.DUAL, 2.0, 2.0),
    ]
    assert outcomes.answer(rows) == (
        "By a rule that was written before, dual ascent does as well on 1 of 2 settings, so the library keeps the "
        "controller that slows down. From the same start, the median factor between the KL and its target, with dual "
        "ascent against slowing control: on Split CIFAR 2.00 against 3.00 (new task 0.40 points worse; from the "
        "exchange rate 1, 2.00 points better), on English with Python after it 2.00 against 1.00 (new task as good). "
        "Not reached: permuted digits, Permuted MNIST."
    )
    worse = [
        row if row["trial"]["follower"]["controller"] == "slowing" else {**row, "back": {"new": 69.4}} for row in rows
    ]
    assert "as well on 0 of 2" in outcomes.answer(worse)
    assert outcomes.cost(rows[:2]).startswith("2 runs") and outcomes.cost(rows[:2]).endswith("3 on card.")


def test_of_every_setting_as_good_dual_ascent_may_take_the_place():
    rows = [row_of(name, 0, each, 1.0, 2.0) for name in outcomes.CALLED for each in (outcomes.TODAY, outcomes.DUAL)]
    said = outcomes.answer(rows)
    assert (
        "as well on 4 of 4 settings, so it may take the place of the controller" in said and "Not reached" not in said
    )


def test_another_start_is_the_one_that_was_asked_for():
    first = digits.first_task(0)
    run = digits.Run(0, "Adam", first, tolerance=0.1, form="diagonal")
    Follower("slowing", "exchange rate 1").take_over(run.guard, tokens=1)
    run.train(steps=1)
    assert run.guard.control.trace[0].strength == pytest.approx(0.5)
