import json

import pytest

from anchorhold_lab.experiments import Store
from tests.lab.cli.small import OPTIONS, small_spec

DIVERGES = ("--optimizer", "sgd", "--lr", "1e30", "--momentum", "0")


@pytest.fixture
def run(call, tmp_path):
    def in_store(*arguments, options=OPTIONS, store=tmp_path / "store"):
        return call("run", *arguments, *options, "--store", store)

    return in_store


def events(shown):
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_measures_and_seeds_run_and_are_compared(run, tmp_path):
    shown = run("permuted-digits", "-m", "SI", "-m", "SOS", "--seeds", "2")
    assert shown.exit_code == 0
    expected = [small_spec(measure, seed) for measure in ("SI", "SOS") for seed in (0, 1)]
    assert {result.spec for result in Store(tmp_path / "store").results()} == set(expected)
    title, header, *rows = shown.stdout.splitlines()
    assert title.strip() == "permuted-digits"
    assert header.split()[:3] == ["measure", "strength", "runs"]
    assert {tuple(row.split()[:3]) for row in rows} == {
        (name, f"{small_spec(name).strength:g}", "2") for name in ("SI", "SOS")
    }
    assert all("±" in row for row in rows)


@pytest.mark.parametrize("batch_norm", ["freeze", "fold"])
def test_batch_norms_are_frozen_or_folded(run, tmp_path, batch_norm):
    asked = ("-m", "EWC", "--network", "mlp-batch-norm", "--batch-norm", batch_norm)
    assert run("permuted-digits", *asked).exit_code == 0
    (result,) = Store(tmp_path / "store").results()
    assert result.spec == small_spec("EWC", network="mlp-batch-norm", batch_norm=batch_norm)


def test_an_implicit_hold_is_asked_for(run, tmp_path):
    shown = run("permuted-digits", "-m", "EWC", "--implicit", "--optimizer", "adamw", "--strength", "1e30")
    assert shown.exit_code == 0, shown.stderr
    (result,) = Store(tmp_path / "store").results()
    assert result.spec.implicit and result.spec.settings.optimizer == "adamw"
    assert "implicit EWC" in shown.output


def test_where_the_hold_is_centred_is_asked_for(run, tmp_path):
    shown = run("permuted-digits", "-m", "EWC", "--anchor", "mean", "--gradient-term", "--samples", "20")
    assert shown.exit_code == 0, shown.stderr
    (result,) = Store(tmp_path / "store").results()
    assert (result.spec.anchor, result.spec.gradient_term, result.spec.engine) == ("mean", True, "plain")
    refused = run("permuted-digits", "-m", "EWC", "--gradient-term")
    assert refused.exit_code != 0 and "Give anchor='mean', which is SOLA" in refused.stderr


@pytest.mark.parametrize(
    ("name", "settings"),
    [("replay", {"source": 200, "share": 0.5}), ("distillation", {"strength": 0.5}), ("DER++", {"alpha": 0.1})],
)
def test_holds_of_a_run_are_asked_for_with_their_settings(run, tmp_path, name, settings):
    assigned = [argument for key, value in settings.items() for argument in ("--set", f"{name}.{key}={value}")]
    shown = run("split-digits", "-m", "fine-tune", "--hold", name, *assigned)
    assert shown.exit_code == 0, shown.stderr
    (result,) = Store(tmp_path / "store").results()
    assert (result.spec.holds, result.spec.engine) == ((name,), "plain")
    assert {key: dict(value) for key, value in result.spec.hold_settings.items()} == {name: settings}


def test_by_class_it_is_said_what_importance_alone_cannot_do(run):
    word = "importance does not keep classes"
    assert word in run("split-digits", "-m", "EWC", "--incremental", "class").stderr
    beside = run("split-digits", "-m", "EWC", "--incremental", "class", "--hold", "replay")
    by_domain = run("split-digits", "-m", "EWC", "--incremental", "domain")
    assert beside.exit_code == by_domain.exit_code == 0
    assert word not in beside.stderr + by_domain.stderr


def test_what_is_advised_by_class_is_not_refused_with_a_second_network(run):
    two = ["split-digits", "-m", "EWC", "--incremental", "class", "--compress", "1"]
    shown = run(*two)
    assert shown.exit_code == 0, shown.stderr
    assert "--hold replay in the place of --compress keeps samples of old ones" in shown.stderr
    assert run(*two, "--hold", "replay").exit_code != 0


@pytest.mark.parametrize("trains", ["jointly", "anew"])
def test_bounds_are_runs_too(run, tmp_path, trains):
    shown = run("split-digits", "-m", "fine-tune", "--trains", trains)
    assert shown.exit_code == 0, shown.stderr
    (result,) = Store(tmp_path / "store").results()
    assert result.spec.settings.trains == trains
    refused = run("split-digits", "-m", "EWC", "--trains", trains)
    assert refused.exit_code != 0 and "expected measure='fine-tune'" in refused.stderr


def test_without_a_terminal_there_is_a_line_for_each_task_and_run(run):
    lines = run("permuted-digits", "-m", "SI").stderr.splitlines()
    assert lines[0] == "SI seed 0 starts, 44 steps in 2 tasks"
    assert [line.split(",")[0] for line in lines[1:3]] == ["SI seed 0: task 1/2", "SI seed 0: task 2/2"]
    assert lines[3].startswith("SI seed 0: ") and " % in " in lines[3]
    assert len(lines) == 4


def test_what_is_finished_is_not_run_again_but_shown(run, tmp_path):
    first = run("permuted-digits", "-m", "SI", "--seeds", "2")
    again = run("permuted-digits", "-m", "SI", "--seeds", "2")
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert again.stderr.splitlines() == [f"SI seed {seed} skipped: finished already" for seed in (0, 1)]


def test_json_tells_every_event_and_nothing_else(run):
    shown = run("permuted-digits", "-m", "SI", "-m", "EWC", "--seed", "3", "--json")
    told = events(shown)
    assert shown.stderr == ""
    ids = [small_spec(name, 3).id for name in ("SI", "EWC")]
    assert [event["id"] for event in told if event["event"] == "started"] == ids
    learned = [event for event in told if event["event"] == "progress" and event["learned"]]
    assert [(event["task"], event["tasks"]) for event in learned] == [(0, 2), (1, 2)] * 2
    finished = [event for event in told if event["event"] == "finished"]
    assert [event["average_accuracy"] for event in finished] == [e["accuracies"][0] for e in learned[1::2]]
    summary = told[-1]
    assert (summary["event"], summary["runs"], summary["finished"], summary["failed"]) == ("summary", 2, 2, 0)
    assert {line["measure"] for line in summary["lines"]} == {"SI", "EWC"}
    assert summary["lines"][0]["average_accuracy_error"] is None  # one run has none, and JSON has no NaN


def test_a_run_that_diverges_fails_and_the_others_do_not(run, tmp_path):
    shown = run("permuted-digits", "-m", "fine-tune", *DIVERGES)
    assert shown.exit_code == 1
    assert "fine-tune seed 0 failed: The loss is" in shown.stderr
    assert "1 of 1 runs have no result." in shown.stderr and "--retry-failed" in shown.stderr
    again = run("permuted-digits", "-m", "fine-tune", *DIVERGES)
    assert again.exit_code == 1
    assert "fine-tune seed 0 skipped: failed before. The loss is" in again.stderr
    assert f"anchorhold-lab runs show {Store(tmp_path / 'store').ids()[0][:8]}" in again.stderr
    retried = events(run("permuted-digits", "-m", "fine-tune", *DIVERGES, "--retry-failed", "--json"))
    assert [event["event"] for event in retried][-2:] == ["failed", "summary"]
    (name,) = Store(tmp_path / "store").ids()
    assert len(Store(tmp_path / "store").failures(name)) == 2


def test_the_store_may_be_named_by_the_environment(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORHOLD_STORE", str(tmp_path / "elsewhere"))
    assert call("run", "permuted-digits", *OPTIONS).exit_code == 0
    assert len(Store(tmp_path / "elsewhere").results()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["permutd-digits"], "Did you mean 'permuted-digits'"),
        (["permuted-digits", "-m", "SO"], "Did you mean 'SOS'?"),
        (["permuted-digits", "-m", "SI", "--set", "dampin=1"], "Did you mean 'damping'?"),
        (["permuted-digits", "--lr", "-1"], "learning_rate"),
        (["permuted-digits", "--optimizer", "lion"], "expected 'adam', 'adamw' or 'sgd'"),
        (["permuted-digits", "--strength", "-2"], "strength=-2.0"),
        (["permuted-digits", "--hidden", "10x10"], "such as 100,100"),
        (["permuted-digits", "--seeds", "2", "--seed", "1"], "one or the other"),
        (["permuted-digits", "--device", "abacus"], "--device 'abacus' cannot be used"),
        (["permuted-digits", "--precision", "int4"], "precision='int4'"),
        (["permuted-digits", "--device", "meta"], "--device 'meta' cannot be used"),
        (["permuted-digits", "--tasks", "0"], "tasks=0"),
        (["permuted-digits", "--batch-size", "2000"], "batch_size=2000 for a task of 1438 samples"),
        (["permuted-digits", "--momentum", "0.5"], "expected --optimizer sgd"),
        (["permuted-digits", "-m", "SI", "-m", "MAS", "-c", "5"], "-c SI=5 -c MAS=5"),
        (["split-mnist", "-m", "L2"], "--relative-strength on the command line"),
        (["permuted-digits", "--probe", "importance"], "No probe is called 'importance'"),
        (["split-cifar", "--hidden", "10"], "has no hidden layers to choose"),
        (["split-digits", "--sizes", "1,few"], "--sizes '1,few': expected shares with commas"),
        (["split-digits", "--order", "1,0.5"], "--order '1,0.5': expected numbers of tasks with commas"),
        (
            ["split-digits", "-m", "fine-tune", "--hold", "variational", "--set", "variational.coreset=5"],
            "coreset=5 epochs for a scenario that has set no samples aside",
        ),
    ],
)
def test_mistakes_are_explained_in_a_line(run, tmp_path, arguments, message):
    shown = run(*arguments, options=())
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert len(shown.stderr.splitlines()) == 1 and shown.stdout == ""
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--side-by-side", "0"], ["--epochs", "many"], ["--colour"]])
def test_mistakes_in_the_form_of_options_are_typers_own(run, arguments):
    shown = run("permuted-digits", *arguments, options=())
    assert shown.exit_code == 2
    assert arguments[0] in shown.stderr


def test_missing_data_names_the_command_that_gets_it(run, tmp_path):
    shown = run("permuted-mnist", "-m", "SI", "--data-dir", tmp_path / "nothing")
    assert shown.exit_code == 3
    assert "anchorhold-lab data fetch MNIST" in shown.stderr


def test_a_store_that_is_a_file(run, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    shown = run("permuted-digits", store=tmp_path / "file")
    assert shown.exit_code == 4
    assert f"{tmp_path / 'file'} is a file; expected a folder" in shown.stderr


def test_whether_weights_are_drawn_anew_is_shown_where_it_differs(call, tmp_path):
    command = ("run", "permuted-digits", "-m", "SI", *OPTIONS, "--store", tmp_path)
    call(*command, "--reinit")
    call(*command, "--no-reinit")
    assert "reinitialise" in call("runs", "compare", "--store", tmp_path).stdout


def test_a_damaged_result_does_not_hide_the_others(run, tmp_path):
    run("permuted-digits", "-m", "SI", "--seeds", "2")
    first = Store(tmp_path / "store").run_folder(small_spec("SI", 0).id) / "result.json"
    first.write_text("{")
    shown = run("permuted-digits", "-m", "SI", "--seeds", "2")
    assert shown.exit_code == 4
    assert str(first) in shown.stderr
    assert shown.stdout.splitlines()[2].split()[:3] == ["SI", "20", "1"]


def test_probes_are_kept(call, run, tmp_path):
    assert run("permuted-digits", "-m", "SI", "--watch", "EWC", "--probe", "importances").exit_code == 0
    store = Store(tmp_path / "store")
    (name,) = store.ids()
    assert set(store.observations(name)["importances"]["tasks"][0]["sums"]) == {"SI", "EWC"}
    shown = call("runs", "show", name, "--store", store.folder)
    assert f"Observations, for Store.observations('{name}'): importances" in shown.stdout


def test_a_store_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    shown = run("permuted-digits", store=tmp_path / "file" / "store")
    assert shown.exit_code == 4
    assert "could not be written" in shown.stderr


def test_a_tolerance_is_asked_for_and_what_is_lost_is_told_everywhere(call, run, tmp_path):
    asked = ("-m", "EWC", "-m", "fine-tune", "--tolerance", "0.05", "--kept", "100", "--set", "tolerance.aim=2")
    small = [option for option in OPTIONS if option not in ("--engine", "plain")]
    shown = run("permuted-digits", *asked, options=small)
    assert shown.exit_code == 0, shown.stderr
    store = Store(tmp_path / "store")
    held, unheld = (entry.result for entry in store.entries())
    assert (held.spec.tolerance, held.spec.kept, held.spec.engine) == (0.05, 100, "plain")
    assert dict(held.spec.tolerance_settings) == {"aim": 2} and (unheld.spec.kept, unheld.spec.engine) == (100, "fast")
    last = next(line for line in shown.stderr.splitlines() if line.startswith("EWC seed 0: task 2/2"))
    assert f"{held.worst_kl:.2g} of 0.05 nats lost, c = {held.found_strength:.3g}" in last
    assert f"{unheld.worst_kl:.2g} nats lost" in shown.stderr
    assert "nats lost" in shown.stdout  # the column of the table
    listed = call("runs", "list", "--store", store.folder).stdout
    assert f"{held.found_strength:.3g}" in listed and f"{held.worst_kl:.2g}" in listed and "tolerance 0.05" in listed
    rows = [json.loads(line) for line in call("runs", "list", "--json", "--store", store.folder).stdout.splitlines()]
    assert rows[0]["found_strength"] == held.found_strength and rows[0]["worst_kl"] == held.worst_kl
    one = call("runs", "show", held.spec.id, "--store", store.folder).stdout
    assert f"strength found     {held.found_strength:.4g}" in one and "KL of task 1" in one
    assert f"lost at most       {held.worst_kl:.3g} nats a sample" in one


def test_machines_are_told_of_strengths_that_are_found_and_of_what_is_lost(run, tmp_path):
    told = events(run("permuted-digits", "-m", "EWC", "--relative-strength", "0.03", "--kept", "80", "--json"))
    (result,) = Store(tmp_path / "store").results()
    progress = [event for event in told if event["event"] == "progress"]
    assert progress[0]["strengths"] == [None] and progress[0]["lost"] == [{}]
    assert progress[-1]["strengths"] == [result.found_strength]
    assert progress[-1]["lost"] == [{"task 1": result.worst_kl}]
    (finished,) = [event for event in told if event["event"] == "finished"]
    assert finished["relative_strength"] == 0.03
    assert [noted["strength"] for noted in finished["retention"]] == [result.found_strength] * 2
    assert finished["retention"][1]["sets"][0]["kl"] == result.worst_kl
    usual = events(run("permuted-digits", "-m", "EWC", "--json"))
    assert not any({"strengths", "lost", "retention"} & set(event) for event in usual)


def test_more_kept_than_half_of_a_task_is_refused_before_anything_runs(run, tmp_path):
    refused = run("split-digits", "-m", "EWC", "--tolerance", "0.1", options=("--device", "cpu"))
    assert refused.exit_code == 2 and "expected at most half of them, such as kept=55" in refused.stderr
    assert not (tmp_path / "store" / "runs").exists()
