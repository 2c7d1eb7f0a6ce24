import json

import pytest

from anchorhold.errors import DataError
from anchorhold_lab.data import load
from anchorhold_lab.data.sources import SOURCES
from tests.lab.data.mirror import serving
from tests.lab.data.test_fetch import small_cifar, small_mnist


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror():
    with serving() as made:
        yield made


def states(call, folder):
    shown = call("data", "--data-dir", folder, "--json")
    return {entry["name"]: entry["state"] for entry in map(json.loads, shown.stdout.splitlines())}, shown.exit_code


def test_what_is_not_there_is_listed_with_how_to_get_it(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # as wide as the longest of temporary folders
    for command in (["data"], ["data", "list"]):
        shown = call(*command, "--data-dir", tmp_path)
        assert shown.exit_code == 0
        typed = f"anchorhold-lab data fetch CIFAR-10 --data-dir {tmp_path}"
        assert typed in " ".join(shown.stdout.split()) and "built in" in shown.stdout
    assert "--data-dir" not in call("data").stdout


def test_a_set_is_fetched_listed_and_not_fetched_again(call, tmp_path, monkeypatch, mirror):
    mirror.files = small_mnist(monkeypatch)
    command = ["data", "fetch", "mnist", "--data-dir", tmp_path, "--mirror", mirror.address]
    assert "MNIST is now in" in call(*command).stdout
    assert len(load("MNIST", tmp_path).train) == 60
    asked = len(mirror.asked)
    assert "MNIST is already in" in call(*command).stdout
    assert len(mirror.asked) == asked
    there = {"MNIST": "right", "CIFAR-10": "absent", "CIFAR-100": "absent", "digits": "right"}
    assert states(call, tmp_path) == (there, 0)
    assert "60 training and 10 test images" in call("data", "--data-dir", tmp_path).stdout


def test_a_wrong_set_is_said_to_be_wrong(call, tmp_path, monkeypatch, mirror):
    mirror.files = small_cifar(monkeypatch)
    call("data", "fetch", "CIFAR-100", "--data-dir", tmp_path, "--mirror", mirror.address)
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(b"nonsense")
    there = {"MNIST": "absent", "CIFAR-10": "absent", "CIFAR-100": "wrong", "digits": "right"}
    assert states(call, tmp_path) == (there, 3)
    assert "expected a multiple of 3074" in " ".join(call("data", "--data-dir", tmp_path).stdout.split())


def test_the_python_version_of_cifar_is_there_too(call, tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"nonsense")
    assert states(call, tmp_path)[0]["CIFAR-100"] == "wrong"
    assert "Nothing in it was run." in " ".join(call("data", "--data-dir", tmp_path).stdout.split())


def test_a_folder_too_far_down_is_told_from_a_set_that_is_not_there(call, tmp_path, monkeypatch, mirror):
    mirror.files = small_mnist(monkeypatch)
    call("data", "fetch", "mnist", "--data-dir", tmp_path, "--mirror", mirror.address)
    for inner in ("MNIST", "MNIST/raw"):
        with pytest.raises(DataError, match=f"It is in {tmp_path}, which is the folder to give"):
            load("MNIST", tmp_path / inner)
    with pytest.raises(DataError, match=f"data fetch CIFAR-10 --data-dir {tmp_path}`"):
        load("CIFAR-10", tmp_path)


def test_json_of_fetching(call, tmp_path, monkeypatch, mirror):
    mirror.files = small_mnist(monkeypatch)
    shown = call("data", "fetch", "MNIST", "--data-dir", tmp_path, "--mirror", mirror.address, "--json")
    assert json.loads(shown.stdout) == {"name": "MNIST", "state": "right", "fetched": True, "folder": str(tmp_path)}


def test_what_cannot_be_fetched_is_an_error_about_data(call, tmp_path, mirror):
    shown = call("data", "fetch", "all", "--data-dir", tmp_path, "--mirror", mirror.address)
    assert shown.exit_code == 3
    assert "answers 404" in shown.stderr
    assert all(str(tmp_path / path) in shown.stderr for path in SOURCES["MNIST"].files)


def test_mistakes(call, tmp_path):
    unknown = call("data", "fetch", "cifar", "--data-dir", tmp_path)
    assert unknown.exit_code == 2 and "Did you mean 'CIFAR-10'" in unknown.stderr
    address = call("data", "fetch", "MNIST", "--data-dir", tmp_path, "--mirror", "ftp://example.org/")
    assert address.exit_code == 2 and "expected an address that begins with https://" in address.stderr
    for mirror in ("http://", "http://[", "http://h:port/", "http://a b/", "https:example.org"):
        address = call("data", "fetch", "MNIST", "--data-dir", tmp_path, "--mirror", mirror)
        assert address.exit_code == 2 and f"A mirror {mirror!r}; expected an address" in address.stderr
