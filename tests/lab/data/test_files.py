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
from anchorhold_lab.data import cifar, mnist


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


def small_sets(rng):
    """Return pixels and labels in the form of CIFAR-10's six files and CIFAR-100's two, by their names."""
    sizes = {
        **{f"data_batch_{i}": (3, 10) for i in range(1, 6)},
        "test_batch": (3, 10),
        "train": (4, 100),
        "test": (4, 100),
    }
    return {
        name: (rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, classes, count, dtype=np.uint8))
        for name, (count, classes) in sizes.items()
    }


def publish(monkeypatch, sets):
    """Let the digests of some sets be the published ones; return CIFAR-10's training images and labels."""
    train = [np.concatenate([sets[f"data_batch_{i}"][k] for i in range(1, 6)]) for k in (0, 1)]
    monkeypatch.setattr(cifar, "DIGESTS_10", {"train": digests(*train), "test": digests(*sets["test_batch"])})
    monkeypatch.setattr(cifar, "DIGESTS_100", {split: digests(*sets[split]) for split in ("train", "test")})
    return train


def write_records(folder, name, pixels, labels):
    hundred = name in ("train", "test")
    path = folder / (cifar.FOLDER_100 if hundred else cifar.FOLDER_10) / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = [labels // 5] if hundred else []
    path.write_bytes(np.column_stack([*coarse, labels, pixels]).tobytes())


def write_pickle(folder, name, pixels, labels, protocol=2):
    hundred = name in ("train", "test")
    path = folder / (cifar.PICKLES_100 if hundred else cifar.PICKLES_10) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {b"coarse_labels": (labels // 5).tolist(), b"fine_labels": labels.tolist()}
    content = {
        b"data": pixels,
        **(named if hundred else {b"labels": labels.tolist()}),
        b"batch_label": b"training batch",
    }
    path.write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.fixture
def sets(rng):
    return small_sets(rng)


@pytest.fixture
def published_train(monkeypatch, sets):
    return publish(monkeypatch, sets)


@pytest.fixture
def binary(tmp_path, sets, published_train):
    for name, (pixels, labels) in sets.items():
        write_records(tmp_path, name, pixels, labels)
    return tmp_path


@pytest.fixture
def pickles(tmp_path, sets, published_train):
    for name, (pixels, labels) in sets.items():
        write_pickle(tmp_path, name, pixels, labels, protocol=4 if name == "train" else 2)
    return tmp_path


@pytest.mark.parametrize("version", ["binary", "pickles"])
def test_both_versions_of_cifar_are_read_alike(request, version, sets, published_train):
    folder = request.getfixturevalue(version)
    pixels, labels = published_train
    found = data.load("CIFAR-10", folder)
    assert found.train.pixels.shape == (15, 3, 32, 32)
    assert (found.train.pixels.numpy().reshape(15, -1) == pixels).all()
    assert found.train.labels.tolist() == labels.tolist()
    hundred = data.load("CIFAR-100", folder)
    assert hundred.train.classes == 100
    assert hundred.test.labels.tolist() == sets["test"][1].tolist()  # the fine ones
    assert (hundred.test.pixels.numpy().reshape(4, -1) == sets["test"][0]).all()


def test_the_binary_version_is_read_where_both_are(binary, sets):
    target = binary / cifar.PICKLES_10 / "data_batch_1"
    target.parent.mkdir()
    target.write_bytes(b"nonsense")
    assert len(data.load("CIFAR-10", binary).train) == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "expected a multiple of 3073"),
        (lambda b: b"", "has 0 bytes"),
        (lambda b: b[:-3073], "images .* not the published ones"),
        (lambda b: bytes([b[0] ^ 1]) + b[1:], "labels .* not the published ones"),
        (lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:], "images .* not the published ones"),
    ],
    ids=["a byte short", "empty", "an image short", "another label", "another pixel"],
)
def test_a_changed_file_of_records_is_refused(binary, change, message):
    path = binary / cifar.FOLDER_10 / "data_batch_2.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        data.load("CIFAR-10", binary)


def test_swapped_and_absent_files_of_records_are_refused(binary):
    ten = binary / cifar.FOLDER_10
    first, second = ten / "data_batch_1.bin", ten / "data_batch_2.bin"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(DataError, match=r"data_batch_1.bin to data_batch_5.bin are not the published ones"):
        data.load("CIFAR-10", binary)
    first.write_bytes((binary / cifar.FOLDER_100 / "train.bin").read_bytes())
    with pytest.raises(DataError, match="expected a multiple of 3073, as CIFAR-10's images take"):
        data.load("CIFAR-10", binary)
    first.unlink()
    with pytest.raises(DataError, match="ANCHORHOLD_DATA"):
        data.load("CIFAR-10", binary)


# CIFAR's Python version


class Malice:
    """A pickle that would write a file when read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_runs_nothing(pickles, protocol, tmp_path):
    trace = tmp_path / "trace"
    target = pickles / cifar.PICKLES_10 / "data_batch_3"
    for content in (Malice(trace), {b"data": Malice(trace), b"labels": []}, [Malice(trace)]):
        target.write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(DataError, match="expected one of the files of CIFAR-10"):
            data.load("CIFAR-10", pickles)
        assert not trace.exists()
    pickle.loads(pickle.dumps(Malice(trace), protocol=protocol))
    assert trace.exists()  # it would have


def test_images_beside_what_would_run_are_read_and_it_is_not_run(pickles, sets, tmp_path):
    trace = tmp_path / "trace"
    pixels, labels = sets["data_batch_3"]
    content = {b"more": Malice(trace), b"data": pixels, b"labels": labels.tolist()}
    (pickles / cifar.PICKLES_10 / "data_batch_3").write_bytes(pickle.dumps(content, protocol=2))
    assert len(data.load("CIFAR-10", pickles).train) == 15
    assert not trace.exists()


def rewrite(folder, **changes):
    path = folder / cifar.PICKLES_10 / "data_batch_2"
    content = pickle.loads(path.read_bytes(), encoding="bytes")
    for key, change in changes.items():
        content[key.encode()] = change(content.get(key.encode()))
    path.write_bytes(pickle.dumps({k: v for k, v in content.items() if v is not None}, protocol=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": lambda a: a[:, :-1]}, "no images"),
        ({"data": lambda a: a.tolist()}, "no images"),
        ({"data": lambda a: a.astype(np.float32)}, "images .* not the published ones"),
        ({"data": np.asfortranarray}, "images .* not the published ones"),
        ({"labels": lambda _: None}, "no 'labels'"),
        ({"labels": lambda a: a[:-1]}, "labels .* not the published ones"),
        ({"labels": lambda a: [*a[:-1], 10]}, "labels .* not the published ones"),
        ({"labels": lambda a: [*a[:-1], "3"]}, "labels .* not the published ones"),
        ({"labels": lambda a: [(label + 1) % 10 for label in a]}, "labels .* not the published ones"),
        ({"data": lambda a: a ^ 1}, "images .* not the published ones"),
    ],
)
def test_a_pickle_of_another_content_is_refused(pickles, changes, message):
    rewrite(pickles, **changes)
    with pytest.raises(DataError, match=message):
        data.load("CIFAR-10", pickles)


def test_truncated_swapped_and_absent_pickles(pickles):
    ten = pickles / cifar.PICKLES_10
    content = (ten / "data_batch_1").read_bytes()
    for length in (0, 10, len(content) // 2, len(content) - 1):
        (ten / "data_batch_1").write_bytes(content[:length])
        with pytest.raises(DataError, match="data fetch CIFAR-10` gets the binary version"):
            data.load("CIFAR-10", pickles)
    (ten / "data_batch_1").write_bytes((ten / "data_batch_2").read_bytes())
    (ten / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match="data_batch_1 to data_batch_5 are not the published ones"):
        data.load("CIFAR-10", pickles)
    (ten / "data_batch_1").write_bytes((pickles / cifar.PICKLES_100 / "train").read_bytes())
    with pytest.raises(DataError, match="no 'labels'; expected one of the files of CIFAR-10"):
        data.load("CIFAR-10", pickles)
    (ten / "data_batch_1").unlink()
    with pytest.raises(DataError, match="ANCHORHOLD_DATA"):
        data.load("CIFAR-10", pickles)


BOMBS = {
    "nine bytes that take four gigabytes": b"\x80\x02Nr\xff\xff\xff\x1f.",
    "nested tuples": b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns.",
    "nested lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "a text that is encoded over and over": b"\x80\x02c_codecs\nencode\nq\x00X\x00\x00\x10\x00"
    + b"a" * 2**20
    + b"q\x01]"
    + b"h\x00h\x01\x85Ra" * 50_000
    + b".",
    "bytes that are announced and not there": b"\x80\x02T\xff\xff\xff\x7f.",
    "more bytes than any memory has": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a number of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a number of thousands of digits": b"L" + b"9" * 10_000 + b"L\n.",
    "no end": b"\x80\x02" + b"N" * (2**20 + 1),
    "an empty stack": b"\x80\x02.",
    "a mark that is not there": b"\x80\x02Nt.",
    "a tuple that is doubled": b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 10_000 + b".",
    "a list within itself": b"\x80\x02]q\x00h\x00a.",
    "a shape of many dimensions": pickle.dumps(np.zeros((1,) * 30, np.uint8), protocol=2),
    "no opcode": b"\xff",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_would_exhaust_or_end_the_process_is_refused_in_little_memory(pickles, name):
    (pickles / cifar.PICKLES_10 / "data_batch_1").write_bytes(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="CIFAR") as caught:
            data.load("CIFAR-10", pickles)
        assert tracemalloc.get_traced_memory()[1] < 1e6 + 4 * len(BOMBS[name])
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("version", ["binary", "pickles"])
def test_a_file_that_is_too_long_for_cifar_is_not_read(request, version, monkeypatch):
    folder = request.getfixturevalue(version)
    monkeypatch.setattr(cifar, "_LARGEST", 1000)
    with pytest.raises(DataError, match="more than 1000 bytes"):
        data.load("CIFAR-10", folder)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_copy_that_holds_more_or_less_beside_the_images_is_as_good(pickles, published_train, protocol):
    """As copies of CIFAR-10 do that lack the files' names, or were written again by another Python."""
    for i in range(1, 6):
        path = pickles / cifar.PICKLES_10 / f"data_batch_{i}"
        content = pickle.loads(path.read_bytes(), encoding="bytes")
        del content[b"batch_label"]
        more = {b"filenames": [b"a_\xe9.png"] * 3, "nested": {"\u03b1": [(1, (2, None)), True, -7]}}
        path.write_bytes(pickle.dumps(content | more, protocol=protocol))
    found = data.load("CIFAR-10", pickles).train
    assert (found.pixels.numpy().reshape(15, -1) == published_train[0]).all()
    assert found.labels.tolist() == published_train[1].tolist()


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
