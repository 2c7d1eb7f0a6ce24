"""``anchorhold-lab runs pack`` and ``unpack``, and what the other commands make of a packed store."""

import json
import shutil

import pytest

from anchorhold_lab.experiments import Store
from tests.lab.cli.small import OPTIONS, small_spec, small_store
from tests.lab.cli.unprivileged import calls_without_privileges

SPECS = [
    small_spec("SI", 0, probes=("importances",)),
    small_spec("SI", 1),
    small_spec("SOS", 0),
    small_spec("fine-tune", 0, optimizer="sgd", learning_rate=1e30, momentum=0.0),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("store"), *SPECS)[0].folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "store")


def test_both_say_what_was_moved_and_what_it_came_to(call, folder):
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    size = sum(map(len, before.values()))
    shown = call("runs", "pack", folder)
    assert shown.exit_code == 0 and shown.stderr == ""
    now = sum(path.stat().st_size for path in folder.glob("*.*"))
    assert shown.stdout == (
        f"4 runs packed in {folder}: {len(before)} files and {size:,} bytes before, 2 and {now:,} now.\n"
    )
    assert sorted(path.name for path in folder.glob("*.*")) == ["observations.zip", "results.jsonl.zst"]
    again = call("runs", "pack", folder)
    assert again.exit_code == 0 and again.stdout.startswith("0 runs packed")
    back = json.loads(call("runs", "unpack", folder, "--json").stdout)
    assert back == {
        "store": str(folder),
        "unpacked": 4,
        "before": {"files": 2, "bytes": now},
        "after": {"files": len(before), "bytes": size},
        "left": {},
    }
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_what_stays_in_its_folder_is_said_with_the_reason(call, folder):
    for number in (2, 3):
        Store(folder).claim(small_spec("SI", number)).release()
    (Store(folder).run_folder(SPECS[1].id) / "notes.txt").touch()
    shown = call("runs", "pack", folder).stdout.splitlines()
    assert shown[0].startswith("3 runs packed")
    first = min(small_spec("SI", number).id for number in (2, 3))
    assert sorted(shown[1:]) == [
        f"Left in its folder: {SPECS[1].id} (it has notes.txt).",
        f"Left in their folders: 2 runs, such as {first} (not finished).",
    ]


def test_every_command_reads_a_packed_store_as_it_read_the_loose_one(call, folder, tmp_path):
    picture = tmp_path / "runs.png"
    commands = [
        ("list",),
        ("list", "--json"),
        ("list", "--measure", "SI", "--where", "status=finished"),
        ("compare",),
        ("compare", "--by", "seed", "--json"),
        ("show", SPECS[0].id[:8]),
        ("show", SPECS[3].id[:8], "--json"),
        ("plot", "--out", picture, "--json"),
    ]

    before, drawn = [], []
    for found in (before, drawn):
        for command in commands:
            done = call("runs", *command, "--store", folder)
            assert done.exit_code == 0, done.stderr
            found.append((done.stdout, done.stderr))
        found.append(picture.read_bytes())
        call("runs", "pack", folder)
    assert before == drawn


def test_runs_that_are_packed_are_not_made_again_and_new_ones_are(call, folder):
    call("runs", "pack", folder)
    told = ("run", "permuted-digits", "--measure", "SOS", "--seeds", "2", *OPTIONS, "--store", folder, "--json")
    events = [json.loads(line) for line in call(*told).stdout.splitlines()]
    assert [event["event"] for event in events if event["event"].startswith(("skipped", "finished"))]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [small_spec("SOS", 1).id]
    assert call("runs", "pack", folder).stdout.startswith("1 run packed")
    assert len(Store(folder).results()) == 4


@pytest.mark.parametrize("name", ["results.jsonl.zst", "observations.zip"])
def test_a_damaged_packed_file_is_named_by_every_command_and_stays(call, folder, tmp_path, name):
    call("runs", "pack", folder)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-10])
    content = path.read_bytes()
    commands = [
        ("runs", "list", "--store", folder),
        ("runs", "compare", "--store", folder),
        ("runs", "show", SPECS[0].id, "--store", folder),
        ("runs", "plot", "--out", tmp_path / "runs.png", "--store", folder),
        ("runs", "pack", folder),
        ("runs", "unpack", folder),
    ]
    if name == "results.jsonl.zst":
        commands.append(("run", "permuted-digits", "--measure", "SI", *OPTIONS, "--store", folder))
    for command in commands:
        done = call(*command)
        assert done.exit_code == 4 and str(path) in done.stderr and "Traceback" not in done.stderr, command
    assert path.read_bytes() == content


def test_a_store_that_may_only_be_read_is_read_and_left_as_it_is(call, folder):
    loose = {path: path.read_bytes() for path in folder.rglob("*.*")}
    packed = shutil.copytree(folder, folder.parent / "packed")
    call("runs", "pack", packed)
    for place in (folder, packed):
        for path in [place, *place.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    (list_loose, list_packed, pack, unpack) = calls_without_privileges(
        ("runs", "list", "--store", str(folder)),
        ("runs", "list", "--store", str(packed)),
        ("runs", "pack", str(folder)),
        ("runs", "unpack", str(packed)),
    )
    assert list_loose[:2] == list_packed[:2] and list_packed[0] == 0
    for (code, _, said), place in ((pack, folder), (unpack, packed)):
        assert code == 4 and f"{place}" in said and "Permission denied. No run is lost." in said
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == loose


def test_a_store_that_is_not_there_or_not_packed_is_said(call, folder, tmp_path):
    for command in ("pack", "unpack"):
        done = call("runs", command, tmp_path / "none")
        assert done.exit_code == 4 and "There is no folder" in done.stderr
    done = call("runs", "unpack", folder)
    assert done.exit_code == 4 and "There is no results.jsonl.zst" in done.stderr
