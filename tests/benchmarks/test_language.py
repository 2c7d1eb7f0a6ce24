"""The study of English and Python: its text, its network, and the whole of it at a tiny size."""

import contextlib
import dataclasses
import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import anchorhold
from anchorhold.engine.reductions import joined
from anchorhold.forms import DiagonalMatrix, Rotated, RotatedMatrix
from anchorhold.seeding import generator_for
from benchmarks.language import __main__ as command
from benchmarks.language import corpus, plot, reading, report, study
from benchmarks.language.english import is_learned, kind_of, learn_english, new_guard, start_python, weights_of
from benchmarks.language.frontier import lost_at_share, points
from benchmarks.language.gpt import GPT
from benchmarks.language.lines import claim, claims_of
from benchmarks.language.lora import adapt
from benchmarks.language.python import FINE_TUNE, Learned, Lesson
from benchmarks.language.settings import ADAPTER_MEASURES, FORMS, MEASURES, Settings
from benchmarks.language.sources import Source
from benchmarks.language.training import Device, batches, bits_per_byte, schedule, spread

TINY = Settings(
    width=16,
    layers=2,
    heads=2,
    context=16,
    rank=2,
    english_steps=60,
    english_batch=8,
    english_rate=1e-2,
    watched=20,
    measured=4,
    adapter_steps=3,
    python_steps=12,
    python_batch=8,
    python_rate={"full": 1e-2, "lora": 3e-2},
    windows=8,
    strengths=(1e-9, 1e2),
    unguarded={"shorter": (0.5,), "slower": (0.1,), "averaged": (0.25, 1.0), "replay": (0.5,)},
    seeds=(0,),
)
ENGLISH = "The people of the island were asked what they thought of the weather. "
PYTHON = "def weather(island):\n    return [w for w in island.people() if w is not None]\n"


@pytest.fixture(scope="module")
def text():
    parts = {("english", "train"): ENGLISH * 6, ("english", "validation"): ENGLISH * 2}
    parts |= {("python", "train"): PYTHON * 6, ("python", "validation"): PYTHON * 2}
    return corpus.Corpus({key: torch.tensor(list(part.encode()), dtype=torch.uint8) for key, part in parts.items()})


@pytest.fixture(scope="module")
def cpu():
    return Device(torch.device("cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("language")


@pytest.fixture(scope="module")
def learned(text, cpu, folder):
    """Every lesson of the tiny study."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert study.run(TINY, text, cpu, folder / "language.jsonl", folder / "work", seconds=1e9)
    assert "no layer rule" not in told.getvalue() and told.getvalue().count("bits a byte") == 30
    return study.read(folder / "language.jsonl")


@pytest.mark.nightly
def test_every_method_strength_and_way_is_run(learned):
    assert len(learned) == len({found.lesson for found in learned}) == 2 * (1 + 5 + 2 * len(MEASURES)) + 2
    for found in learned:
        assert len(found.english) == len(found.python) == 2
        # English has been learned, of 8 bits a byte; both ways begin from the same network
        assert found.english[0] == pytest.approx(learned[0].english[0], abs=1e-5) and found.english[0] < 5


def test_strength_goes_from_no_effect_to_learning_nothing(learned):
    for way in ("full", "lora"):
        here = {(f.lesson.measure, f.lesson.strength): f for f in learned if f.lesson.way == way}
        free = here[FINE_TUNE, 0.0]
        assert free.gained > 0.2 and free.lost > 0.01
        for measure in MEASURES if way == "full" else ADAPTER_MEASURES:
            weak, strong = (here[measure, strength] for strength in TINY.strengths)
            assert weak.python[-1] == pytest.approx(free.python[-1], abs=1e-3)
            assert strong.gained < 0.7 * free.gained
            assert strong.lost < free.lost


def test_without_a_guard_less_is_lost_where_less_is_done(learned):
    for way in ("full", "lora"):
        here = {(f.lesson.measure, f.lesson.strength): f for f in learned if f.lesson.way == way}
        free = here[FINE_TUNE, 0.0]
        assert here["averaged", 1.0].python[-1] == pytest.approx(free.python[-1], abs=1e-6)
        for name, share in (("shorter", 0.5), ("slower", 0.1), ("averaged", 0.25), ("replay", 0.5)):
            assert here[name, share].gained < free.gained, (way, name)
        assert here["replay", 0.5].lost < free.lost
        assert here["shorter", 0.5].lesson.steps == 6
        assert here["slower", 0.1].lesson.rate == pytest.approx(0.1 * free.lesson.rate)


def test_an_average_of_adapters_is_one_of_the_weights_that_they_are_part_of(learned, text, cpu, folder):
    taught = start_python(TINY, cpu, 0, folder / "work" / "seed-0", "lora")
    given = next(batches(text.of("python", "train"), 1, 2, TINY.context, 0, "x"))[:, :-1]
    layer = taught.model.blocks[0].wide
    torch.nn.init.normal_(layer.lora_a)
    torch.nn.init.normal_(layer.lora_b)
    taught.tuned = weights_of(taught.model)
    added = layer(torch.ones(1, TINY.width)) - layer.layer(torch.ones(1, TINY.width))
    taught.average(0.25)
    averaged = layer(torch.ones(1, TINY.width)) - layer.layer(torch.ones(1, TINY.width))
    torch.testing.assert_close(averaged, 0.25 * added)
    assert taught.model(given).isfinite().all()


def test_a_study_goes_on_where_it_was_cut_off(learned, text, cpu, folder, tmp_path):
    lines = tmp_path / "language.jsonl"
    whole = (folder / "language.jsonl").read_text().splitlines(keepends=True)
    lines.write_text("".join(whole[:5]) + whole[5][:30])
    assert not study.run(TINY, text, cpu, lines, folder / "work", seconds=0)
    assert lines.read_text() == "".join(whole[:5])  # too late to start anything, and the broken line is gone
    lines.write_text("".join(whole[:-2]) + whole[-2][:30])
    assert study.run(TINY, text, cpu, lines, folder / "work", seconds=1e9)
    again = study.read(lines)
    assert [found.lesson for found in again] == [found.lesson for found in learned]
    assert again[-2].python == learned[-2].python  # on a CPU, bit for bit
    assert study.run(TINY, text, cpu, lines, tmp_path / "gone", seconds=0)  # all done: no network is needed
    more = dataclasses.replace(TINY, seeds=(0, 1))
    assert not study.run(more, text, cpu, lines, tmp_path / "gone", seconds=0)


def test_other_settings_learn_english_anew(learned, folder):
    assert is_learned(TINY, folder / "work" / "seed-0")
    assert is_learned(dataclasses.replace(TINY, python_steps=3), folder / "work" / "seed-0")
    assert not is_learned(dataclasses.replace(TINY, english_steps=61), folder / "work" / "seed-0")
    assert not is_learned(TINY, folder / "work" / "seed-1")


def test_guards_hold_what_the_plain_measures_find(learned, text, cpu, folder):
    taught = start_python(TINY, cpu, 0, folder / "work" / "seed-0", "full")
    samples = next(batches(text.of("english", "train"), 1, 64, TINY.context, 0, "measured"))[:4, :-1]
    expected = anchorhold.MAS().measure(taught.model, [samples])
    guard = taught.guard("full", "MAS", 3.0, TINY)
    for name, value in guard.importance.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-7)
        assert torch.equal(guard.anchor[name], taught.start[name])
    mean = torch.cat([value.flatten() for value in guard.importance.values()]).mean()
    assert guard.strength * float(mean) == pytest.approx(3.0)
    assert taught.guard("full", "L2", 3.0, TINY).strength == pytest.approx(3.0)


def test_an_adapter_changes_nothing_at_first_and_only_b_is_important(learned, text, cpu, folder):
    full, adapted = (start_python(TINY, cpu, 0, folder / "work" / "seed-0", way) for way in ("full", "lora"))
    given = text.of("python", "validation")[None, :16].long()
    torch.testing.assert_close(adapted.model(given), full.model(given))
    trained = {name for name, p in adapted.model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 4 * TINY.layers and all("lora_" in name for name in trained)
    for measure in ("EWC", "SOS", "MAS"):
        found = adapted.guard("lora", measure, 1.0, TINY).importance
        assert set(found) == trained
        for name, value in found.items():
            assert bool(value.any()) == name.endswith("lora_b"), (measure, name)


def test_networks_keep_the_names_that_they_were_published_with():
    assert kind_of(Settings()) == "a547aa8b"
    assert kind_of(dataclasses.replace(Settings(), strengths=(1.0,))) == "a547aa8b"
    fewer = dataclasses.replace(Settings(), compared={"full": ()})
    assert kind_of(fewer) == "bdc3b903"  # has no guards beside it


def test_the_form_is_all_that_differs(learned, text, cpu, folder):
    """A rotation leaves the sum of squares as it is, so that of the same labels and samples the traces are the same."""
    taught = start_python(TINY, cpu, 0, folder / "work" / "seed-0", "full")
    samples = next(batches(text.of("english", "train"), 1, 64, TINY.context, 0, "measured"))[:4, :-1]
    trace = {}
    for name in ("EWC", *FORMS):
        guard = new_guard(taught.model, "full", name, TINY)
        guard.consolidate([samples])
        trace[name] = sum(float(matrix.trace()) for matrix in guard.held.matrices.values())
    assert trace["rotated"] == pytest.approx(1.001 * trace["EWC"], rel=1e-5)
    assert trace["rotated by position"] != pytest.approx(1.001 * trace["EWC"], rel=1e-3)


def test_of_a_gpt_layers_are_rotated_with_their_biases_and_norms_are_not():
    """Q of every block is the mean square of samples' gradients along the coordinates, from autograd, one by one."""
    torch.manual_seed(0)
    model = GPT(8, 2, 2, 6).double()
    given, labels = torch.randint(256, (2, 5, 6))
    guard = anchorhold.Guard(model, anchorhold.Fisher(labels="true"), form=Rotated(damping=0.0))
    guard.consolidate([(given, labels)])
    found = guard.held.matrices
    said = {name: matrix.description for name, matrix in found.items()}
    assert {name for name in said if "norm" in name} == {name for name in said if said[name] == "diagonal"}
    assert said["blocks.1.qkv.weight"] == said["logits.weight"] == "rotated"
    assert found["blocks.1.qkv.weight"].block.size == (24, 9)  # all of it, with the bias
    assert said["bytes.weight"] == said["places.weight"] == "rotated along its outputs"
    gradients = []
    for one, label in zip(given, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(one[None])[0], label, reduction="sum")
        own = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(dict(zip(dict(model.named_parameters()), own, strict=True)))
    for name, matrix in found.items():
        if isinstance(matrix, DiagonalMatrix):
            expected = torch.stack([gradient[name].square() for gradient in gradients]).mean(0)
            torch.testing.assert_close(matrix.omega, expected, rtol=1e-10, atol=1e-14)
            continue
        assert isinstance(matrix, RotatedMatrix)
        turned = [joined(matrix.block, gradient) for gradient in gradients]
        if matrix.basis.outputs is not None:
            turned = [matrix.basis.outputs.mT @ each for each in turned]
        if matrix.basis.inputs is not None:
            turned = [each @ matrix.basis.inputs for each in turned]
        expected = torch.stack([each.square() for each in turned]).mean(0)
        torch.testing.assert_close(matrix.s, expected, rtol=1e-10, atol=1e-14)


def test_the_report_and_the_picture(learned, folder, capsys):
    report.write(folder, learned, TINY, "abc", 12345)
    said = (folder / "language.md").read_text()
    assert said.count("| fine-tune |  |") == 2 and "sha256 abc" in said and "English lost at equal gain" in said
    assert len(json.loads((folder / "language.json").read_text())["points"]) == len(learned)
    command.main(["plot", "--results", str(folder), "--pictures", str(folder)])
    picture = (folder / "english-to-python.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000
    plot.draw(points(learned), folder / "again.png")
    assert (folder / "again.png").read_bytes() == picture


def test_plotting_nothing_says_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match=r"First: python -m benchmarks\.language run"):
        command.main(["plot", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"There is no corpus at .*prepare"):
        command.main(["run", str(tmp_path / "corpus.npz"), "--rehearse"])


def found(strength, english, python, seed=0, network="n", measure="L2"):
    lesson = Lesson(seed, "full", measure, strength, network, 1, 1, 0.1)
    return Learned(lesson, [2.0, 2.0 + english], [4.0, 4.0 - python], 1.0)


def test_points_are_means_over_seeds_of_their_latest_networks():
    lines = [found(1.0, 9.0, 9.0, network="old"), found(1.0, 0.1, 0.5), found(1.0, 0.3, 0.7, seed=1, network="other")]
    (point,) = points(lines)
    assert point.seeds == (0, 1)
    assert (point.lost.value, point.lost.error) == (pytest.approx(0.2), pytest.approx(0.1))
    assert point.gained.value == pytest.approx(0.6)


def test_what_is_lost_at_equal_gain_is_read_off_the_line_of_each_seed():
    lines = [found(0.0, 0.9, 1.0, measure=FINE_TUNE), found(0.1, 0.5, 0.9), found(1.0, 0.1, 0.5)]
    assert lost_at_share(lines, "full", "L2", 0.7) == {0: pytest.approx(0.3)}
    assert lost_at_share(lines, "full", "L2", 0.4) == {}
    assert lost_at_share(lines, "full", "L2", 0.95) == {}
    lines += [found(0.0, 0.8, 2.0, seed=1, measure=FINE_TUNE)]
    assert lost_at_share(lines, "full", "L2", 0.7) == {0: pytest.approx(0.3)}  # the other was not taught with it
    lines += [found(0.1, 0.4, 1.6, seed=1), found(1.0, 0.2, 1.2, seed=1)]
    assert lost_at_share(lines, "full", "L2", 0.7) == {0: pytest.approx(0.3), 1: pytest.approx(0.3)}
    assert lost_at_share(lines, "full", "L2", 0.55) == {}
    lines = [found(0.0, 0.9, 1.0, measure=FINE_TUNE), found(0.5, 0.1, 0.5, measure="averaged")]
    assert lost_at_share(lines, "full", "averaged", 0.75) == {0: pytest.approx(0.5)}  # it ends in fine-tuning
    assert lost_at_share(lines, "full", "averaged", 0.25) == {0: pytest.approx(0.05)}  # and begins at the start
    lines = [found(0.0, 0.9, 1.0, measure=FINE_TUNE), found(0.5, 0.1, 0.5, measure="replay")]
    assert lost_at_share(lines, "full", "replay", 0.75) == {0: pytest.approx(0.5)}
    assert lost_at_share(lines, "full", "replay", 0.25) == {}  # nobody knows where more replay leads


def test_each_byte_is_predicted_from_those_before():
    torch.manual_seed(0)
    model = GPT(16, 2, 2, 12)
    text = torch.randint(256, (1, 12))
    other = text.clone()
    other[0, 7] = (other[0, 7] + 1) % 256
    differs = (model(text) - model(other)).abs().amax(-1)[0] > 1e-7
    assert differs.tolist() == [False] * 7 + [True] * 5


def test_losses_are_bits_a_byte_over_the_whole_text(cpu):
    model = GPT(16, 1, 2, 8)
    torch.nn.init.zeros_(model.logits.weight)
    assert bits_per_byte(cpu, model, spread(torch.arange(200, dtype=torch.uint8), 5, 8)) == pytest.approx(8.0)


def test_the_rate_rises_and_falls_to_nothing(cpu):
    optimizer = cpu.optimizer(GPT(16, 1, 2, 8), 1.0, 0.1)
    rates, seen = schedule(optimizer, 20), []
    for _ in range(20):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.step()
    assert seen[:2] == [0.5, 1.0] and max(seen) == 1.0
    assert seen[-1] == pytest.approx(1 / 18) and optimizer.param_groups[0]["lr"] == 0


# Dynamo looks at the gradients of what enters a block.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_one_compiled_block_serves_every_block_and_network():
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph

    call = torch.compile(lambda block, x: block(x), dynamic=False, backend=backend)
    for seed in range(2):
        GPT(16, 3, 2, 8)(torch.zeros(2, 8, dtype=torch.long), call)
        assert len(compiled) == 1, seed
    adapted = GPT(16, 3, 2, 8)
    adapt(adapted, 2, generator_for(0, "adapter"))
    adapted(torch.zeros(2, 8, dtype=torch.long), call)
    assert len(compiled) <= 3  # what enters the first block needs no gradient there


def test_text_is_read_from_pages_dictionaries_sayings_and_modules():
    prose = "It is a truth universally acknowledged that somebody must be in want of something."
    page = (
        f"<html><head><title>{prose}</title></head><body><p>{prose}</p><pre>{prose}</pre><li>x = 1</li></body></html>"
    )
    assert reading.html(page.encode()) == [prose]
    entry = f"Truth \\Truth\\, n.\n   {prose[:38]}\n   {prose[39:]}\n   [1913 Webster]\n\n0 1 2 3 4"
    assert reading.dictionary(entry.encode()) == [f"Truth \\Truth\\, n. {prose}"]
    assert reading.fortunes(f"{prose}\n%\n+--+ |  | +--+\n%\n{prose}".encode()) == [f"{prose}\n\n{prose}"]
    german = "Es ist eine allgemein anerkannte Wahrheit, dass jemand etwas für sich wünschen muss."
    assert reading.german_html(f"<p>{german}</p><p>{prose}</p>".encode()) == [german]
    assert reading.german_plain(f"{prose}\n{german}\n".encode()) == [german]
    module = b"import os\n" * 60
    assert reading.source_code(module) == [module.decode()]
    assert reading.source_code(module[:100]) == reading.source_code(module * 1000) == []


def test_a_corpus_is_split_by_document_and_has_nothing_twice(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "stories_1%3a2.0-1_all"
    (folder / "usr").mkdir(parents=True)
    (tmp_path / "stories_1%3a2.0-1_all.deb").touch()
    licence = "This file may be copied, changed and given to others by anybody who wants to do so. " * 2
    for number in range(120):
        own = f"Here begins story {number}, which no other story in the whole of this package begins like. " * 4
        (folder / "usr" / f"{number}.txt").write_text(f"{licence}\n\n{own}")
    (folder / "usr" / "copy.txt").write_text((folder / "usr" / "7.txt").read_text())
    source = Source("stories", ("usr/*.txt",), lambda content: [content.decode()])
    monkeypatch.setattr(corpus, "ENGLISH", (source,))
    monkeypatch.setattr(corpus, "PYTHON", (dataclasses.replace(source, read=lambda content: [content.decode()[::-1]]),))
    command.main(["prepare", str(tmp_path / "corpus.npz"), "--packages", str(tmp_path)])
    made = corpus.load(tmp_path / "corpus.npz")
    parts = {key: bytes(text.tolist()).decode() for key, text in made.texts.items()}
    train, validation = parts["english", "train"], parts["english", "validation"]
    assert (train + validation).count(licence.strip()) == 1
    for number in range(120):
        assert (f"story {number}," in train) != (f"story {number}," in validation)
        assert (train + validation).count(f"story {number}, which") == 4
    assert validation
    listing = json.loads((tmp_path / "corpus.json").read_text())
    assert listing["sources"][0]["version"] == "1:2.0-1" and listing["sha256"] == made.digest()
    first = (tmp_path / "corpus.npz").read_bytes()
    command.main(["prepare", str(tmp_path / "corpus.npz"), "--packages", str(tmp_path)])
    assert (tmp_path / "corpus.npz").read_bytes() == first
    with np.load(tmp_path / "corpus.npz") as file:
        assert file["english_train"].dtype == np.uint8


def test_a_network_is_the_same_for_the_same_seed(text, cpu, folder, learned, tmp_path):
    (tmp_path / "full-rotated.safetensors").touch()
    learn_english(TINY, text, cpu, 0, tmp_path)
    assert not (tmp_path / "full-rotated.safetensors").exists()  # another network's would be taken for this one's
    assert start_python(TINY, cpu, 0, tmp_path, "full").network == learned[0].lesson.network


def test_of_several_workers_one_has_a_claim(tmp_path):
    rows = tmp_path / "rows.jsonl"
    with ThreadPoolExecutor(8) as workers:
        found = list(workers.map(lambda k: claim(rows, f"run-{k % 3}"), range(24)))
    assert sum(found) == 3 and len(list(claims_of(rows).iterdir())) == 3
    (claims_of(rows) / "run-1").unlink()
    assert claim(rows, "run-1") and not claim(rows, "run-1")
