"""Fetching a whole data set from a server on this machine, with small sets in the place of the real ones."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest

from anchorhold.errors import ConfigurationError, DataError
from anchorhold_lab.data import READERS, cifar, load, mnist, sources
from anchorhold_lab.data.download import DownloadError
from anchorhold_lab.data.fetch import fetch, is_right
from anchorhold_lab.data.sources import Download, PublishedFiles
from tests.lab.data.mirror import serving


def digests(pixels, labels):
    return tuple(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in (pixels, labels))


def published(path, content, members=()):
    return Download(path, len(content), hashlib.md5(content).hexdigest(), members)


def small_mnist(monkeypatch):
    """Publish a data set in the form of MNIST, and return its files by name."""
    rng = np.random.default_rng(0)
    files, known = {}, {}
    for split, count in (("train", 60), ("t10k", 10)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        known[split] = digests(pixels, labels)
        for what, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            files[f"{split}-{what}-ubyte.gz"] = gzip.compress(header + array.tobytes(), mtime=0)
    monkeypatch.setattr(mnist, "DIGESTS", known)
    downloads = tuple(published(f"{mnist.FOLDER}/{name}", content) for name, content in files.items())
    monkeypatch.setitem(sources.SOURCES, "MNIST", PublishedFiles((), downloads))
    return files


def small_cifar(monkeypatch):
    """Publish a data set in the form of CIFAR-100, and return its archive by name."""
    rng = np.random.default_rng(1)
    inner, known = {}, {}
    for split, count in (("train", 50), ("test", 10)):
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = rng.integers(0, 100, count, dtype=np.uint8)
        known[split] = digests(pixels, labels)
        inner[f"{cifar.FOLDER_100}/{split}.bin"] = np.column_stack([labels // 5, labels, pixels]).tobytes()
    monkeypatch.setattr(cifar, "DIGESTS_100", known)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {**inner, "../outside": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive = packed.getvalue()
    download = published("cifar-100-binary.tar.gz", archive, tuple(inner))
    monkeypatch.setitem(sources.SOURCES, "CIFAR-100", PublishedFiles((), (download,), PICKLES))
    return {"cifar-100-binary.tar.gz": archive}


PICKLES = f"{cifar.PICKLES_100}/train"
SMALL = {"MNIST": small_mnist, "CIFAR-100": small_cifar}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror():
    with serving() as made:
        yield made


def no_pause(_):
    pass


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", SMALL)
def test_a_data_set_is_fetched_once(name, mirror, tmp_path, monkeypatch):
    mirror.files = SMALL[name](monkeypatch)
    assert not is_right(name, tmp_path)
    assert fetch(name, tmp_path, mirrors=[mirror.address.rstrip("/")], pause=no_pause) is True
    assert len(load(name, tmp_path).test) == 10
    assert files_in(tmp_path) == set(sources.SOURCES[name].files)
    asked = len(mirror.asked)
    assert fetch(name, tmp_path, mirrors=[mirror.address], pause=no_pause) is False
    assert len(mirror.asked) == asked


@pytest.mark.parametrize("name", SMALL)
def test_a_damaged_data_set_is_made_right(name, mirror, tmp_path, monkeypatch):
    mirror.files = SMALL[name](monkeypatch)
    fetch(name, tmp_path, mirrors=[mirror.address], pause=no_pause)
    damaged = tmp_path / sources.SOURCES[name].files[-1]
    damaged.write_bytes(damaged.read_bytes()[:-10])
    mirror.asked.clear()
    assert fetch(name, tmp_path, mirrors=[mirror.address], pause=no_pause) is True
    assert is_right(name, tmp_path)
    assert len(mirror.asked) == 1  # the files that were right are not downloaded again


def test_an_archive_that_lies_there_is_unpacked_and_kept(mirror, tmp_path, monkeypatch):
    (name, content), *_ = small_cifar(monkeypatch).items()
    (tmp_path / name).write_bytes(content)
    assert fetch("CIFAR-100", tmp_path, mirrors=[mirror.address], pause=no_pause) is True
    assert mirror.asked == []
    assert (tmp_path / name).read_bytes() == content


def test_connections_that_break_and_servers_that_are_busy(mirror, tmp_path, monkeypatch):
    mirror.files = small_mnist(monkeypatch)
    mirror.faults = [("drop", 500), 503, ("drop", 100), None, ("send", b"x" * 80), 503]
    told = {}
    with serving() as second:
        second.files = mirror.files
        fetch(
            "MNIST",
            tmp_path,
            mirrors=[mirror.address, second.address],
            pause=no_pause,
            told=lambda wanted, arrived: told.__setitem__(wanted.name, (arrived, wanted.size)),
        )
    assert is_right("MNIST", tmp_path)
    assert set(told) == set(mirror.files)
    assert all(arrived == size for arrived, size in told.values())


@pytest.mark.parametrize("name", SMALL)
def test_without_a_network_the_message_says_where_the_files_belong(name, mirror, tmp_path, monkeypatch):
    SMALL[name](monkeypatch)
    with pytest.raises(DownloadError) as caught:
        fetch(name, tmp_path, mirrors=[mirror.address], pause=no_pause)
    message = str(caught.value)
    assert "answers 404" in message and "--mirror" in message
    assert all(str(tmp_path / path) in message for path in sources.SOURCES[name].files)
    assert all(f"{each.name} (md5 {each.md5})" in message for each in sources.SOURCES[name].downloads)
    assert (f"{tmp_path / PICKLES} is read as well" in message) == (name == "CIFAR-100")


def test_a_folder_that_cannot_be_written_is_named(mirror, tmp_path, monkeypatch):
    mirror.files = small_mnist(monkeypatch)
    (tmp_path / "MNIST").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=f"MNIST could not be written to {tmp_path}"):
        fetch("MNIST", tmp_path, mirrors=[mirror.address], pause=no_pause)
    assert (tmp_path / "MNIST").read_text() == "a file where a folder should be"


def test_unknown_names_and_addresses_are_refused(tmp_path):
    with pytest.raises(DataError, match="there are MNIST, CIFAR-10, CIFAR-100"):
        fetch("ImageNet", tmp_path)
    with pytest.raises(ConfigurationError, match="'file:///etc/'"):
        fetch("MNIST", tmp_path, mirrors=["file:///etc/"])


def test_every_data_set_has_a_source_with_the_files_that_its_reader_opens(tmp_path):
    assert set(sources.SOURCES) == set(READERS)
    for name, source in sources.SOURCES.items():
        assert all(address.startswith("https://") and address.endswith("/") for address in source.mirrors)
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        missing = caught.value.__cause__.filename
        assert str(missing) in {str(tmp_path / path) for path in source.files}
        assert f"anchorhold-lab data fetch {name}" in str(caught.value)
