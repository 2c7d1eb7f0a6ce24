"""Real files are not here, so these tests write files of the same form, and files of every wrong form."""

import gzip
import hashlib
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

from anchorhold.errors import DataError
from anchorhold_lab import data
from anchorhold_lab.data import cifar, mnist, unpickling


def digests(pixels, labels):
    return tuple(hashlib.sha256(a.tobytes()).hexdigest() for a in (pixels, labels))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# MNIST


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist_folder(tmp_path, rng, monkeypatch):
    folder = tmp_path / mnist.FOLDER
    folder.mkdir(parents=True)
    expected = {}
    for split, count in (("train", 6), ("t10k", 4)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
        expected[split] = (pixels, labels)
    monkeypatch.setattr(mnist, "DIGESTS", {split: digests(*arrays) for split, arrays in expected.items()})
    return tmp_path, expected


def test_mnist_is_read(mnist_folder):
    folder, expected = mnist_folder
    found = data.load("MNIST", folder)
    assert found.train.pixels.shape == (6, 1, 28, 28)
    assert (found.train.pixels.numpy()[:, 0] == expected["train"][0]).all()
    assert found.test.labels.tolist() == expected["t10k"][1].tolist()
    assert found.train.classes == 10


def damage(content, how):
    body = gzip.decompress(content)
    return {
        "truncated": content[: len(content) // 2],
        "emptied": b"",
        "not gzip": b"<html>Not Found</html>",
        "short inside": gzip.compress(body[:-1]),
        "header alone": gzip.compress(body[:6]),
        "one bit": gzip.compress(body[:-1] + bytes([body[-1] ^ 1])),
        "other type": gzip.compress(bytes((0, 0, 13)) + body[3:]),
    }[how]


@pytest.mark.parametrize(
    "how", ["truncated", "emptied", "not gzip", "short inside", "header alone", "one bit", "other type"]
)
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_a_damaged_mnist_file_is_refused(mnist_folder, name, how):
    folder, _ = mnist_folder
    path = folder / mnist.FOLDER / name
    path.write_bytes(damage(path.read_bytes(), how))
    with pytest.raises(DataError, match="MNIST"):
        data.load("MNIST", folder)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ],
)
def test_swapped_mnist_files_are_refused(mnist_folder, one, other):
    folder = mnist_folder[0] / mnist.FOLDER
    first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
    (folder / one).write_bytes(second)
    (folder / other).write_bytes(first)
    with pytest.raises(DataError, match=r"not the published ones|expected an idx file"):
        data.load("MNIST", mnist_folder[0])


def test_a_file_that_unpacks_without_end_is_cut_off(mnist_folder, monkeypatch):
    folder, _ = mnist_folder
    monkeypatch.setattr(mnist, "_LARGEST", 100)
    with pytest.raises(DataError, match="bytes of data for a shape"):
        data.load("MNIST", folder)


@pytest.mark.parametrize(
    "shape", [(2**32 - 1,) * 3, (2**31, 2**31, 4), (0, 2**31, 2**31), (2**16, 2**16, 2**32 - 1), (0, 28, 28)]
)
def test_sizes_that_are_announced_and_not_there_are_refused(mnist_folder, shape):
    folder, _ = mnist_folder
    path = folder / mnist.FOLDER / "train-images-idx3-ubyte.gz"
    for body in (b"", bytes(1000)):
        path.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape) + body))
        with pytest.raises(DataError, match="bytes of data for a shape"):
            data.load("MNIST", folder)


# CIFAR


def write_cifar(path, pixels, labels, key, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {b"data": pixels, key.encode(): labels.tolist(), b"batch_label": b"training batch"}
    path.write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.fixture
def cifar_folder(tmp_path, rng, monkeypatch):
    parts = {}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        pixels = rng.integers(0, 256, (3, 3072), dtype=np.uint8)
        labels = rng.integers(0, 10, 3, dtype=np.uint8)
        write_cifar(tmp_path / cifar.FOLDER_10 / name, pixels, labels, "labels")
        parts[name] = (pixels, labels)
    train = [np.concatenate([parts[f"data_batch_{i}"][k] for i in range(1, 6)]) for k in (0, 1)]
    monkeypatch.setattr(cifar, "DIGESTS_10", {"train": digests(*train), "test": digests(*parts["test_batch"])})
    hundred = {}
    for split in ("train", "test"):
        pixels = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        labels = rng.integers(0, 100, 4, dtype=np.uint8)
        write_cifar(tmp_path / cifar.FOLDER_100 / split, pixels, labels, "fine_labels", protocol=4)
        hundred[split] = digests(pixels, labels)
    monkeypatch.setattr(cifar, "DIGESTS_100", hundred)
    return tmp_path, train


def test_cifar_is_read(cifar_folder):
    folder, (pixels, labels) = cifar_folder
    found = data.load("CIFAR-10", folder)
    assert found.train.pixels.shape == (15, 3, 32, 32)
    assert (found.train.pixels.numpy().reshape(15, -1) == pixels).all()
    assert found.train.labels.tolist() == labels.tolist()
    assert data.load("CIFAR-100", folder).train.classes == 100


class Malice:
    """A pickle that would write a file when read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_runs_nothing(cifar_folder, protocol, tmp_path):
    folder, _ = cifar_folder
    trace = tmp_path / "trace"
    target = folder / cifar.FOLDER_10 / "data_batch_3"
    for content in (Malice(trace), {b"data": Malice(trace), b"labels": []}, [Malice(trace)]):
        target.write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(DataError, match="Nothing in it was run"):
            data.load("CIFAR-10", folder)
        assert not trace.exists()
    pickle.loads(pickle.dumps(Malice(trace), protocol=protocol))
    assert trace.exists()  # it would have


@pytest.mark.parametrize(
    "name", ["builtins eval", "builtins getattr", "numpy load", "numpy.core.multiarray scalar", "posix system"]
)
def test_no_name_from_outside_is_given_out(cifar_folder, name):
    folder, _ = cifar_folder
    module, attribute = name.split()
    target = folder / cifar.FOLDER_10 / "test_batch"
    target.write_bytes(f"c{module}\n{attribute}\n(S'1'\ntR.".encode())
    with pytest.raises(DataError, match=f"asks for {module}.{attribute}"):
        data.load("CIFAR-10", folder)


def rewrite(folder, **changes):
    path = folder / cifar.FOLDER_10 / "data_batch_2"
    content = pickle.loads(path.read_bytes(), encoding="bytes")
    for key, change in changes.items():
        content[key.encode()] = change(content.get(key.encode()))
    path.write_bytes(pickle.dumps({k: v for k, v in content.items() if v is not None}, protocol=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": lambda a: a[:, :-1]}, "no 'data'"),
        ({"data": lambda a: a.tolist()}, "no 'data'"),
        ({"data": lambda a: a.astype(np.float32)}, "something else than bytes"),
        ({"data": np.asfortranarray}, "CIFAR"),
        ({"labels": lambda _: None}, "no 'labels'"),
        ({"labels": lambda a: a[:-1]}, "no 'labels'"),
        ({"labels": lambda a: [*a[:-1], 10]}, "labels outside"),
        ({"labels": lambda a: [*a[:-1], "3"]}, "labels outside"),
        ({"labels": lambda a: [(label + 1) % 10 for label in a]}, "labels .* not the published ones"),
        ({"data": lambda a: a ^ 1}, "images .* not the published ones"),
    ],
)
def test_a_cifar_file_of_another_content_is_refused(cifar_folder, changes, message):
    folder, _ = cifar_folder
    rewrite(folder, **changes)
    with pytest.raises(DataError, match=message):
        data.load("CIFAR-10", folder)


def test_truncated_swapped_and_absent_cifar_files(cifar_folder):
    folder, _ = cifar_folder
    ten = folder / cifar.FOLDER_10
    content = (ten / "data_batch_1").read_bytes()
    for length in (0, 10, len(content) // 2, len(content) - 1):
        (ten / "data_batch_1").write_bytes(content[:length])
        with pytest.raises(DataError, match="not one of CIFAR's files"):
            data.load("CIFAR-10", folder)
    (ten / "data_batch_1").write_bytes((ten / "data_batch_2").read_bytes())
    (ten / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match="data_batch_1 to data_batch_5 are not the published ones"):
        data.load("CIFAR-10", folder)
    (ten / "data_batch_1").write_bytes((folder / cifar.FOLDER_100 / "train").read_bytes())
    with pytest.raises(DataError, match="from the other CIFAR"):
        data.load("CIFAR-10", folder)
    (ten / "data_batch_1").unlink()
    with pytest.raises(DataError, match="ANCHORHOLD_DATA"):
        data.load("CIFAR-10", folder)


BOMBS = {
    "nine bytes that take four gigabytes": b"\x80\x02Nr\xff\xff\xff\x1f.",
    "nested tuples": b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns.",
    "nested tuples as a name": b"\x80\x04\x8c\x05numpy)" + b"\x85" * 300_000 + b"\x93.",
    "nested lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "nested marks": b"\x80\x02" + b"(" * 300_000 + b"t" * 300_000 + b".",
    "a text that is encoded over and over": b"\x80\x02c_codecs\nencode\nq\x00X\x00\x00\x10\x00"
    + b"a" * 2**20
    + b"q\x01]"
    + b"h\x00h\x01\x85Ra" * 50_000
    + b".",
    "bytes that are announced and not there": b"\x80\x02T\xff\xff\xff\x7f.",
    "more bytes than any memory has": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a number of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "no end": b"\x80\x02" + b"N" * (2**20 + 1),
    "nothing to take": b"\x80\x020.",
    "an empty stack": b"\x80\x02.",
    "a mark that is not there": b"\x80\x02Nt.",
    "what was never noted": b"\x80\x02h\x07.",
    "a tuple that is doubled": b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 10_000 + b".",
    "a list within itself": b"\x80\x02]q\x00h\x00a.",
    "a shape of many dimensions": pickle.dumps(np.zeros((1,) * 30, np.uint8), protocol=2),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_would_exhaust_or_end_the_process_is_refused(cifar_folder, name):
    folder, _ = cifar_folder
    path = folder / cifar.FOLDER_10 / "data_batch_4"
    path.write_bytes(BOMBS[name])
    with pytest.raises(DataError, match="CIFAR's files"):
        data.load("CIFAR-10", folder)


@pytest.mark.parametrize("name", [name for name, content in BOMBS.items() if len(content) < 100])
def test_a_few_bytes_take_little_memory(cifar_folder, name):
    folder, _ = cifar_folder
    (folder / cifar.FOLDER_10 / "data_batch_1").write_bytes(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="CIFAR's files"):
            data.load("CIFAR-10", folder)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_a_file_that_is_too_long_for_cifar_is_not_read_to_its_end(cifar_folder, monkeypatch):
    folder, _ = cifar_folder
    monkeypatch.setattr(unpickling, "_LARGEST", 1000)
    with pytest.raises(DataError, match="more than 1000 bytes"):
        data.load("CIFAR-10", folder)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_copy_that_holds_more_or_less_beside_the_images_is_as_good(cifar_folder, protocol):
    """As copies of CIFAR-10 do that lack the files' names, or were written again by another Python."""
    folder, (pixels, _) = cifar_folder
    for i in range(1, 6):
        path = folder / cifar.FOLDER_10 / f"data_batch_{i}"
        content = pickle.loads(path.read_bytes(), encoding="bytes")
        del content[b"batch_label"]
        more = {b"filenames": [b"a_\xe9.png"] * 3, "nested": {"a": [(1, (2, None)), True, -7]}}
        path.write_bytes(pickle.dumps(content | more, protocol=protocol))
    assert (data.load("CIFAR-10", folder).train.pixels.numpy().reshape(15, -1) == pixels).all()


# Where data lie


def test_the_folder_is_the_given_one_or_the_environments(mnist_folder, monkeypatch):
    folder, _ = mnist_folder
    monkeypatch.setenv("ANCHORHOLD_DATA", str(folder))
    assert len(data.load("MNIST").train) == 6
    assert data.data_folder("elsewhere").name == "elsewhere"
    monkeypatch.delenv("ANCHORHOLD_DATA")
    assert data.data_folder().parts[-3:] == (".cache", "anchorhold", "data")


def test_an_unknown_data_set():
    with pytest.raises(DataError, match="there are MNIST, CIFAR-10, CIFAR-100"):
        data.load("ImageNet")
